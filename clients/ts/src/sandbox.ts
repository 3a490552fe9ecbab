/** One sandbox: its commands and files. */

import type { CallOptions } from "./call.js";
import {
  type AttachOptions,
  type Command,
  type ExecuteOptions,
  executeRequest,
  followUntil,
  type ProcessEvent,
  type ProcessInfo,
  processInfo,
  type SignalScope,
  scopeValue,
  type TerminalSize,
} from "./command.js";
import { type ConnectOptions, connect, type PortSocket } from "./connect.js";
import * as fileCalls from "./fileCalls.js";
import type {
  DownloadOptions,
  DownloadResult,
  EditOptions,
  EditResult,
  FileInfo,
  GlobOptions,
  GlobResult,
  Lines,
  ReadOptions,
  SearchOptions,
  SearchResult,
  Source,
  UploadFile,
  UploadOptions,
  UploadResult,
  WriteOptions,
  WriteResult,
} from "./files.js";
import { SandboxService } from "./gen/sandbox/v1/sandbox_service_pb.js";
import { count } from "./numbers.js";
import { follow } from "./process.js";
import { Collector, type Result } from "./result.js";
import { writeStdin } from "./stdin.js";
import { download, downloadFile, downloadStream, type Target } from "./transfer.js";
import type { Transport } from "./transport.js";
import { upload, uploadOne } from "./upload.js";
import { getUrl, type SandboxUrl, type UrlOptions } from "./url.js";
import {
  type AccessPolicy,
  defined,
  type HandleFacts,
  required,
  type SandboxInfo,
  sandboxInfo,
} from "./values.js";

const rpc = SandboxService.method;

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
   * Returns a handle whose commands and file calls have a narrower access policy. The
   * server enforces it; a policy never widens the sandbox's own.
   */
  narrowed(access: AccessPolicy): Sandbox {
    const { incarnation, created } = this;
    return new Sandbox(this.#transport, this.id, { incarnation, created, access });
  }

  /** Returns the sandbox as it is now. Does not count as activity. */
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
  writeStdin(
    execId: string,
    data: Uint8Array | string,
    options: { offset: number; eof?: boolean } & CallOptions,
  ): Promise<number> {
    return writeStdin(this.#transport, this.#target, execId, data, options);
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
  async resizeTerminal(execId: string, size: TerminalSize, call: CallOptions = {}): Promise<void> {
    await this.#transport.repeatable(rpc.resizeTerminal, { ...this.#target, execId, size }, call);
  }

  /** Lists the running commands, the oldest first; with `includeEnded`, also ended ones that are retained. */
  async processes(options: { includeEnded?: boolean } & CallOptions = {}): Promise<ProcessInfo[]> {
    const { includeEnded = false, ...call } = options;
    const request = { ...this.#target, includeEnded };
    const { processes } = await this.#transport.repeatable(rpc.listProcesses, request, call);
    return processes.map(processInfo);
  }

  /** Reads a window of lines of a text file. */
  read(path: string, options: ReadOptions & CallOptions = {}): Promise<Lines> {
    return fileCalls.read(this.#transport, this.#target, path, options);
  }

  /** Writes a small file in one message, atomically, with its parents. Larger ones: {@link uploadFile}. */
  write(
    path: string,
    content: Uint8Array | string,
    options: WriteOptions & CallOptions = {},
  ): Promise<WriteResult> {
    return fileCalls.write(this.#transport, this.#target, path, content, options);
  }

  /**
   * Replaces text in a regular UTF-8 file, atomically.
   *
   * @throws FileError with the reason EDIT_TEXT_NOT_FOUND or EDIT_NOT_UNIQUE.
   */
  edit(
    path: string,
    oldText: string,
    newText: string,
    options: EditOptions & CallOptions = {},
  ): Promise<EditResult> {
    return fileCalls.edit(this.#transport, this.#target, path, oldText, newText, options);
  }

  /** Returns the entries of a directory, sorted by name. */
  list(path: string, call: CallOptions = {}): Promise<FileInfo[]> {
    return fileCalls.list(this.#transport, this.#target, path, call);
  }

  /** Finds files below a directory by their name. */
  glob(path: string, pattern: string, options: GlobOptions & CallOptions = {}): Promise<GlobResult> {
    return fileCalls.glob(this.#transport, this.#target, path, pattern, options);
  }

  /** Finds lines below a directory, or in one file. */
  search(path: string, pattern: string, options: SearchOptions & CallOptions = {}): Promise<SearchResult> {
    return fileCalls.search(this.#transport, this.#target, path, pattern, options);
  }

  /** Describes one file, directory or link, without following it. */
  stat(path: string, call: CallOptions = {}): Promise<FileInfo> {
    return fileCalls.stat(this.#transport, this.#target, path, call);
  }

  /**
   * Makes a directory. Returns false when it was there already.
   *
   * @param options `parents`: also make missing parents, and an existing directory
   * is no error; default true. `mode`: permission bits; default 0o755.
   */
  makeDirectory(
    path: string,
    options: { parents?: boolean; mode?: number } & CallOptions = {},
  ): Promise<boolean> {
    return fileCalls.makeDirectory(this.#transport, this.#target, path, options);
  }

  /** Renames within one file system. An existing file is replaced only with `overwrite`. */
  move(
    source: string,
    destination: string,
    options: { overwrite?: boolean } & CallOptions = {},
  ): Promise<void> {
    return fileCalls.move(this.#transport, this.#target, source, destination, options);
  }

  /**
   * Removes a file, a link or an empty directory. Returns false when there was
   * nothing.
   *
   * @param options `recursive`: also a directory that is not empty; default false.
   * `allowMissing`: a missing path is no error; default false.
   */
  remove(
    path: string,
    options: { recursive?: boolean; allowMissing?: boolean } & CallOptions = {},
  ): Promise<boolean> {
    return fileCalls.remove(this.#transport, this.#target, path, options);
  }

  /**
   * Writes files over one stream, each completely or not at all, and creates parents.
   * Returns one result per file, in order, with its error. At most 10 000 files.
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
   * Writes one file. If its source can be read again (bytes, text, a function that opens
   * a stream), the upload resumes after a broken connection: only the rest is sent.
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
  downloadFile(path: string, options: DownloadOptions = {}): Promise<Uint8Array> {
    return downloadFile(this.#transport, this.#target, path, options);
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

  /**
   * Connects to a TCP port that a program in the sandbox listens on. Closing the client
   * ends its connections.
   *
   * @throws PortClosedError when no program accepts connections on the port;
   * QuotaExceededError when the sandbox has too many open connections.
   */
  connect(port: number, options: ConnectOptions = {}): Promise<PortSocket> {
    return connect(this.#transport, this.#target, port, options);
  }

  /**
   * Returns a URL by which browsers and HTTP clients reach a port or a file. Nothing need
   * listen on the port yet, and the file need not exist. A request for the URL of a
   * suspended sandbox resumes it.
   *
   * @param target a port, or the absolute path of a file.
   * @throws UnsupportedError when the server has no listener for URLs.
   */
  getUrl(target: number | string, options: UrlOptions = {}): Promise<SandboxUrl> {
    return getUrl(this.#transport, this.#target, target, options);
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
