/** `SandgateProvider`: makes, finds and removes sandboxes for deepagents. */

import { Client, type CreateOptions, type PoolStatus } from "../client.js";
import { newId } from "../command.js";
import {
  InvalidRequestError,
  SandboxExistsError,
  TemplateNotFoundError,
  UnsupportedError,
} from "../errors.js";
import type { SandboxInfo, State } from "../values.js";
import { existing, SandgateSandbox, seeded, withinStartup } from "./backend.js";
import type { BackendOptions, LifetimeSeconds, SandgateSandboxOptions } from "./options.js";
import { lifetimes, split } from "./policy.js";
import { THREAD_LABEL } from "./threads.js";

/** What a sandbox of a list is doing. */
export type Status = "pending" | "running" | "suspended" | "terminated" | "warm";

const STATUS: Readonly<Record<State, Status>> = {
  UNSPECIFIED: "pending",
  CREATING: "pending",
  ACTIVE: "running",
  SUSPENDED: "suspended",
  DELETING: "terminated",
  FAILED: "terminated",
};

/** Lifetimes and labels, by the names and in the units that providers use. */
export interface LifetimeOptions extends LifetimeSeconds {
  /** Labels of every sandbox that is made. */
  defaultLabels?: Record<string, string>;
}

/** What describes every sandbox, and how its backend behaves. */
export interface ProviderOptions extends LifetimeOptions, BackendOptions, Omit<CreateOptions, "id"> {}

/** Which sandbox is wanted. What is left out is the provider's. */
export interface GetOrCreateOptions extends Omit<CreateOptions, "id">, LifetimeSeconds {
  /** Default: made up, so that a new sandbox is made. */
  sandboxId?: string;
  /**
   * Files to write into a sandbox that is made now, by path; a relative path is one below
   * the working directory. Where they cannot be written, a sandbox of a made-up id is
   * deleted; that of a `sandboxId` stays, as another caller may have it.
   */
  initialFiles?: Record<string, string | Uint8Array>;
}

/** Which sandboxes are listed. */
export interface ListSandboxesOptions {
  /**
   * Only those in this status. "warm" lists none, since a pool's sandboxes belong to no
   * caller; {@link SandgateProvider.poolStatus} counts them.
   */
  status?: Status;
  /** Only those that have all of these. */
  labels?: Record<string, string>;
  /** Where the page begins; from the page before. */
  cursor?: string;
}

/** One sandbox of a list. */
export interface ListedSandbox {
  id: string;
  status: Status;
  /** The server's own word for its state. */
  phase: State;
  labels: Record<string, string>;
  /** ISO 8601. */
  createdAt?: string;
  /** Everything that the server reports. */
  info: SandboxInfo;
}

/** One page of a list. */
export interface ListedPage {
  sandboxes: ListedSandbox[];
  /** Where the next page begins. Undefined: this was the last one. */
  cursor?: string;
}

/** What was cleaned up. */
export interface CleanedUp {
  /** Ids of what was deleted. */
  deleted: string[];
  /** How many of those looked at were kept. */
  kept: number;
}

/** Counts of the caller's sandboxes. */
export interface ProviderStats {
  total: number;
  running: number;
  /** Ready in the pool and not claimed; not part of `total`. */
  warm: number;
  /** Of the running ones, those without activity for longer than the threshold. */
  idle: number;
  /** Sandboxes that belong to a thread, each to its own. */
  threadIds: number;
}

/**
 * Makes, finds and removes sandboxes. It holds none: what it does is asked of the
 * server each time, so that several processes can do the same work. Closing it ends
 * its connection; sandboxes stay.
 */
export class SandgateProvider {
  readonly #spec: CreateOptions;
  readonly #options: BackendOptions;
  readonly #labels: Record<string, string>;
  readonly #client: Client;
  readonly #ownsClient: boolean;

  /** @throws InvalidRequestError when the connection's options cannot be used. */
  constructor({ defaultLabels, ttlSeconds, ttlIdleSeconds, ...options }: ProviderOptions = {}) {
    const { spec, backend } = split(options as SandgateSandboxOptions);
    const { labels, ...described } = spec;
    this.#labels = { ...defaultLabels, ...labels };
    this.#spec = { ...described, ...lifetimes({ ttlSeconds, ttlIdleSeconds }) };
    this.#options = backend;
    this.#client = backend.client ?? new Client(backend.connection);
    this.#ownsClient = backend.client === undefined;
  }

  /**
   * Takes the sandbox of an id, or makes it where there is none. Callers that race for
   * one id get the same sandbox. What describes it is not compared with an existing
   * one's. Closing the result leaves the sandbox; {@link delete} ends it. Whoever must
   * not get an empty sandbox in place of a lost one calls {@link reconnect}.
   *
   * @throws SandgateError when it could not be made.
   */
  async getOrCreate(options: GetOrCreateOptions = {}): Promise<SandgateSandbox> {
    const { sandboxId, labels, ttlSeconds, ttlIdleSeconds, initialFiles = {}, ...spec } = options;
    const wanted = {
      ...this.#spec,
      ...spec,
      ...lifetimes({ ttlSeconds, ttlIdleSeconds }),
      id: sandboxId || newId("sb"),
      labels: { ...this.#labels, ...labels },
    };
    try {
      const made = await withinStartup(this.#options, (call) => this.#client.create(wanted, call));
      // Another caller may have been given the sandbox of an id that was asked for.
      if (made.created) await seeded(made, initialFiles, !sandboxId);
      return SandgateSandbox.of(this.#client, made, this.#options);
    } catch (error) {
      if (!(error instanceof SandboxExistsError)) throw error;
      // It was made with another spec: that one is the sandbox of this id.
      return this.reconnect(wanted.id);
    }
  }

  /**
   * Takes an existing sandbox.
   *
   * @throws SandboxNotFoundError when there is no such sandbox; SandboxNotActiveError
   * when it failed.
   */
  async reconnect(sandboxId: string): Promise<SandgateSandbox> {
    const found = await existing(this.#client, sandboxId, this.#options);
    return SandgateSandbox.of(this.#client, found, this.#options);
  }

  /**
   * Gives a page of the caller's sandboxes.
   *
   * @throws InvalidRequestError when there is no such status, or the cursor is no
   * longer good.
   */
  async list({ status, labels = {}, cursor = "" }: ListSandboxesOptions = {}): Promise<ListedPage> {
    // Started sandboxes of a pool have no id and no owner before they are claimed.
    if (status === "warm") return { sandboxes: [] };
    const states = (Object.keys(STATUS) as State[]).filter(
      (state) => state !== "UNSPECIFIED" && STATUS[state] === status,
    );
    if (status !== undefined && states.length === 0) {
      const known = [...new Set([...Object.values(STATUS), "warm"])].sort().join(", ");
      throw new InvalidRequestError(`status must be one of ${known}, got ${JSON.stringify(status)}`, {
        code: "INVALID_ARGUMENT",
      });
    }
    const page = await this.#client.listPage({ labels, states, pageToken: cursor });
    const result: ListedPage = { sandboxes: page.sandboxes.map(listed) };
    if (page.nextPageToken !== "") result.cursor = page.nextPageToken;
    return result;
  }

  /** Ends a sandbox and everything in it; that there is none is no error. */
  async delete(sandboxId: string): Promise<void> {
    await this.#client.delete(sandboxId);
  }

  /**
   * Deletes sandboxes that were idle for longer; a running command is no idleness.
   * Of all the caller's sandboxes it takes those with the default labels.
   *
   * @param maxIdleSeconds Default: only those past their own lifetime.
   */
  async cleanup(maxIdleSeconds?: number): Promise<CleanedUp> {
    const idle = maxIdleSeconds === undefined ? {} : { maxIdleMs: maxIdleSeconds * 1000 };
    const { deletedIds, kept } = await this.#client.cleanup({ labels: this.#labels, ...idle });
    return { deleted: deletedIds, kept };
  }

  /**
   * Returns the counts of the pool of this provider's template.
   *
   * @throws TemplateNotFoundError when the template has no pool; UnsupportedError when
   * the server keeps no pools.
   */
  poolStatus(): Promise<PoolStatus> {
    return this.#client.poolStatus(this.#spec.template);
  }

  /** Counts the caller's sandboxes that have the default labels. */
  async stats(idleThresholdSeconds = 300): Promise<ProviderStats> {
    const found: SandboxInfo[] = [];
    for await (const info of this.#client.list({ labels: this.#labels })) found.push(info);
    const running = found.filter((info) => info.state === "ACTIVE");
    const before = Date.now() - idleThresholdSeconds * 1000;
    const idle = running.filter((info) => {
      const at = info.lastActivityTime ?? info.createTime;
      return at !== undefined && at.getTime() < before;
    });
    const threads = found.map((info) => info.labels[THREAD_LABEL]).filter((label) => label !== undefined);
    return {
      total: found.length,
      running: running.length,
      warm: await this.#warm(),
      idle: idle.length,
      threadIds: new Set(threads).size,
    };
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

  /** What is ready in the pool; without a pool, nothing is. */
  async #warm(): Promise<number> {
    try {
      return (await this.poolStatus()).available;
    } catch (error) {
      if (error instanceof UnsupportedError || error instanceof TemplateNotFoundError) return 0;
      throw error;
    }
  }
}

function listed(info: SandboxInfo): ListedSandbox {
  const { id, state, labels, createTime } = info;
  const one: ListedSandbox = { id, status: STATUS[state], phase: state, labels, info };
  if (createTime !== undefined) one.createdAt = createTime.toISOString();
  return one;
}
