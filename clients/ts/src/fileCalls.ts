/** The file calls of a sandbox: requests, and results from replies. */

import type { CallOptions } from "./call.js";
import { bytes } from "./command.js";
import {
  type EditOptions,
  type EditResult,
  type FileInfo,
  fileInfo,
  type GlobOptions,
  type GlobResult,
  globResult,
  type Lines,
  lines,
  type ReadOptions,
  type SearchOptions,
  type SearchResult,
  searchResult,
  type WriteOptions,
  type WriteResult,
} from "./files.js";
import { PatternSyntax } from "./gen/sandbox/v1/sandbox_search_pb.js";
import { SandboxService } from "./gen/sandbox/v1/sandbox_service_pb.js";
import { count } from "./numbers.js";
import type { Target } from "./transfer.js";
import type { Transport } from "./transport.js";
import { defined, required } from "./values.js";

const rpc = SandboxService.method;

export async function read(
  transport: Transport,
  target: Target,
  path: string,
  { offset = 0, limit, maxBytes = 0, ...call }: ReadOptions & CallOptions,
): Promise<Lines> {
  const request = {
    ...target,
    path,
    offset: count("offset", offset),
    maxBytes: count("maxBytes", maxBytes),
    ...(limit === undefined ? {} : { limit: count("limit", limit) }),
  };
  return lines(await transport.repeatable(rpc.readLines, request, call));
}

export async function write(
  transport: Transport,
  target: Target,
  path: string,
  content: Uint8Array | string,
  { mode, createOnly = false, ...call }: WriteOptions & CallOptions,
): Promise<WriteResult> {
  const request = { ...target, path, content: bytes(content), createOnly, ...defined({ mode }) };
  // Writing the same bytes twice is harmless; creating a file twice is an error.
  const { size, sha256, created } = createOnly
    ? await transport.once(rpc.writeFile, request, call)
    : await transport.repeatable(rpc.writeFile, request, call);
  return { size: Number(size), sha256, created };
}

export async function edit(
  transport: Transport,
  target: Target,
  path: string,
  oldText: string,
  newText: string,
  { replaceAll = false, allowEmptyOld = false, ...call }: EditOptions & CallOptions,
): Promise<EditResult> {
  const texts = { oldText: bytes(oldText), newText: bytes(newText) };
  const request = { ...target, path, ...texts, replaceAll, allowEmptyOld };
  const { occurrences, size } = await transport.once(rpc.editFile, request, call);
  return { occurrences: Number(occurrences), size: Number(size) };
}

export async function list(
  transport: Transport,
  target: Target,
  path: string,
  call: CallOptions,
): Promise<FileInfo[]> {
  const entries: FileInfo[] = [];
  let pageToken = "";
  do {
    const page = await transport.repeatable(rpc.listDirectory, { ...target, path, pageToken }, call);
    entries.push(...page.entries.map(fileInfo));
    pageToken = page.nextPageToken;
  } while (pageToken !== "");
  return entries;
}

export async function glob(
  transport: Transport,
  target: Target,
  path: string,
  pattern: string,
  options: GlobOptions & CallOptions,
): Promise<GlobResult> {
  const { shallow = false, signal, timeoutMs, metadata, ...rest } = options;
  const request = { ...target, ...rest, path, pattern, barePatternShallow: shallow };
  const call = defined({ signal, timeoutMs, metadata });
  return globResult(await transport.repeatable(rpc.globFiles, request, call));
}

export async function search(
  transport: Transport,
  target: Target,
  path: string,
  pattern: string,
  options: SearchOptions & CallOptions,
): Promise<SearchResult> {
  const { regexp = false, maxFileBytes = 0, signal, timeoutMs, metadata, ...rest } = options;
  const syntax = regexp ? PatternSyntax.RE2 : PatternSyntax.LITERAL;
  const most = count("maxFileBytes", maxFileBytes);
  const request = { ...target, ...rest, path, pattern, syntax, maxFileBytes: most };
  const call = defined({ signal, timeoutMs, metadata });
  return searchResult(await transport.repeatable(rpc.searchFiles, request, call));
}

export async function stat(
  transport: Transport,
  target: Target,
  path: string,
  call: CallOptions,
): Promise<FileInfo> {
  const { info } = await transport.repeatable(rpc.statFile, { ...target, path }, call);
  return fileInfo(required(info));
}

export async function makeDirectory(
  transport: Transport,
  target: Target,
  path: string,
  { parents = true, mode, ...call }: { parents?: boolean; mode?: number } & CallOptions,
): Promise<boolean> {
  const request = { ...target, path, parents, ...defined({ mode }) };
  return (await transport.once(rpc.makeDirectory, request, call)).created;
}

export async function move(
  transport: Transport,
  target: Target,
  source: string,
  destination: string,
  { overwrite = false, ...call }: { overwrite?: boolean } & CallOptions,
): Promise<void> {
  await transport.once(rpc.moveFile, { ...target, source, destination, overwrite }, call);
}

export async function remove(
  transport: Transport,
  target: Target,
  path: string,
  options: { recursive?: boolean; allowMissing?: boolean } & CallOptions,
): Promise<boolean> {
  const { recursive = false, allowMissing = false, ...call } = options;
  return (await transport.once(rpc.removeFile, { ...target, path, recursive, allowMissing }, call)).removed;
}
