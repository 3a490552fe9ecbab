/**
 * A Sandgate sandbox as a backend of a deep agent.
 *
 * @packageDocumentation
 */

import { posix } from "node:path";
import {
  BaseSandbox,
  type DeleteResult,
  type EditResult,
  type ExecuteResponse,
  type FileDownloadResponse,
  type FileUploadResponse,
  type GlobResult,
  type GrepResult,
  type LsResult,
  type ReadRawResult,
  type ReadResult,
  SandboxError,
  type WriteResult,
} from "deepagents";
import { Client } from "./client.js";
import { type ExecuteOptions, newId, type Output, type ProcessEvent } from "./command.js";
import { Files } from "./deepagents/files.js";
import {
  type BackendOptions,
  type CommandOptions,
  DEFAULT_COMMAND_TIMEOUT_MS,
  DEFAULT_MAX_OUTPUT_SIZE,
  type SandgateSandboxOptions,
} from "./deepagents/options.js";
import { appended, executeResponse, isInvalidPath, literal, said } from "./deepagents/results.js";
import type { UploadFile } from "./files.js";
import { Collector } from "./result.js";
import type { Sandbox } from "./sandbox.js";

export * from "./deepagents/options.js";

/**
 * A Sandgate sandbox as a backend of a deep agent: commands and files, each of
 * them one call to the server, none of them a script in the sandbox.
 *
 * ```ts
 * await using sandbox = await SandgateSandbox.create();
 * const agent = createDeepAgent({ model, backend: sandbox });
 * ```
 *
 * What a method of deepagents returns as a result never rejects; a lost sandbox
 * or connection is an error in the result. `uploadFiles` and `downloadFiles` have
 * no word for that and reject with a SandboxError; so does every method before
 * {@link initialize} and after {@link close}.
 */
export class SandgateSandbox extends BaseSandbox {
  readonly #options: SandgateSandboxOptions;
  readonly #client: Client;
  readonly #ownsClient: boolean;
  #id: string;
  #sandbox: Sandbox | undefined;
  #workingDirectory: string | undefined;
  #starting: Promise<void> | undefined;
  #closing: Promise<void> | undefined;

  /**
   * Makes no call: {@link initialize} makes the sandbox. Most callers want
   * {@link create} or {@link connect}.
   *
   * @throws InvalidRequestError when the connection's options cannot be used.
   */
  constructor(options: SandgateSandboxOptions = {}) {
    super();
    this.#options = options;
    this.#client = options.client ?? new Client(options.connection);
    this.#ownsClient = options.client === undefined;
    this.#id = options.id || newId("sb");
  }

  /** Makes a sandbox, or takes the one that has this id and spec. */
  static async create(options: SandgateSandboxOptions = {}): Promise<SandgateSandbox> {
    const backend = new SandgateSandbox(options);
    try {
      await backend.initialize();
    } catch (error) {
      if (backend.#ownsClient) backend.#client.close();
      throw error;
    }
    return backend;
  }

  /**
   * Takes a sandbox that is there. It outlives this object.
   *
   * @throws SandboxNotFoundError when it is not there: it is never made anew.
   */
  static async connect(id: string, options: BackendOptions = {}): Promise<SandgateSandbox> {
    const backend = new SandgateSandbox({ ...options, id });
    try {
      backend.#sandbox = await backend.#client.get(id);
    } catch (error) {
      if (backend.#ownsClient) backend.#client.close();
      throw error;
    }
    return backend;
  }

  /** The sandbox's id; never empty, and the same from the beginning. */
  get id(): string {
    return this.#id;
  }

  /** True from {@link initialize} to {@link close}. */
  get isRunning(): boolean {
    return this.#sandbox !== undefined && this.#closing === undefined;
  }

  /** The sandbox with all that Sandgate can do. */
  get sandbox(): Sandbox {
    if (this.#closing !== undefined) throw new SandboxError("the sandbox is closed", "NOT_INITIALIZED");
    if (this.#sandbox === undefined) {
      throw new SandboxError("the sandbox is not initialized: call initialize() first", "NOT_INITIALIZED");
    }
    return this.#sandbox;
  }

  /**
   * Makes the sandbox, or takes the one that has this id and spec, and writes
   * `initialFiles`. A second call does nothing; after a failure it tries again.
   *
   * @throws SandgateError when it could not be made.
   */
  initialize(): Promise<void> {
    if (this.#closing !== undefined) throw new SandboxError("the sandbox is closed", "NOT_INITIALIZED");
    if (this.#sandbox !== undefined) return Promise.resolve();
    this.#starting ??= this.#start().finally(() => {
      this.#starting = undefined;
    });
    return this.#starting;
  }

  /**
   * Deletes the sandbox if this object made it (see
   * {@link BackendOptions.deleteOnClose}) and ends the connection if it is its own.
   * May be called again.
   */
  close(): Promise<void> {
    this.#closing ??= this.#end();
    return this.#closing;
  }

  /** {@link close}, for `await using`. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /**
   * Runs a shell command and returns both outputs in the order in which they were
   * written. Exit code 124: its time ended; 128 + n: signal n ended it; null: its end
   * is unknown, and the output says why.
   */
  async execute(command: string, options: CommandOptions = {}): Promise<ExecuteResponse> {
    const { sandbox } = this;
    const timeoutMs = this.#timeout(options);
    const collector = new Collector();
    try {
      const events = sandbox.executeStream(command, { ...this.#limits(options), merged: true });
      for await (const event of events) {
        collector.add(event);
        if (event.type === "output") this.#tell(command, event);
      }
      const { result } = collector;
      if (result !== undefined) return executeResponse(result, timeoutMs);
      return { output: collector.output, exitCode: null, truncated: false };
    } catch (error) {
      if (options.signal?.aborted) throw error;
      const output = appended(collector.output, `Error: ${said(error)}`);
      return { output, exitCode: null, truncated: false };
    }
  }

  /**
   * Runs a shell command and yields what it does as it comes, both outputs apart.
   * Leaving the iteration early kills it.
   *
   * @throws SandgateError as {@link Sandbox.executeStream}.
   */
  executeStream(
    command: string,
    options: CommandOptions = {},
  ): AsyncGenerator<ProcessEvent, void, undefined> {
    return this.sandbox.executeStream(command, this.#limits(options));
  }

  /**
   * Writes files and makes their parents; one response per file, in order.
   *
   * @throws SandboxError when the sandbox cannot be reached.
   */
  async uploadFiles(files: Array<[string, Uint8Array]>): Promise<FileUploadResponse[]> {
    const { sandbox } = this;
    const wanted: UploadFile[] = files
      .filter(([path]) => !isInvalidPath(path))
      .map(([path, source]) => ({ path, source }));
    const results = await fileOperation(sandbox.upload(wanted));
    return files.map(([path]) => {
      if (isInvalidPath(path)) return { path, error: "invalid_path" };
      const error = results.shift()?.error;
      return { path, error: error === undefined ? null : literal(error) };
    });
  }

  /**
   * Reads files; one response per path, in order.
   *
   * @throws SandboxError when the sandbox cannot be reached.
   */
  async downloadFiles(paths: string[]): Promise<FileDownloadResponse[]> {
    const { sandbox } = this;
    const results = await fileOperation(sandbox.download(paths.filter((path) => !isInvalidPath(path))));
    return paths.map((path) => {
      const result = isInvalidPath(path) ? undefined : results.shift();
      if (result === undefined) return { path, content: null, error: "invalid_path" };
      if (result.error !== undefined) return { path, content: null, error: literal(result.error) };
      return { path, content: result.content, error: null };
    });
  }

  /** Lists a directory. One that is missing has no files. */
  override async ls(path: string): Promise<LsResult> {
    return this.#files.ls(path);
  }

  /** Reads lines of a text file as they are, without numbers; a binary file whole, up to 10 MiB. */
  override async read(filePath: string, offset = 0, limit = 500): Promise<ReadResult> {
    return this.#files.read(filePath, offset, limit);
  }

  /** Reads a whole file. */
  override async readRaw(filePath: string): Promise<ReadRawResult> {
    return this.#files.readRaw(filePath);
  }

  /**
   * Creates or overwrites a file and makes its parents. For a binary type (by
   * extension) the content is base64.
   */
  override async write(filePath: string, content: string): Promise<WriteResult> {
    return this.#files.write(filePath, content);
  }

  /**
   * Replaces text in a file, atomically. The old text must occur once, unless
   * `replaceAll`; an empty one fills an empty file.
   */
  override async edit(
    filePath: string,
    oldString: string,
    newString: string,
    replaceAll = false,
  ): Promise<EditResult> {
    return this.#files.edit(filePath, oldString, newString, replaceAll);
  }

  /** Removes a file, or a directory with all that is in it. */
  override async delete(filePath: string): Promise<DeleteResult> {
    return this.#files.delete(filePath);
  }

  /** Finds lines that hold a literal text, in text files at any depth. */
  override async grep(
    pattern: string,
    path: string | null = "/",
    glob: string | null = null,
    maxCount: number | null = null,
  ): Promise<GrepResult> {
    return this.#files.grep(pattern, path ?? "/", glob, maxCount);
  }

  /**
   * Finds files and directories by name; paths are relative to `path`. A pattern
   * without "/" matches only directly in it. Names that begin with a dot match only
   * where the pattern's segment does.
   */
  override async glob(pattern: string, path = "/"): Promise<GlobResult> {
    return this.#files.glob(pattern, path);
  }

  /** Nothing is kept of a sandbox that is not running. */
  get #files(): Files {
    return new Files(this.sandbox, () => this.#directory());
  }

  async #start(): Promise<void> {
    const {
      client,
      connection,
      commandTimeoutMs,
      maxOutputSize,
      onOutput,
      deleteOnClose,
      initialFiles,
      ...spec
    } = this.#options;
    const sandbox = await this.#client.create({ ...spec, id: this.#id });
    this.#id = sandbox.id;
    this.#sandbox = sandbox;
    try {
      const files: UploadFile[] = [];
      for (const [path, source] of Object.entries(initialFiles ?? {})) {
        const absolute = path.startsWith("/") ? path : posix.join(await this.#directory(), path);
        files.push({ path: absolute, source });
      }
      for (const { error } of await sandbox.upload(files)) if (error !== undefined) throw error;
    } catch (error) {
      this.#sandbox = undefined;
      if (sandbox.created) await sandbox.delete();
      throw error;
    }
  }

  async #end(): Promise<void> {
    try {
      await this.#starting?.catch(() => {});
      const sandbox = this.#sandbox;
      if (sandbox !== undefined && (this.#options.deleteOnClose ?? sandbox.created)) await sandbox.delete();
      if (this.#ownsClient) this.#client.close();
    } catch (error) {
      this.#closing = undefined;
      throw error;
    }
  }

  #timeout(options: CommandOptions): number {
    return options.timeoutMs ?? this.#options.commandTimeoutMs ?? DEFAULT_COMMAND_TIMEOUT_MS;
  }

  #limits(options: CommandOptions): ExecuteOptions {
    return {
      ...options,
      timeoutMs: this.#timeout(options),
      maxOutputBytes: this.#options.maxOutputSize ?? DEFAULT_MAX_OUTPUT_SIZE,
    };
  }

  #tell(command: string, { text, data, position }: Output): void {
    try {
      this.#options.onOutput?.(text, { command, data, position });
    } catch (error) {
      process.emitWarning(error instanceof Error ? error : String(error));
    }
  }

  /** The directory in which commands start. */
  async #directory(): Promise<string> {
    this.#workingDirectory ??= (await this.sandbox.info()).spec.workingDirectory ?? "/workspace";
    return this.#workingDirectory;
  }
}

/** Turns a failed call into deepagents' own error. */
async function fileOperation<T>(call: Promise<T>): Promise<T> {
  try {
    return await call;
  } catch (error) {
    throw new SandboxError(said(error), "FILE_OPERATION_FAILED", error as Error);
  }
}
