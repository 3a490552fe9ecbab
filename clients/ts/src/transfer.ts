/** Moves file content: frames, in pieces of 256 KiB, checked by SHA-256. */

import { createHash } from "node:crypto";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { FileError, InternalError, type SandgateError } from "./errors.js";
import {
  type DownloadOptions,
  type DownloadResult,
  type FileInfo,
  fileError,
  fileInfo,
  type UploadFile,
  type UploadResult,
} from "./files.js";
import type {
  DownloadResponse,
  DownloadTrailer,
  UploadRequestSchema,
  UploadResponse,
} from "./gen/sandbox/v1/sandbox_files_pb.js";
import { SandboxService } from "./gen/sandbox/v1/sandbox_service_pb.js";
import type { CallOptions, Transport } from "./transport.js";

const CHUNK_BYTES = 256 << 10;

type UploadMessage = MessageInitShape<typeof UploadRequestSchema>;

/** Which sandbox, and which incarnation of it. */
export interface Target {
  sandboxId: string;
  expectedIncarnation: string;
}

/** Uploads files, each whole or not at all; one result per file, in order. */
export async function upload(
  transport: Transport,
  target: Target,
  files: readonly UploadFile[],
  options: CallOptions,
): Promise<UploadResult[]> {
  if (files.length === 0) return [];
  const sent: { size: number; sha256: Buffer }[] = [];
  const reply = await transport.clientStream(
    SandboxService.method.upload,
    frames(target, files, sent),
    options,
  );
  return uploadResults(files, sent, reply);
}

async function* frames(
  target: Target,
  files: readonly UploadFile[],
  sent: { size: number; sha256: Buffer }[],
): AsyncGenerator<UploadMessage> {
  for (const { path, source, mode, createOnly } of files) {
    const header = {
      ...target,
      path,
      createOnly: createOnly ?? false,
      ...(mode === undefined ? {} : { mode }),
    };
    const whole = typeof source === "string" ? new TextEncoder().encode(source) : source;
    const hash = createHash("sha256");
    let size = 0;
    if (whole instanceof Uint8Array) {
      const sha256 = hash.update(whole).digest();
      size = whole.length;
      yield { payload: { case: "header", value: { ...header, size: BigInt(size), sha256 } } };
      for (const chunk of pieces(whole)) yield { payload: { case: "chunk", value: chunk } };
      sent.push({ size, sha256 });
      continue;
    }
    yield { payload: { case: "header", value: header } };
    for await (const part of whole) {
      for (const chunk of pieces(part)) {
        hash.update(chunk);
        size += chunk.length;
        yield { payload: { case: "chunk", value: chunk } };
      }
    }
    sent.push({ size, sha256: hash.digest() });
  }
}

function* pieces(bytes: Uint8Array): Generator<Uint8Array> {
  for (let start = 0; start < bytes.length; start += CHUNK_BYTES) {
    yield bytes.subarray(start, start + CHUNK_BYTES);
  }
}

function uploadResults(
  files: readonly UploadFile[],
  sent: readonly { size: number; sha256: Buffer }[],
  reply: UploadResponse,
): UploadResult[] {
  if (reply.results.length !== files.length) {
    throw misbehaved(`${reply.results.length} results for ${files.length} files`);
  }
  return reply.results.map((result, index) => {
    const { path = "" } = files[index] ?? {};
    const own = sent[index];
    const plain: UploadResult = { path, size: Number(result.size), sha256: result.sha256 };
    if (result.error !== undefined) plain.error = fileError(path, result.error);
    else if (own === undefined || plain.size !== own.size || !own.sha256.equals(result.sha256)) {
      plain.error = mismatch(path);
    }
    return plain;
  });
}

/** Downloads files into memory, one result per path, in order. */
export async function download(
  transport: Transport,
  target: Target,
  paths: readonly string[],
  options: CallOptions,
): Promise<DownloadResult[]> {
  const results: DownloadResult[] = [];
  let chunks: Uint8Array[] = [];
  for (let start = 0; start < paths.length; start += MAX_ITEMS) {
    const part = paths.slice(start, start + MAX_ITEMS);
    for await (const event of receive(
      transport,
      target,
      part.map((path) => ({ path })),
      options,
    )) {
      if (event.chunk !== undefined) chunks.push(event.chunk);
      if (event.end === undefined) continue;
      const path = part[event.end.index] ?? "";
      const result: DownloadResult = { path, content: Buffer.concat(chunks) };
      if (event.end.info !== undefined) result.info = event.end.info;
      if (event.end.error !== undefined) {
        result.error = event.end.error;
        result.content = new Uint8Array(0);
      }
      results.push(result);
      chunks = [];
    }
  }
  return results;
}

/** Most items of one DownloadRequest. */
const MAX_ITEMS = 1_000;

/**
 * Yields a file's content in pieces, as the caller takes them.
 *
 * @throws FileError when the file cannot be read; FILE_CHECKSUM_MISMATCH, after the
 * last piece, when the bytes were changed on the way.
 */
export async function* downloadStream(
  transport: Transport,
  target: Target,
  path: string,
  options: DownloadOptions,
): AsyncGenerator<Uint8Array, void, undefined> {
  const { offset = 0, limit, signal } = options;
  const item = { path, offset: BigInt(offset), ...(limit === undefined ? {} : { limit: BigInt(limit) }) };
  for await (const event of receive(transport, target, [item], signal === undefined ? {} : { signal })) {
    if (event.chunk !== undefined) yield event.chunk;
    if (event.end?.error !== undefined) throw event.end.error;
  }
}

/** One step of a download: a piece of the current file, or its end. */
interface Step {
  chunk?: Uint8Array;
  end?: { index: number; info?: FileInfo; error?: SandgateError };
}

async function* receive(
  transport: Transport,
  target: Target,
  items: readonly { path: string; offset?: bigint; limit?: bigint }[],
  options: CallOptions,
): AsyncGenerator<Step> {
  let current = 0;
  let info: FileInfo | undefined;
  let hash = createHash("sha256");
  let size = 0;
  const request = { ...target, items: [...items] };
  for await (const { payload } of transport.serverStream(SandboxService.method.download, request, options)) {
    switch (payload.case) {
      case "header":
        expect(payload, current, info === undefined);
        info = payload.value.info === undefined ? undefined : fileInfo(payload.value.info);
        break;
      case "chunk":
        hash.update(payload.value);
        size += payload.value.length;
        yield { chunk: payload.value };
        break;
      case "trailer": {
        expect(payload, current, true);
        const error = trailerError(payload.value, items[current]?.path ?? "", size, hash.digest());
        yield {
          end: {
            index: current,
            ...(info === undefined ? {} : { info }),
            ...(error === undefined ? {} : { error }),
          },
        };
        current++;
        info = undefined;
        hash = createHash("sha256");
        size = 0;
      }
    }
  }
  if (current !== items.length) throw misbehaved(`${current} files of ${items.length} came`);
}

function expect(
  payload: Extract<DownloadResponse["payload"], { case: "header" | "trailer" }>,
  index: number,
  inOrder: boolean,
): void {
  if (payload.value.index !== index || !inOrder) throw misbehaved(`${payload.case} came in the wrong place`);
}

function trailerError(
  trailer: DownloadTrailer,
  path: string,
  size: number,
  sha256: Buffer,
): SandgateError | undefined {
  if (trailer.error !== undefined) return fileError(path, trailer.error);
  return Number(trailer.size) === size && sha256.equals(trailer.sha256) ? undefined : mismatch(path);
}

function mismatch(path: string): FileError {
  return new FileError(`the bytes of ${path} were changed on the way`, {
    code: "DATA_LOSS",
    reason: "FILE_CHECKSUM_MISMATCH",
    metadata: { path },
  });
}

function misbehaved(what: string): InternalError {
  return new InternalError(`the server broke the protocol: ${what}`, { code: "DATA_LOSS" });
}
