/** `SandgateThreadBackend`: one backend object, one sandbox per thread. */

import { createHash } from "node:crypto";
import type { ExecuteResponse } from "deepagents";
import { Client, type CreateOptions } from "../client.js";
import type { ExecuteOptions, ProcessEvent } from "../command.js";
import {
  InvalidRequestError,
  SandboxExistsError,
  SandboxNotActiveError,
  SandboxNotFoundError,
  SandboxReplacedError,
  type SandgateError,
} from "../errors.js";
import type { Sandbox } from "../sandbox.js";
import { existing, FAILED, isLost, withinStartup, workingDirectory } from "./backend.js";
import { NativeBackend } from "./native.js";
import type { BackendOptions, CommandOptions, LifetimeSeconds, SandgateSandboxOptions } from "./options.js";
import { split } from "./policy.js";
import { runConfig } from "./streaming.js";

/** Label of a sandbox that belongs to a thread: a digest of the thread's id. */
export const THREAD_LABEL = "sandgate-thread";

/** What an AI agent reads after its sandbox was recreated. */
export const RECREATED =
  "The sandbox was lost and a new, empty one was made. " + "All files and processes of the old one are gone.";

const NAME_LENGTH = 80;
const DIGEST_LENGTH = 12;

/** What describes the threads' sandboxes, and how their backend behaves. */
export interface ThreadOptions extends BackendOptions, Omit<CreateOptions, "id">, LifetimeSeconds {
  /**
   * True: a thread that lost its sandbox gets a new one, and the AI agent is notified.
   * Default: false, a lost sandbox is an error of every operation.
   */
  recreate?: boolean;
}

/** Returns the id of a thread's sandbox: readable, and different for each thread. */
export function threadSandboxId(threadId: string): string {
  const name = threadId.replace(/[^A-Za-z0-9._-]+/g, "-").slice(0, NAME_LENGTH);
  return `thread-${name}-${digest(threadId)}`;
}

/**
 * Returns the thread of the agent's run that this is called in.
 *
 * @throws InvalidRequestError when there is no run, or it has no thread.
 */
export function currentThread(): string {
  const id: unknown = runConfig()?.configurable?.["thread_id"];
  if (id !== undefined && id !== null && id !== "") return String(id);
  throw new InvalidRequestError(
    "one sandbox per thread needs a thread: invoke the agent with { configurable: { thread_id: '...' } }",
    { code: "INVALID_ARGUMENT" },
  );
}

/** What is known of one thread. */
interface Thread {
  readonly sandboxId: string;
  readonly labels: Record<string, string>;
  sandbox?: Sandbox | undefined;
  directory?: string | undefined;
  acquiring?: Promise<Sandbox> | undefined;
  /** It had a sandbox before, so that none may be made silently. */
  expected: boolean;
  note: string;
}

/**
 * A backend that gives each thread of an agent a sandbox of its own.
 *
 * The thread is that of the run in which a method is called, so one object serves
 * all threads of all agents. The sandbox's id follows from the thread's, so every
 * process finds the same one; it is made with the thread's first operation, by
 * whichever caller comes first.
 *
 * A sandbox that was lost (deleted, expired, failed, or without its disk) is an error
 * of every operation, never a silently empty place. With `recreate`, the operation
 * that finds it lost fails, saying that a new sandbox was made, and the next ones
 * work there.
 *
 * Closing it leaves the sandboxes; the lifetimes `ttlMs` and `idleTtlMs` end them,
 * or {@link stop} within a run.
 */
export class SandgateThreadBackend extends NativeBackend {
  readonly #options: BackendOptions;
  readonly #spec: CreateOptions;
  readonly #recreate: boolean;
  readonly #client: Client;
  readonly #ownsClient: boolean;
  readonly #threads = new Map<string, Thread>();

  /** @throws InvalidRequestError when the connection's options cannot be used. */
  constructor({ recreate = false, ...options }: ThreadOptions = {}) {
    super(options);
    const { spec, backend } = split(options as SandgateSandboxOptions);
    if (spec.id !== undefined) {
      throw new InvalidRequestError("each thread has its own sandbox id, none can be given", {
        code: "INVALID_ARGUMENT",
      });
    }
    this.#options = backend;
    this.#spec = spec;
    this.#recreate = recreate;
    this.#client = backend.client ?? new Client(backend.connection);
    this.#ownsClient = backend.client === undefined;
  }

  /** The id of the running thread's sandbox; outside of a run, a constant. */
  get id(): string {
    try {
      return this.#running().sandboxId;
    } catch {
      return "sandgate-threads";
    }
  }

  /** Ids of the sandboxes that this object made or took so far. */
  get acquired(): string[] {
    return [...this.#threads.values()].filter((t) => t.sandbox !== undefined).map((t) => t.sandboxId);
  }

  /**
   * Says that a thread had a sandbox before: without it, it is lost. This is known
   * by itself only of threads that this object served.
   */
  expect(threadId: string): void {
    this.#of(threadId).expected = true;
  }

  /**
   * Makes or takes the running thread's sandbox now; returns its id.
   *
   * @throws SandboxReplacedError when it is lost, and `recreate` is not set.
   */
  async acquire(): Promise<string> {
    const thread = this.#running();
    try {
      await this.#acquire(thread);
    } catch (error) {
      if (!isLost(error)) throw error;
      const failure = await this.#lost(thread, undefined, error);
      if (!(this.#recreate && thread.sandbox !== undefined)) throw failure;
      thread.note = RECREATED;
    }
    return thread.sandboxId;
  }

  /** Runs a shell command in the thread's sandbox; see {@link SandgateSandbox.execute}. */
  override async execute(command: string, options: CommandOptions = {}): Promise<ExecuteResponse> {
    const result = await super.execute(command, options);
    const thread = this.#running();
    const { note } = thread;
    if (note === "") return result;
    thread.note = "";
    return { ...result, output: `${note}\n${result.output}` };
  }

  /**
   * Deletes the running thread's sandbox; its next operation makes a new one. False:
   * there was none.
   */
  async stop(): Promise<boolean> {
    const thread = this.#running();
    await thread.acquiring?.catch(() => {});
    forget(thread);
    return this.#client.delete(thread.sandboxId);
  }

  /**
   * Stops the processes of the running thread's sandbox and keeps its disk, as far as the
   * server's provider can.
   *
   * @throws UnsupportedError when the provider cannot suspend.
   */
  async suspend(): Promise<void> {
    await withinStartup(this.#options, (call) => this.#handle().suspend(call));
  }

  /** Brings the running thread's sandbox back from being suspended. */
  async resume(): Promise<void> {
    await withinStartup(this.#options, (call) => this.#handle().resume(call));
  }

  /** Ends the connection if it is this object's own. Sandboxes stay. */
  close(): void {
    if (this.#ownsClient) this.#client.close();
  }

  /** {@link close}, for `using`. */
  [Symbol.dispose](): void {
    this.close();
  }

  /** {@link close}, for `await using`. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  /** @internal */
  async use<T>(call: (sandbox: Sandbox) => Promise<T>, kind?: "download"): Promise<T> {
    const thread = this.#running();
    let sandbox: Sandbox | undefined;
    try {
      sandbox = await this.#acquire(thread);
      return await call(sandbox);
    } catch (error) {
      if (!isLost(error)) throw error;
      const failure = await this.#lost(thread, sandbox, error);
      // Memory and skills are read before the AI agent can be notified, and
      // expect missing files to be just that.
      if (kind !== "download" || !this.#recreate || thread.sandbox === undefined) throw failure;
      thread.note = RECREATED;
      return call(thread.sandbox);
    }
  }

  /** @internal */
  async *run(command: string, options: ExecuteOptions): AsyncGenerator<ProcessEvent, void, undefined> {
    const thread = this.#running();
    let sandbox: Sandbox | undefined;
    try {
      sandbox = await this.#acquire(thread);
      yield* sandbox.executeStream(command, options);
    } catch (error) {
      throw isLost(error) ? await this.#lost(thread, sandbox, error) : error;
    }
  }

  /** @internal */
  async directory(): Promise<string> {
    if (this.#options.virtualMode) return "/";
    const thread = this.#running();
    thread.directory ??= await this.use(workingDirectory);
    return thread.directory;
  }

  /** The running thread's sandbox, which is not made by this. */
  #handle(): Sandbox {
    const { sandbox, sandboxId } = this.#running();
    return sandbox ?? this.#client.sandbox(sandboxId);
  }

  #running(): Thread {
    return this.#of(currentThread());
  }

  #of(threadId: string): Thread {
    let thread = this.#threads.get(threadId);
    if (thread === undefined) {
      const labels = { ...this.#spec.labels, [THREAD_LABEL]: digest(threadId) };
      thread = { sandboxId: threadSandboxId(threadId), labels, expected: false, note: "" };
      this.#threads.set(threadId, thread);
    }
    return thread;
  }

  /** Callers that race share one attempt. */
  #acquire(thread: Thread): Promise<Sandbox> {
    if (thread.sandbox !== undefined) return Promise.resolve(thread.sandbox);
    thread.acquiring ??= this.#take(thread).finally(() => {
      thread.acquiring = undefined;
    });
    return thread.acquiring;
  }

  async #take(thread: Thread): Promise<Sandbox> {
    const sandbox = thread.expected
      ? await existing(this.#client, thread.sandboxId, this.#options)
      : await this.#make(thread);
    thread.sandbox = sandbox;
    thread.expected = true;
    return sandbox;
  }

  async #make({ sandboxId, labels }: Thread): Promise<Sandbox> {
    try {
      const wanted = { ...this.#spec, id: sandboxId, labels };
      return await withinStartup(this.#options, (call) => this.#client.create(wanted, call));
    } catch (error) {
      if (!(error instanceof SandboxExistsError)) throw error;
      // Made with another spec, by an older version of the program say.
      return existing(this.#client, sandboxId, this.#options);
    }
  }

  /** Returns the error to report, after recreating the sandbox if that is configured. */
  async #lost(thread: Thread, lost: Sandbox | undefined, error: SandgateError): Promise<unknown> {
    if (!this.#recreate) {
      return new SandboxReplacedError(
        `this thread's sandbox is lost, with its files and processes: ${error.message}`,
        { code: error.code, reason: error.reason, metadata: error.metadata },
        { cause: error },
      );
    }
    // Of operations that found it lost at once, the first makes the new one.
    if (thread.sandbox === lost) forget(thread);
    try {
      if (error instanceof SandboxNotActiveError) await this.#deleteFailed(thread);
      await this.#acquire(thread);
    } catch (failure) {
      return failure;
    }
    return new SandboxReplacedError(
      RECREATED,
      { code: error.code, reason: "SANDBOX_REPLACED", metadata: error.metadata },
      { cause: error },
    );
  }

  /** Deletes a failed sandbox, and none that another process made in its place. */
  async #deleteFailed({ sandboxId }: Thread): Promise<void> {
    try {
      const found = await this.#client.get(sandboxId);
      if ((await found.info()).state === FAILED) await found.delete();
    } catch (error) {
      if (!(error instanceof SandboxNotFoundError || error instanceof SandboxReplacedError)) throw error;
    }
  }
}

function forget(thread: Thread): void {
  thread.sandbox = undefined;
  thread.directory = undefined;
  thread.expected = false;
}

function digest(threadId: string): string {
  return createHash("sha256").update(threadId).digest("hex").slice(0, DIGEST_LENGTH);
}
