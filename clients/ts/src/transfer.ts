/** Reads files: frames, checked by SHA-256, resumed where a connection breaks. */

import { createHash } from "node:crypto";
import { type CallOptions, withDeadline } from "./call.js";
import { FileError, InternalError, type SandgateError } from "./errors.js";
import { type DownloadOptions, type DownloadResult, type FileInfo, fileError, fileInfo } from "./files.js";
import type { DownloadResponse, DownloadTrailer } from "./gen/sandbox/v1/sandbox_files_pb.js";
import { SandboxService } from "./gen/sandbox/v1/sandbox_service_pb.js";
import { count } from "./numbers.js";
import { isBreak, Retry } from "./retry.js";
import type { Transport } from "./transport.js";
import type { AccessPolicy } from "./values.js";

/** Which sandbox, and which incarnation of it. */
export interface Target {
  sandboxId: string;
  expectedIncarnation: string;
  /** Narrows the sandbox's policy. */
  access?: AccessPolicy;
}

/** Downloads files into memory, one result per path, in order. */
export async function download(
  transport: Transport,
  target: Target,
  paths: readonly string[],
  options: CallOptions,
): Promise<DownloadResult[]> {
  const results: DownloadResult[] = [];
  const call = withDeadline(options);
  const retry = new Retry(() => transport.retryWindow(options));
  while (results.length < paths.length) {
    const part = paths.slice(results.length, results.length + MAX_ITEMS);
    const items = part.map((path) => ({ path }));
    let chunks: Uint8Array[] = [];
    try {
      for await (const event of receive(transport, target, items, call)) {
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
        retry.progress();
      }
    } catch (error) {
      if (!isBreak(error) || !(await transport.again(retry, error, options.signal))) throw error;
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
  const { offset = 0, limit, progress, ...bounds } = options;
  const call = withDeadline(bounds);
  const retry = new Retry(() => transport.retryWindow(bounds));
  const start = count("offset", offset);
  const most = limit === undefined ? undefined : count("limit", limit);
  let got = 0;
  let opened: FileInfo | undefined;
  for (;;) {
    const rest = most === undefined ? {} : { limit: most - BigInt(got) };
    const item = { path, offset: start + BigInt(got), ...rest };
    try {
      for await (const event of receive(transport, target, [item], call)) {
        if (event.info !== undefined) opened = unchanged(path, opened, event.info);
        if (event.chunk !== undefined) {
          got += event.chunk.length;
          retry.progress();
          yield event.chunk;
          progress?.(got, wanted(opened, offset, limit));
        }
        if (event.end?.error !== undefined) throw event.end.error;
      }
      return;
    } catch (error) {
      // All requested bytes arrived, but not the trailer with their hash.
      const whole = limit !== undefined && got >= limit && got > 0;
      if (whole || !isBreak(error) || !(await transport.again(retry, error, call.signal))) throw error;
    }
  }
}

/** Downloads one file, or a part of it, into memory. */
export async function downloadFile(
  transport: Transport,
  target: Target,
  path: string,
  options: DownloadOptions,
): Promise<Uint8Array> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of downloadStream(transport, target, path, options)) chunks.push(chunk);
  return Buffer.concat(chunks);
}

/** How many bytes come in all, as far as that is known. */
function wanted(info: FileInfo | undefined, offset: number, limit = Number.POSITIVE_INFINITY): number {
  return Math.min(Math.max(0, (info?.size ?? 0) - offset), limit);
}

/** Two parts of a file belong together only if it is the same file still. */
function unchanged(path: string, before: FileInfo | undefined, now: FileInfo): FileInfo {
  const same =
    before === undefined ||
    (before.size === now.size && before.modifyTime?.getTime() === now.modifyTime?.getTime());
  if (same) return now;
  throw new FileError(`${path} was changed while it was read`, { code: "ABORTED", metadata: { path } });
}

/** One step of a download: what the current file is, a piece of it, or its end. */
interface Step {
  info?: FileInfo;
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
        if (info !== undefined) yield { info };
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
  if (current !== items.length) throw protocolError(`${current} files of ${items.length} came`);
}

function expect(
  payload: Extract<DownloadResponse["payload"], { case: "header" | "trailer" }>,
  index: number,
  inOrder: boolean,
): void {
  if (payload.value.index !== index || !inOrder)
    throw protocolError(`${payload.case} came in the wrong place`);
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

/** The error of a file whose bytes are not those that were sent. */
export function mismatch(path: string): FileError {
  return new FileError(`the bytes of ${path} were changed on the way`, {
    code: "DATA_LOSS",
    reason: "FILE_CHECKSUM_MISMATCH",
    metadata: { path },
  });
}

function protocolError(what: string): InternalError {
  return new InternalError(`the server broke the protocol: ${what}`, { code: "DATA_LOSS" });
}
