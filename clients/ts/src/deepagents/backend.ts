/** `SandgateSandbox`, a sandbox as a backend. */

import { posix } from "node:path";
import { SandboxError } from "deepagents";
import { Client } from "../client.js";
import { type ExecuteOptions, newId, type ProcessEvent } from "../command.js";
import {
  DeadlineExceededError,
  SandboxNotActiveError,
  SandboxNotFoundError,
  SandboxReplacedError,
  type SandgateError,
} from "../errors.js";
import type { UploadFile } from "../files.js";
import { milliseconds } from "../numbers.js";
import type { Sandbox } from "../sandbox.js";
import { NativeBackend } from "./native.js";
import type { BackendOptions, SandgateSandboxOptions } from "./options.js";
import { policyOf, split } from "./policy.js";

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
 * {@link start} and after {@link close}.
 */
export class SandgateSandbox extends NativeBackend {
  readonly #options: SandgateSandboxOptions;
  readonly #client: Client;
  readonly #ownsClient: boolean;
  #id: string;
  #fresh = true;
  #sandbox: Sandbox | undefined;
  #workingDirectory: string | undefined;
  #starting: Promise<void> | undefined;
  #closing: Promise<void> | undefined;

  /**
   * Makes no call: {@link start} makes the sandbox. Most callers want
   * {@link create} or {@link connect}.
   *
   * @throws InvalidRequestError when the connection's options cannot be used.
   */
  constructor(options: SandgateSandboxOptions = {}) {
    super(options);
    this.#options = options;
    this.#client = options.client ?? new Client(options.connection);
    this.#ownsClient = options.client === undefined;
    this.#id = options.id || options.sandboxId || newId("sb");
  }

  /** Makes a sandbox, or takes the one that has this id and spec. */
  static async create(options: SandgateSandboxOptions = {}): Promise<SandgateSandbox> {
    const backend = new SandgateSandbox(options);
    try {
      await backend.start();
    } catch (error) {
      if (backend.#ownsClient) backend.#client.close();
      throw error;
    }
    return backend;
  }

  /**
   * Takes a sandbox that is there. It outlives this object, unless `deleteOnClose` is
   * true. A policy in the options
   * narrows the sandbox's own for what this object does.
   *
   * @throws SandboxNotFoundError when it is not there: it is never made anew.
   */
  static async connect(
    id: string,
    options: BackendOptions & Pick<SandgateSandboxOptions, "deleteOnClose"> = {},
  ): Promise<SandgateSandbox> {
    const backend = new SandgateSandbox({ ...options, id });
    try {
      backend.#sandbox = narrowed(await backend.#client.get(id), options);
    } catch (error) {
      if (backend.#ownsClient) backend.#client.close();
      throw error;
    }
    return backend;
  }

  /**
   * The same for a sandbox that the caller has already: nothing is asked, and the
   * caller ends it.
   *
   * @internal
   */
  static of(client: Client, sandbox: Sandbox, options: SandgateSandboxOptions): SandgateSandbox {
    const backend = new SandgateSandbox({ deleteOnClose: false, ...options, client, id: sandbox.id });
    backend.#sandbox = sandbox;
    return backend;
  }

  /** The sandbox's id; never empty, and the same from the beginning. */
  get id(): string {
    return this.#id;
  }

  /** True from {@link start} to {@link stop} or {@link close}. */
  get isRunning(): boolean {
    return this.#sandbox !== undefined && this.#closing === undefined;
  }

  /** The sandbox with all that Sandgate can do. */
  get sandbox(): Sandbox {
    if (this.#closing !== undefined) throw new SandboxError("the sandbox is closed", "NOT_INITIALIZED");
    if (this.#sandbox === undefined) {
      throw new SandboxError("the sandbox is not initialized: call start() first", "NOT_INITIALIZED");
    }
    return this.#sandbox;
  }

  /**
   * Makes the sandbox, or takes the one that has this id and spec, and writes
   * `initialFiles`. A second call does nothing; after a failure it tries again.
   *
   * @throws SandgateError when it could not be made.
   */
  start(): Promise<void> {
    if (this.#closing !== undefined) throw new SandboxError("the sandbox is closed", "NOT_INITIALIZED");
    if (this.#sandbox !== undefined) return Promise.resolve();
    this.#starting ??= this.#start().finally(() => {
      this.#starting = undefined;
    });
    return this.#starting;
  }

  /** {@link start}, by deepagents' name. */
  initialize(): Promise<void> {
    return this.start();
  }

  /**
   * Deletes the sandbox, unless `skipCleanup` or `deleteOnClose: false` keeps it. The
   * object can be started again. Without a sandbox it does nothing.
   */
  async stop(): Promise<void> {
    await this.#starting?.catch(() => {});
    const sandbox = this.#sandbox;
    if (sandbox === undefined) return;
    const { deleteOnClose, skipCleanup } = this.#options;
    if (skipCleanup !== true && (deleteOnClose ?? sandbox.created)) await sandbox.delete();
    this.#sandbox = undefined;
    this.#workingDirectory = undefined;
  }

  /**
   * Stops the sandbox's processes and keeps its disk, as far as the server's provider can.
   *
   * @throws UnsupportedError when the provider cannot suspend.
   */
  async suspend(): Promise<void> {
    await withinStartup(this.#options, (call) => this.sandbox.suspend(call));
  }

  /** Brings the sandbox back from being suspended; returns when a command can run. */
  async resume(): Promise<void> {
    await withinStartup(this.#options, (call) => this.sandbox.resume(call));
  }

  /**
   * {@link stop}, and ends the connection if it is this object's own. Nothing can be
   * done with the object then. May be called again.
   */
  close(): Promise<void> {
    this.#closing ??= this.#end();
    return this.#closing;
  }

  /** {@link close}, for `await using`. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** @internal */
  async use<T>(call: (sandbox: Sandbox) => Promise<T>): Promise<T> {
    await this.#ready();
    return call(this.sandbox);
  }

  /** @internal */
  async *run(command: string, options: ExecuteOptions): AsyncGenerator<ProcessEvent, void, undefined> {
    await this.#ready();
    yield* this.sandbox.executeStream(command, options);
  }

  /** @internal */
  async directory(): Promise<string> {
    if (this.#options.virtualMode) return "/";
    this.#workingDirectory ??= await this.use(workingDirectory);
    return this.#workingDirectory;
  }

  async #ready(): Promise<void> {
    if (this.#options.reuseSandbox && this.#sandbox === undefined) await this.start();
  }

  async #start(): Promise<void> {
    const { spec } = split(this.#options);
    if (this.#options.reuseSandbox === false && !this.#fresh) this.#id = newId("sb");
    const wanted = { ...spec, id: this.#id };
    const sandbox = await withinStartup(this.#options, (call) => this.#client.create(wanted, call));
    this.#fresh = false;
    this.#id = sandbox.id;
    try {
      // File calls cannot make the root that they lie beneath; without it they say so.
      const root = spec.access?.rootDir;
      if (root !== undefined && sandbox.created) await sandbox.execute(["mkdir", "-p", root]).catch(() => {});
      const files: UploadFile[] = [];
      for (const [path, source] of Object.entries(this.#options.initialFiles ?? {})) {
        files.push({ path: posix.join(await this.#base(sandbox, path), path), source });
      }
      for (const { error } of await sandbox.upload(files)) if (error !== undefined) throw error;
    } catch (error) {
      if (sandbox.created) await sandbox.delete().catch(() => {});
      throw error;
    }
    this.#sandbox = sandbox;
  }

  async #base(sandbox: Sandbox, path: string): Promise<string> {
    if (path.startsWith("/") || this.#options.virtualMode) return "/";
    this.#workingDirectory ??= await workingDirectory(sandbox);
    return this.#workingDirectory;
  }

  async #end(): Promise<void> {
    try {
      await this.stop();
      if (this.#ownsClient) this.#client.close();
    } catch (error) {
      this.#closing = undefined;
      throw error;
    }
  }
}

/** The state in which a sandbox can only be deleted. */
export const FAILED = "FAILED";

/** @internal Whether the sandbox's files and processes are gone for good. */
export function isLost(error: unknown): error is SandgateError {
  if (error instanceof SandboxNotActiveError) return error.metadata["state"] === FAILED;
  return error instanceof SandboxNotFoundError || error instanceof SandboxReplacedError;
}

/**
 * @internal Returns a sandbox that is there.
 *
 * @throws SandboxNotFoundError when it is not; SandboxNotActiveError when it failed.
 */
export async function existing(client: Client, sandboxId: string, options: BackendOptions): Promise<Sandbox> {
  const found = await client.get(sandboxId);
  const { state, stateMessage } = await found.info();
  if (state !== FAILED) return narrowed(found, options);
  throw new SandboxNotActiveError(`the sandbox failed${stateMessage && `: ${stateMessage}`}`, {
    code: "FAILED_PRECONDITION",
    reason: "SANDBOX_NOT_ACTIVE",
    metadata: { state, sandbox_id: sandboxId },
  });
}

/** Where a relative path begins: where commands start, or the virtual root. */
export async function workingDirectory(sandbox: Sandbox): Promise<string> {
  const { access, workingDirectory: directory } = (await sandbox.info()).spec;
  return access?.virtual && access.rootDir ? "/" : (directory ?? "/workspace");
}

/**
 * Makes a call that ends when a sandbox runs.
 *
 * @throws DeadlineExceededError that names the option, when `startupTimeoutMs` ended.
 */
export async function withinStartup<T>(
  { startupTimeoutMs }: BackendOptions,
  act: (call: { timeoutMs?: number }) => Promise<T>,
): Promise<T> {
  if (startupTimeoutMs === undefined) return act({});
  try {
    return await act({ timeoutMs: milliseconds("startupTimeoutMs", startupTimeoutMs) });
  } catch (error) {
    if (!(error instanceof DeadlineExceededError)) throw error;
    const { code, reason, requestId } = error;
    throw new DeadlineExceededError(
      `the sandbox was not ready within startupTimeoutMs, ${startupTimeoutMs} ms`,
      { code, reason, requestId },
      { cause: error },
    );
  }
}

/**
 * Writes files into a new sandbox; a failure deletes it if it is the caller's own.
 * Relative paths begin where commands do.
 */
export async function seeded(
  sandbox: Sandbox,
  files: Record<string, string | Uint8Array>,
  own: boolean,
): Promise<void> {
  const entries = Object.entries(files);
  if (entries.length === 0) return;
  try {
    const base = await workingDirectory(sandbox);
    const wanted = entries.map(([path, source]) => ({
      path: path.startsWith("/") ? path : posix.join(base, path),
      source,
    }));
    for (const { error } of await sandbox.upload(wanted)) if (error !== undefined) throw error;
  } catch (error) {
    // The first error is the one to report.
    if (own) await sandbox.delete().catch(() => {});
    throw error;
  }
}

/** A handle that is held to the options' policy, for a sandbox that was made without it. */
export function narrowed(sandbox: Sandbox, options: BackendOptions): Sandbox {
  const access = policyOf(options);
  return access === undefined ? sandbox : sandbox.narrowed(access);
}
