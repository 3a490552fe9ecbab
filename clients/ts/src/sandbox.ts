/** One sandbox: its commands and files. */

import {
  type AttachOptions,
  bytes,
  type Command,
  type ExecuteOptions,
  executeRequest,
  followUntil,
  type ProcessEvent,
  type ProcessInfo,
  processInfo,
  type SignalScope,
  scopeValue,
} from "./command.js";
import { InternalError } from "./errors.js";
import {
  type DownloadOptions,
  type DownloadResult,
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
  type Source,
  searchResult,
  type UploadFile,
  type UploadOptions,
  type UploadResult,
  type WriteOptions,
  type WriteResult,
} from "./files.js";
import { PatternSyntax } from "./gen/sandbox/v1/sandbox_search_pb.js";
import { SandboxService } from "./gen/sandbox/v1/sandbox_service_pb.js";
import { count } from "./numbers.js";
import { follow } from "./process.js";
import { Collector, type Result } from "./result.js";
import { download, downloadStream, type Target } from "./transfer.js";
import { begun, type CallOptions, type Transport } from "./transport.js";
import { upload, uploadOne } from "./upload.js";
import {
  type AccessPolicy,
  defined,
  type HandleFacts,
  required,
  type SandboxInfo,
  sandboxInfo,
} from "./values.js";

const rpc = SandboxService.method;

const STDIN_CHUNK_BYTES = 256 << 10;

/**
 * A handle of one sandbox; it holds no connection of its own. It is made by
 * {@link Client.create}, {@link Client.get} and {@link Client.sandbox}.
 *
 * Every method rejects with a {@link SandgateError}: SandboxNotFoundError when the
 * sandbox is not there, SandboxReplacedError when it lost its disk and processes,
 * UnavailableError when the server or the sandbox cannot be reached now.
 */
export class Sandbox {
  /** The sandbox's id. */
  readonly id: string;
  /** True when {@link Client.create} made it now, false when it was there already. */
  readonly created: boolean;
  readonly #transport: Transport;
  readonly #access: AccessPolicy | undefined;
  #incarnation: string;

  /** @internal */
  constructor(
    transport: Transport,
    id: string,
    { incarnation = "", created = false, access }: HandleFacts = {},
  ) {
    this.#transport = transport;
    this.id = id;
    this.#incarnation = incarnation;
    this.created = created;
    this.#access = access;
  }

  /**
   * The incarnation that every call expects; another one ends the call with
   * SandboxReplacedError, never in an empty place. Empty: any. {@link resume} changes it.
   */
  get incarnation(): string {
    return this.#incarnation;
  }

  /**
   * Returns a handle of the same sandbox whose commands and file calls may touch
   * less. The server enforces it; a call can narrow the sandbox's own policy, never
   * widen it.
   */
  narrowed(access: AccessPolicy): Sandbox {
    const { incarnation, created } = this;
    return new Sandbox(this.#transport, this.id, { incarnation, created, access });
  }

  /** Asks for the sandbox's state. It does not count as activity. */
  async info(call: CallOptions = {}): Promise<SandboxInfo> {
    const { sandbox } = await this.#transport.repeatable(rpc.getSandbox, { sandboxId: this.id }, call);
    return sandboxInfo(required(sandbox));
  }

  /**
   * Runs a command, waits for its end and returns its output and how it ended. A
   * command that ran is not an error, whatever its exit code. The output is held
   * in memory: bound it by `maxOutputBytes`, or use {@link executeStream}.
   *
   * @param command A script for `/bin/sh -c`, or a program and its arguments.
   * @throws CommandStartError when it could not be started; CallCancelledError when
   * `options.signal` aborted: the command and its descendants are killed;
   * ConnectionLostError when the connection did not come back.
   */
  async execute(command: Command, options: ExecuteOptions = {}): Promise<Result> {
    const collector = new Collector();
    for await (const event of this.executeStream(command, options)) collector.add(event);
    return required(collector.result);
  }

  /**
   * Runs a command and yields its events as they arrive: `started`, output and
   * gaps, `exited`. The client reconnects transparently. Leaving the iteration
   * early kills the command and its descendants, unless it is detached.
   *
   * @throws as {@link execute}.
   */
  executeStream(
    command: Command,
    options: ExecuteOptions = {},
  ): AsyncGenerator<ProcessEvent, void, undefined> {
    const access = options.access ?? this.#access;
    const execute = executeRequest(this.id, this.incarnation, command, {
      ...options,
      ...defined({ access }),
    });
    return follow(this.#transport, { execute }, options);
  }

  /**
   * Replays a running or ended command's output from a position and goes on live.
   * Events are those of {@link executeStream}; leaving early does nothing to the
   * command.
   *
   * @throws ExecNotFoundError when there is no such command.
   */
  attach(execId: string, options: AttachOptions = {}): AsyncGenerator<ProcessEvent, void, undefined> {
    const attach = {
      ...this.#target,
      execId,
      position: count("position", options.position ?? 0),
      followUntil: followUntil(options.untilStreamsEnd),
    };
    return follow(this.#transport, { attach }, options);
  }

  /**
   * Appends to the standard input of a command that was started with `stdinOpen`
   * or a terminal, and returns the offset of the next byte.
   *
   * @param offset Bytes that were sent before, those of `stdin` included.
   * @param data Of any size; it is sent in pieces.
   * @throws ExecStateError when standard input is closed or the offset is wrong.
   */
  async writeStdin(
    execId: string,
    data: Uint8Array | string,
    { offset, eof = false, ...call }: { offset: number; eof?: boolean } & CallOptions,
  ): Promise<number> {
    count("offset", offset);
    const options = begun(call);
    let rest = bytes(data);
    // At least one message, so that an empty one can carry the end. A command may
    // take less than a message holds: what it took decides what comes next.
    for (let at = offset; ; ) {
      const piece = rest.subarray(0, STDIN_CHUNK_BYTES);
      const last = piece.length === rest.length;
      const request = { ...this.#target, execId, offset: BigInt(at), data: piece, eof: eof && last };
      const next = Number((await this.#transport.repeatable(rpc.writeStdin, request, options)).nextOffset);
      // Beyond the piece: an earlier try of the call wrote it, and more.
      const taken = Math.min(next - at, piece.length);
      if (taken < 0 || (piece.length > 0 && taken === 0)) {
        throw new InternalError(`standard input went from offset ${at} to ${next}`, { code: "DATA_LOSS" });
      }
      if (last && taken === piece.length) return next;
      rest = rest.subarray(taken);
      at += taken;
    }
  }

  /**
   * Sends a signal by name, such as "SIGTERM". Returns false when there was nobody
   * left to signal.
   *
   * @param scope Default: "TREE", every descendant.
   */
  async signal(
    execId: string,
    signal: string,
    scope: SignalScope = "TREE",
    call: CallOptions = {},
  ): Promise<boolean> {
    const request = { ...this.#target, execId, signal, scope: scopeValue(scope) };
    return (await this.#transport.once(rpc.signalProcess, request, call)).delivered;
  }

  /** Sets the size of a command's terminal, in characters. */
  async resizeTerminal(
    execId: string,
    size: { rows: number; columns: number },
    call: CallOptions = {},
  ): Promise<void> {
    await this.#transport.repeatable(rpc.resizeTerminal, { ...this.#target, execId, size }, call);
  }

  /** Lists the commands that run, the oldest first; with `ended`, also those that are kept. */
  async processes({
    ended = false,
    ...call
  }: { ended?: boolean } & CallOptions = {}): Promise<ProcessInfo[]> {
    const request = { ...this.#target, includeEnded: ended };
    const { processes } = await this.#transport.repeatable(rpc.listProcesses, request, call);
    return processes.map(processInfo);
  }

  /**
   * Writes files over one stream, each of them whole or not at all, and makes their
   * parents. One result per file, in order; a single file's failure is in its result.
   * The server takes at most 10 000 files in a call, and fails the call beyond that.
   */
  upload(files: readonly UploadFile[], call: CallOptions = {}): Promise<UploadResult[]> {
    return upload(this.#transport, this.#target, files, call);
  }

  /**
   * Writes one file, as {@link uploadFile}; its failure is in the result.
   *
   * @throws SandgateError when the sandbox could not be reached.
   */
  uploadResult(file: UploadFile, call: CallOptions = {}): Promise<UploadResult> {
    return uploadOne(this.#transport, this.#target, file, call);
  }

  /**
   * Writes one file. Where its source can be read again (bytes, text, a function that
   * opens a stream), a broken connection is mended: what arrived before is kept, and
   * only the rest is sent.
   *
   * @throws FileError or InvalidRequestError when it could not be written.
   */
  async uploadFile(
    path: string,
    source: Source,
    { mode, createOnly, progress, ...call }: UploadOptions = {},
  ): Promise<UploadResult> {
    const file = { path, source, ...defined({ mode, createOnly, progress }) };
    const result = await this.uploadResult(file, call);
    if (result.error !== undefined) throw result.error;
    return result;
  }

  /** Reads files into memory. One result per path, in order; a failure is in its result. */
  download(paths: readonly string[], call: CallOptions = {}): Promise<DownloadResult[]> {
    return download(this.#transport, this.#target, paths, call);
  }

  /**
   * Reads one file, or a part of it, into memory.
   *
   * @throws FileError or InvalidRequestError when it could not be read.
   */
  async downloadFile(path: string, options: DownloadOptions = {}): Promise<Uint8Array> {
    const chunks: Uint8Array[] = [];
    for await (const chunk of this.downloadStream(path, options)) chunks.push(chunk);
    return Buffer.concat(chunks);
  }

  /**
   * Yields one file, or a part of it, in pieces, in bounded memory. Its SHA-256 is
   * checked after the last piece.
   *
   * @throws as {@link downloadFile}.
   */
  downloadStream(path: string, options: DownloadOptions = {}): AsyncGenerator<Uint8Array, void, undefined> {
    return downloadStream(this.#transport, this.#target, path, options);
  }

  /** Describes one file, directory or link, without following it. */
  async statFile(path: string, call: CallOptions = {}): Promise<FileInfo> {
    const { info } = await this.#transport.repeatable(rpc.statFile, { ...this.#target, path }, call);
    return fileInfo(required(info));
  }

  /** Returns the entries of a directory, sorted by name. */
  async listDirectory(path: string, call: CallOptions = {}): Promise<FileInfo[]> {
    const entries: FileInfo[] = [];
    let pageToken = "";
    do {
      const request = { ...this.#target, path, pageToken };
      const page = await this.#transport.repeatable(rpc.listDirectory, request, call);
      entries.push(...page.entries.map(fileInfo));
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
    return entries;
  }

  /**
   * Makes a directory. Returns false when it was there already.
   *
   * @param options `parents`: also make missing parents, and an existing directory
   * is no error; default true. `mode`: permission bits; default 0o755.
   */
  async makeDirectory(
    path: string,
    { parents = true, mode, ...call }: { parents?: boolean; mode?: number } & CallOptions = {},
  ): Promise<boolean> {
    const request = { ...this.#target, path, parents, ...defined({ mode }) };
    return (await this.#transport.once(rpc.makeDirectory, request, call)).created;
  }

  /** Renames within one file system. An existing file is replaced only with `overwrite`. */
  async moveFile(
    source: string,
    destination: string,
    { overwrite = false, ...call }: { overwrite?: boolean } & CallOptions = {},
  ): Promise<void> {
    await this.#transport.once(rpc.moveFile, { ...this.#target, source, destination, overwrite }, call);
  }

  /**
   * Removes a file, a link or an empty directory. Returns false when there was
   * nothing.
   *
   * @param options `recursive`: also a directory that is not empty; default false.
   * `allowMissing`: a missing path is no error; default false.
   */
  async removeFile(
    path: string,
    {
      recursive = false,
      allowMissing = false,
      ...call
    }: { recursive?: boolean; allowMissing?: boolean } & CallOptions = {},
  ): Promise<boolean> {
    const request = { ...this.#target, path, recursive, allowMissing };
    return (await this.#transport.once(rpc.removeFile, request, call)).removed;
  }

  /** Reads a window of lines of a text file. */
  async readLines(
    path: string,
    { offset = 0, limit, maxBytes = 0, ...call }: ReadOptions & CallOptions = {},
  ): Promise<Lines> {
    const request = {
      ...this.#target,
      path,
      offset: count("offset", offset),
      maxBytes: count("maxBytes", maxBytes),
      ...(limit === undefined ? {} : { limit: count("limit", limit) }),
    };
    return lines(await this.#transport.repeatable(rpc.readLines, request, call));
  }

  /** Writes a small file in one message, atomically, with its parents. Larger ones: {@link uploadFile}. */
  async writeFile(
    path: string,
    content: Uint8Array | string,
    { mode, createOnly = false, ...call }: WriteOptions & CallOptions = {},
  ): Promise<WriteResult> {
    const request = {
      ...this.#target,
      path,
      content: bytes(content),
      createOnly,
      ...defined({ mode }),
    };
    // To write the same bytes twice does no harm; to create a file twice is an error.
    const { size, sha256, created } = createOnly
      ? await this.#transport.once(rpc.writeFile, request, call)
      : await this.#transport.repeatable(rpc.writeFile, request, call);
    return { size: Number(size), sha256, created };
  }

  /**
   * Replaces text in a regular UTF-8 file, atomically.
   *
   * @throws FileError with the reason EDIT_TEXT_NOT_FOUND or EDIT_NOT_UNIQUE.
   */
  async editFile(
    path: string,
    oldText: string,
    newText: string,
    { replaceAll = false, allowEmptyOld = false, ...call }: EditOptions & CallOptions = {},
  ): Promise<EditResult> {
    const texts = { oldText: bytes(oldText), newText: bytes(newText) };
    const request = { ...this.#target, path, ...texts, replaceAll, allowEmptyOld };
    const { occurrences, size } = await this.#transport.once(rpc.editFile, request, call);
    return { occurrences: Number(occurrences), size: Number(size) };
  }

  /** Finds lines below a directory, or in one file. */
  async searchFiles(
    path: string,
    pattern: string,
    options: SearchOptions & CallOptions = {},
  ): Promise<SearchResult> {
    const { regexp = false, maxFileBytes = 0, signal, timeoutMs, metadata, ...rest } = options;
    const syntax = regexp ? PatternSyntax.RE2 : PatternSyntax.LITERAL;
    const most = count("maxFileBytes", maxFileBytes);
    const request = { ...this.#target, ...rest, path, pattern, syntax, maxFileBytes: most };
    const call = defined({ signal, timeoutMs, metadata });
    return searchResult(await this.#transport.repeatable(rpc.searchFiles, request, call));
  }

  /** Finds files below a directory by their name. */
  async globFiles(
    path: string,
    pattern: string,
    {
      shallow = false,
      directories = false,
      links = false,
      maxResults = 0,
      ...call
    }: GlobOptions & CallOptions = {},
  ): Promise<GlobResult> {
    const request = {
      ...this.#target,
      path,
      pattern,
      barePatternShallow: shallow,
      includeDirectories: directories,
      includeLinks: links,
      maxResults,
    };
    return globResult(await this.#transport.repeatable(rpc.globFiles, request, call));
  }

  /**
   * Ends the sandbox and everything in it. Returns false when it was gone already.
   * Only the incarnation that this handle expects is deleted.
   */
  async delete(call: CallOptions = {}): Promise<boolean> {
    const request = { sandboxId: this.id, allowMissing: true, expectedIncarnation: this.incarnation };
    return (await this.#transport.repeatable(rpc.deleteSandbox, request, call)).deleted;
  }

  /**
   * Stops its processes and keeps its disk, as far as the provider can.
   *
   * @throws UnsupportedError when the server's provider cannot suspend.
   */
  async suspend(call: CallOptions = {}): Promise<SandboxInfo> {
    const reply = await this.#transport.repeatable(rpc.suspendSandbox, { sandboxId: this.id }, call);
    return sandboxInfo(required(reply.sandbox));
  }

  /**
   * Brings it back from being suspended; returns when a command can run. It has lost
   * its processes, so it is another incarnation, which this handle expects from now on.
   */
  async resume(call: CallOptions = {}): Promise<SandboxInfo> {
    const reply = await this.#transport.repeatable(rpc.resumeSandbox, { sandboxId: this.id }, call);
    const info = sandboxInfo(required(reply.sandbox));
    if (this.#incarnation !== "") this.#incarnation = info.incarnation;
    return info;
  }

  /** {@link delete}, where this handle's {@link Client.create} made the sandbox; for `await using`. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.created) await this.delete();
  }

  get #target(): Target {
    const access = this.#access;
    return { sandboxId: this.id, expectedIncarnation: this.incarnation, ...defined({ access }) };
  }
}
