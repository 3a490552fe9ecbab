/** Sends files: frames, in pieces of 256 KiB, resumed where a connection breaks. */

import { createHash, type Hash } from "node:crypto";
import { types } from "node:util";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { type CallOptions, withDeadline } from "./call.js";
import { newId } from "./command.js";
import { FileError, InternalError, InvalidRequestError, SandgateError } from "./errors.js";
import { fileError, type Source, type UploadFile, type UploadResult } from "./files.js";
import type {
  UploadRequestSchema,
  UploadResponse,
  UploadResult as UploadResultMessage,
} from "./gen/sandbox/v1/sandbox_files_pb.js";
import { SandboxService } from "./gen/sandbox/v1/sandbox_service_pb.js";
import { isBreak, Retry } from "./retry.js";
import { mismatch, type Target } from "./transfer.js";
import type { Transport } from "./transport.js";

const CHUNK_BYTES = 256 << 10;
/** Below this many bytes it is cheaper to send a file again than to keep its part. */
const RESUME_ABOVE = 1 << 20;

type UploadMessage = MessageInitShape<typeof UploadRequestSchema>;

/** What was sent of one file. */
interface Sent {
  size: number;
  sha256: Buffer;
}

/** Uploads files over one stream, each whole or not at all; one result per file, in order. */
export async function upload(
  transport: Transport,
  target: Target,
  files: readonly UploadFile[],
  options: CallOptions,
): Promise<UploadResult[]> {
  if (files.length === 0) return [];
  const call = withDeadline(options);
  const retry = new Retry(() => (files.every(isRepeatable) ? transport.retryWindow(options) : 0));
  for (;;) {
    const sent: Sent[] = [];
    try {
      const reply = await transport.clientStream(
        SandboxService.method.upload,
        frames(target, files, sent),
        call,
      );
      const results = resultsOf(reply, files.length);
      return files.map(({ path }, index) => resultOf(path, results[index], sent[index]));
    } catch (error) {
      if (!isBreak(error) || !(await transport.again(retry, error, options.signal))) throw error;
    }
  }
}

/**
 * Uploads one file. A source that can be read again is resumed after what arrived,
 * for the retry window; each byte of progress restarts it.
 */
export async function uploadOne(
  transport: Transport,
  target: Target,
  file: UploadFile,
  options: CallOptions,
): Promise<UploadResult> {
  const resumable = isLarge(file.source);
  if (!resumable) {
    const [result] = await upload(transport, target, [file], options);
    return result as UploadResult;
  }
  let uploadId = newId("up");
  let offset = 0;
  const call = withDeadline(options);
  const retry = new Retry(() => transport.retryWindow(options));
  for (;;) {
    let failure: unknown;
    try {
      const result = await attempt(transport, target, file, uploadId, offset, call);
      if (!isBehind(result.error)) return result;
      failure = result.error;
    } catch (error) {
      if (error instanceof SandgateError && error.reason === "FEATURE_UNSUPPORTED" && uploadId !== "") {
        [uploadId, offset] = ["", 0];
        continue;
      }
      if (!isBreak(error) && !isBehind(error)) throw error;
      if (uploadId === "" && file.createOnly) throw error;
      failure = error;
    }
    if (!(await transport.again(retry, failure, options.signal))) throw failure;
    if (uploadId === "") continue;
    const before = offset;
    offset = await arrived(transport, target, uploadId, call);
    if (offset > before) retry.progress();
  }
}

/** Sends a file from an offset over one stream. */
async function attempt(
  transport: Transport,
  target: Target,
  file: UploadFile,
  uploadId: string,
  offset: number,
  options: CallOptions,
): Promise<UploadResult> {
  const sent: Sent[] = [];
  const messages = frames(target, [file], sent, { uploadId, offset });
  const reply = await transport.clientStream(SandboxService.method.upload, messages, options);
  return resultOf(file.path, resultsOf(reply, 1)[0], sent[0]);
}

/** Returns how many bytes of the upload the server has kept. */
async function arrived(
  transport: Transport,
  { sandboxId, expectedIncarnation }: Target,
  uploadId: string,
  options: CallOptions,
): Promise<number> {
  try {
    const request = { sandboxId, expectedIncarnation, uploadId };
    return Number((await transport.repeatable(SandboxService.method.getUpload, request, options)).offset);
  } catch (error) {
    if (error instanceof SandgateError && error.reason === "UPLOAD_NOT_FOUND") return 0;
    throw error;
  }
}

async function* frames(
  target: Target,
  files: readonly UploadFile[],
  sent: Sent[],
  resumed: { uploadId: string; offset: number } = { uploadId: "", offset: 0 },
): AsyncGenerator<UploadMessage> {
  const { uploadId, offset } = resumed;
  for (const { path, source, mode, createOnly, progress } of files) {
    const header = {
      ...target,
      path,
      uploadId,
      offset: BigInt(offset),
      createOnly: createOnly ?? false,
      ...(mode === undefined ? {} : { mode }),
    };
    const hash = createHash("sha256");
    const whole = wholeOf(source);
    let file: Sent;
    if (whole !== undefined) {
      file = { size: whole.length, sha256: hash.update(whole).digest() };
      const known = { size: BigInt(file.size), sha256: file.sha256 };
      yield { payload: { case: "header", value: { ...header, ...known } } };
      let done = offset;
      for (const chunk of pieces(whole.subarray(offset))) {
        yield { payload: { case: "chunk", value: chunk } };
        done += chunk.length;
        progress?.(done);
      }
    } else {
      const counted = { size: 0 };
      const chunks = streamed(source, hash, offset, counted);
      try {
        // Read before its header is sent: a source that cannot be opened sends nothing.
        let next = await chunks.next();
        yield { payload: { case: "header", value: header } };
        for (; !next.done; next = await chunks.next()) {
          yield { payload: { case: "chunk", value: next.value } };
          progress?.(counted.size);
        }
      } finally {
        await chunks.return(undefined);
      }
      file = { size: counted.size, sha256: hash.digest() };
    }
    sent.push(file);
    // The server writes no file without it. Node ends a cancelled stream as if it
    // were complete.
    yield { payload: { case: "trailer", value: { size: BigInt(file.size), sha256: file.sha256 } } };
  }
}

/** Reads a source to its end, hashes all of it and yields what follows the offset. */
async function* streamed(
  source: Source,
  hash: Hash,
  offset: number,
  counted: { size: number },
): AsyncGenerator<Uint8Array> {
  const stream = typeof source === "function" ? source() : (source as AsyncIterable<Uint8Array>);
  for await (const part of stream) {
    // Whatever has no length would vanish.
    if (!types.isUint8Array(part)) throw refused(part);
    for (const chunk of pieces(part)) {
      hash.update(chunk);
      const skip = Math.max(0, offset - counted.size);
      counted.size += chunk.length;
      if (skip < chunk.length) yield chunk.subarray(skip);
    }
  }
}

function refused(part: unknown): InvalidRequestError {
  const got = part === null ? "null" : typeof part;
  return new InvalidRequestError(`the source must yield Uint8Array, got ${got}`, {
    code: "INVALID_ARGUMENT",
  });
}

function* pieces(bytes: Uint8Array): Generator<Uint8Array> {
  for (let start = 0; start < bytes.length; start += CHUNK_BYTES) {
    yield bytes.subarray(start, start + CHUNK_BYTES);
  }
}

function wholeOf(source: Source): Uint8Array | undefined {
  if (typeof source === "string") return new TextEncoder().encode(source);
  return source instanceof Uint8Array ? source : undefined;
}

/** True when a file can be sent twice with the same effect. */
function isRepeatable({ source, createOnly }: UploadFile): boolean {
  return createOnly !== true && (wholeOf(source) !== undefined || typeof source === "function");
}

/** True when a source can be read again, and may be too large to be sent again. */
function isLarge(source: Source): boolean {
  if (typeof source === "function") return true;
  return (typeof source === "string" || source instanceof Uint8Array) && source.length > RESUME_ABOVE;
}

/**
 * True when the other side still has to do with a stream of this very upload that
 * broke: it has not noticed that yet, or did so a moment ago.
 */
function isBehind(error: unknown): boolean {
  if (!(error instanceof SandgateError)) return false;
  return error.reason === "UPLOAD_BUSY" || error.reason === "UPLOAD_OFFSET_MISMATCH";
}

function resultsOf(reply: UploadResponse, count: number): UploadResultMessage[] {
  const { results } = reply;
  if (results.length === count) return results;
  throw new InternalError(`the server broke the protocol: ${results.length} results for ${count} files`, {
    code: "DATA_LOSS",
  });
}

function resultOf(
  path: string,
  result: UploadResultMessage | undefined,
  own: Sent | undefined,
): UploadResult {
  if (result === undefined) throw new FileError(`${path} has no result`, { code: "DATA_LOSS" });
  const plain: UploadResult = { path, size: Number(result.size), sha256: result.sha256 };
  if (result.error !== undefined) plain.error = fileError(path, result.error);
  else if (own === undefined || plain.size !== own.size || !own.sha256.equals(result.sha256)) {
    plain.error = mismatch(path);
  }
  return plain;
}
