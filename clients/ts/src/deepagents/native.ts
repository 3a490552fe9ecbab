/** What the backends share: every method of the contract, natively. */

import { createHash } from "node:crypto";
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
import { type ExecuteOptions, type Exited, exitCodeOf, type Output, type ProcessEvent } from "../command.js";
import { CallCancelledError } from "../errors.js";
import type { DownloadResult, UploadResult } from "../files.js";
import { Collector } from "../result.js";
import type { Sandbox } from "../sandbox.js";
import { Files } from "./files.js";
import {
  type AuditOperation,
  type BackendOptions,
  type CommandOptions,
  DEFAULT_COMMAND_TIMEOUT_MS,
  DEFAULT_MAX_OUTPUT_SIZE,
} from "./options.js";
import { appended, errorText, executeResponse, isInvalidPath, isOfFile, literal } from "./results.js";
import { emit, runConfig } from "./streaming.js";

/** Above this, a file is uploaded by itself, so that a broken connection costs only its rest. */
const LARGE_BYTES = 1 << 20;

/**
 * A single file up to this size is written in one message. A larger one is sooner there
 * in pieces, since the server passes them on as they come.
 */
const MESSAGE_BYTES = 256 << 10;

/** The contract's methods over one server; which sandbox, a subclass says. */
export abstract class NativeBackend extends BaseSandbox {
  readonly #options: BackendOptions;

  /** @internal */
  constructor(options: BackendOptions) {
    super();
    this.#options = options;
  }

  /**
   * Makes one call in the caller's sandbox.
   *
   * @internal
   */
  abstract use<T>(call: (sandbox: Sandbox) => Promise<T>, kind?: "download"): Promise<T>;

  /**
   * The directory in which relative paths begin.
   *
   * @internal
   */
  abstract directory(): Promise<string>;

  /**
   * Runs a command in the caller's sandbox.
   *
   * @internal
   */
  abstract run(command: string, options: ExecuteOptions): AsyncGenerator<ProcessEvent, void, undefined>;

  /**
   * Runs a shell command and returns both outputs in the order in which they were
   * written. Exit code 124: its time ended; 128 + n: signal n ended it; null: its end
   * is unknown, and the output says why.
   *
   * Within an agent's run, ending the run kills the command and everything that it
   * started.
   *
   * @throws CallCancelledError when the signal or the agent's run was aborted.
   */
  async execute(command: string, options: CommandOptions = {}): Promise<ExecuteResponse> {
    const outcome: Outcome = { error: null, exitCode: null };
    try {
      return await this.#execute(command, options, outcome);
    } finally {
      this.#audit("execute", command, { ...outcome });
    }
  }

  async #execute(command: string, options: CommandOptions, outcome: Outcome): Promise<ExecuteResponse> {
    const collector = new Collector();
    try {
      const limits = this.#limits(options);
      for await (const event of this.run(command, { ...limits, merged: true })) {
        collector.add(event);
        if (event.type === "output") this.#emitOutput(command, event);
      }
      const { result } = collector;
      if (result === undefined) return { output: collector.output, exitCode: null, truncated: false };
      Object.assign(outcome, outcomeOf(result.exited));
      return executeResponse(result, limits.timeoutMs);
    } catch (error) {
      outcome.error = messageOf(error);
      if (error instanceof CallCancelledError) throw error;
      const output = appended(collector.output, `Error: ${errorText(error)}`);
      return { output, exitCode: null, truncated: false };
    }
  }

  /**
   * Runs a shell command and yields what it does as it comes, with stdout and stderr separate.
   * Leaving the iteration early kills it.
   *
   * @throws SandgateError as {@link Sandbox.executeStream}.
   */
  async *executeStream(
    command: string,
    options: CommandOptions = {},
  ): AsyncGenerator<ProcessEvent, void, undefined> {
    const outcome: Outcome = { error: null, exitCode: null };
    try {
      for await (const event of this.run(command, this.#limits(options))) {
        if (event.type === "exited") Object.assign(outcome, outcomeOf(event));
        yield event;
      }
    } catch (failure) {
      outcome.error = messageOf(failure);
      throw failure;
    } finally {
      this.#audit("execute", command, { ...outcome });
    }
  }

  /**
   * Writes files and makes their parents; one response per file, in order.
   *
   * @throws SandboxError when the sandbox cannot be reached.
   */
  async uploadFiles(files: Array<[string, Uint8Array]>): Promise<FileUploadResponse[]> {
    const wanted = files.filter(([path]) => !this.#isInvalid(path));
    const results = await this.#transfer(
      "upload",
      files.map(([path]) => path),
      this.use((sandbox) => send(sandbox, wanted)),
    );
    return files.map(([path, { length }]) => {
      const failure = this.#isInvalid(path) ? undefined : results.shift()?.error;
      const error = this.#isInvalid(path) ? "invalid_path" : failure === undefined ? null : literal(failure);
      this.#audit("upload", path, { size: length, error });
      return { path, error };
    });
  }

  /**
   * Reads files; one response per path, in order.
   *
   * @throws SandboxError when the sandbox cannot be reached.
   */
  async downloadFiles(paths: string[]): Promise<FileDownloadResponse[]> {
    const wanted = paths.filter((path) => !this.#isInvalid(path));
    const results: DownloadResult[] = await this.#transfer(
      "download",
      paths,
      this.use((sandbox) => sandbox.download(wanted), "download"),
    );
    return paths.map((path) => {
      const result = this.#isInvalid(path) ? undefined : results.shift();
      let response: FileDownloadResponse = { path, content: null, error: "invalid_path" };
      if (result?.error !== undefined) response = { path, content: null, error: literal(result.error) };
      else if (result !== undefined) response = { path, content: result.content, error: null };
      this.#audit("download", path, { error: response.error });
      return response;
    });
  }

  /** Lists a directory. One that is missing has no files. */
  override async ls(path: string): Promise<LsResult> {
    return this.#audited("ls", path, () => this.#files.ls(path));
  }

  /** Reads lines of a text file as they are, without numbers; a binary file whole, up to 10 MiB. */
  override async read(filePath: string, offset = 0, limit = 500): Promise<ReadResult> {
    return this.#audited("read", filePath, () => this.#files.read(filePath, offset, limit));
  }

  /** Reads a whole file. */
  override async readRaw(filePath: string): Promise<ReadRawResult> {
    return this.#audited("read", filePath, () => this.#files.readRaw(filePath));
  }

  /**
   * Creates or overwrites a file and makes its parents. For a binary type (by
   * extension) the content is base64.
   */
  override async write(filePath: string, content: string): Promise<WriteResult> {
    return this.#audited("write", filePath, () => this.#files.write(filePath, content), {
      size: Buffer.byteLength(content),
    });
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
    return this.#audited(
      "edit",
      filePath,
      () => this.#files.edit(filePath, oldString, newString, replaceAll),
      { replaceAll },
    );
  }

  /** Removes a file, or a directory with all that is in it. */
  override async delete(filePath: string): Promise<DeleteResult> {
    return this.#audited("delete", filePath, () => this.#files.delete(filePath));
  }

  /** Finds lines that contain a literal text, in text files at any depth. */
  override async grep(
    pattern: string,
    path: string | null = "/",
    glob: string | null = null,
    maxCount: number | null = null,
  ): Promise<GrepResult> {
    return this.#audited("grep", path ?? "/", () => this.#files.grep(pattern, path ?? "/", glob, maxCount));
  }

  /**
   * Finds files and directories by name; paths are relative to `path`. A pattern
   * without "/" matches only directly in it. Names that begin with a dot match only
   * where the pattern's segment does.
   */
  override async glob(pattern: string, path = "/"): Promise<GlobResult> {
    return this.#audited("glob", path, () => this.#files.glob(pattern, path));
  }

  get #files(): Files {
    return new Files(
      (call, kind) => this.use(call, kind),
      () => this.directory(),
      this.#options.virtualMode ?? false,
    );
  }

  #limits(options: CommandOptions): ExecuteOptions & { timeoutMs: number } {
    const { commandTimeoutMs, commandTimeout, maxOutputSize } = this.#options;
    const byDefault = commandTimeoutMs ?? (commandTimeout === undefined ? undefined : commandTimeout * 1000);
    const signals = [options.signal, runConfig()?.signal].filter((s) => s !== undefined);
    const signal = signals.length > 1 ? AbortSignal.any(signals) : signals[0];
    return {
      ...options,
      ...(signal === undefined ? {} : { signal }),
      timeoutMs: options.timeoutMs ?? byDefault ?? DEFAULT_COMMAND_TIMEOUT_MS,
      maxOutputBytes: maxOutputSize ?? DEFAULT_MAX_OUTPUT_SIZE,
    };
  }

  #isInvalid(path: string): boolean {
    return isInvalidPath(path, this.#options.virtualMode);
  }

  #audit(operation: AuditOperation, target: string, metadata: Record<string, unknown>): void {
    this.#options.auditLog?.(operation, target, metadata);
  }

  async #audited<T extends { error?: string }>(
    operation: AuditOperation,
    target: string,
    act: () => Promise<T>,
    known: Record<string, unknown> = {},
  ): Promise<T> {
    let error: string | null = null;
    try {
      const result = await act();
      error = result.error ?? null;
      return result;
    } catch (failure) {
      error = nameOf(failure);
      throw failure;
    } finally {
      this.#audit(operation, target, { ...known, error });
    }
  }

  /** Turns a failed call into deepagents' own error, which is in the result of each path. */
  async #transfer<T>(operation: AuditOperation, paths: string[], call: Promise<T>): Promise<T> {
    try {
      return await call;
    } catch (failure) {
      for (const path of paths) this.#audit(operation, path, { error: nameOf(failure) });
      throw new SandboxError(errorText(failure), "FILE_OPERATION_FAILED", failure as Error);
    }
  }

  #emitOutput(command: string, { text, data, position }: Output): void {
    emit(text);
    try {
      this.#options.onOutput?.(text, { command, data, position });
    } catch (error) {
      process.emitWarning(error instanceof Error ? error : String(error));
    }
  }
}

/**
 * Sends files: a single small one in one message, else small ones together, each large
 * one so that it can be resumed.
 */
async function send(sandbox: Sandbox, files: Array<[string, Uint8Array]>): Promise<UploadResult[]> {
  const [[path, content] = ["", new Uint8Array(0)]] = files;
  if (files.length === 1 && content.length <= MESSAGE_BYTES) {
    const result = await sendMessage(sandbox, path, content);
    if (result !== undefined) return [result];
  }
  const results = new Map<number, UploadResult>();
  const small: number[] = [];
  for (const [index, [path, source]] of files.entries()) {
    if (source.length <= LARGE_BYTES) small.push(index);
    else results.set(index, await sandbox.uploadResult({ path, source }));
  }
  const sent = await sandbox.upload(
    small.map((index) => {
      const [path, source] = files[index] as [string, Uint8Array];
      return { path, source };
    }),
  );
  for (const [at, index] of small.entries()) results.set(index, sent[at] as UploadResult);
  return files.map((_, index) => results.get(index) as UploadResult);
}

/**
 * Writes one file in one message. Undefined: it must be uploaded, which has the bytes
 * checked before they are in place.
 */
async function sendMessage(
  sandbox: Sandbox,
  path: string,
  content: Uint8Array,
): Promise<UploadResult | undefined> {
  const own = createHash("sha256").update(content).digest();
  try {
    const { size, sha256 } = await sandbox.write(path, content);
    return own.equals(sha256) ? { path, size, sha256 } : undefined;
  } catch (error) {
    if (isOfFile(error, path)) return { path, size: 0, sha256: new Uint8Array(0), error };
    throw error;
  }
}

/** How a command ended, as the audit log has it. */
interface Outcome {
  /** Null: it ran and ended by itself. */
  error: string | null;
  /** Null: there is none. */
  exitCode: number | null;
}

function outcomeOf(exited: Exited): Outcome {
  const ran = exited.reason === "EXITED" || exited.reason === "SIGNALED";
  const known =
    ran || exited.reason === "TIMED_OUT" || exited.reason === "OUT_OF_MEMORY" || exited.reason === "KILLED";
  return { error: ran ? null : exited.reason, exitCode: known ? exitCodeOf(exited) : null };
}

function messageOf(failure: unknown): string {
  return failure instanceof Error ? failure.message : String(failure);
}

function nameOf(failure: unknown): string {
  return failure instanceof Error ? failure.name : String(failure);
}
