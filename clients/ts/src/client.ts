/** A connection to one server: sandboxes are made, found and deleted here. */

import type { JsonObject } from "@bufbuild/protobuf";
import type { CallOptions } from "./call.js";
import { newId } from "./command.js";
import { SandboxService } from "./gen/sandbox/v1/sandbox_service_pb.js";
import { type ClientOptions, connection } from "./options.js";
import { Sandbox } from "./sandbox.js";
import { Transport } from "./transport.js";
import { type Names, refuseUnknown } from "./unknown.js";
import {
  defined,
  duration,
  type EgressRule,
  required,
  type SandboxInfo,
  type SandboxSpec,
  type ServerInfo,
  type State,
  sandboxInfo,
  serverInfo,
  specMessage,
  stateValue,
} from "./values.js";
import { type SandboxEvent, type WatchOptions, watch } from "./watch.js";

const rpc = SandboxService.method;

/** A sandbox to make. What is left out is the template's or the server's. */
export interface CreateOptions extends SandboxSpec {
  /**
   * 1 to 128 characters of a-z, A-Z, 0-9, ".", "_", "-". Default: made up. Creating
   * an id again with the same spec returns the same sandbox.
   */
  id?: string;
  /** Default: {@link ClientOptions.template}, else "default". */
  template?: string;
  /** Labels to find it by, at most 32. */
  labels?: Record<string, string>;
  /** Lifetime from creation, in milliseconds. 0: none, where the server allows that. */
  ttlMs?: number;
  /** Lifetime from the last activity, in milliseconds. 0: none, where the server allows that. */
  idleTtlMs?: number;
  /** Options of one provider, each refused where the template does not allow it. */
  providerOptions?: JsonObject;
}

const CREATE_OPTIONS: Names<CreateOptions> = {
  id: true,
  template: true,
  labels: true,
  ttlMs: true,
  idleTtlMs: true,
  providerOptions: true,
  image: true,
  resources: true,
  env: true,
  workingDirectory: true,
  network: true,
  networkAllow: true,
  access: true,
  command: true,
};

/** Which sandboxes are meant. */
export interface ListOptions {
  /** Only those that have all these labels. */
  labels?: Record<string, string>;
  /** Only those in one of these states. */
  states?: State[];
  /** How many are fetched at once. Default: 100. */
  pageSize?: number;
}

/** One page of a list. */
export interface SandboxPage {
  sandboxes: SandboxInfo[];
  /** Where the next page begins. Empty: this was the last one. */
  nextPageToken: string;
}

/** What changes about a sandbox. What is left out stays as it is. */
export interface UpdateOptions {
  setLabels?: Record<string, string>;
  removeLabels?: string[];
  /** New lifetime from creation, in milliseconds. 0: none. */
  ttlMs?: number;
  /** New lifetime from the last activity, in milliseconds. 0: none. */
  idleTtlMs?: number;
  /** True: idleness begins anew. */
  renew?: boolean;
  /**
   * New rules of a sandbox with the network mode PROXY, which replace the old ones.
   * An empty list: those of its template.
   */
  networkAllow?: EgressRule[];
}

/** What to clean up. */
export interface CleanupOptions {
  /**
   * Delete what has been idle for longer, in milliseconds. Default: only what is
   * past its own lifetime.
   */
  maxIdleMs?: number;
  /** Only sandboxes that have all these labels. Default: all of the tenant. */
  labels?: Record<string, string>;
  /** True: say what would be deleted and delete nothing. */
  dryRun?: boolean;
}

/** What was cleaned up. */
export interface CleanupResult {
  deletedIds: string[];
  /** How many of those looked at were kept. */
  kept: number;
  /** What should have been deleted and could not be. */
  failures: { id: string; message: string }[];
}

/** A pool of sandboxes that were started ahead of time. */
export interface PoolStatus {
  /** Started and unclaimed. */
  available: number;
  /** Claimed and in use. */
  active: number;
  /** `available`, `active` and those being made. */
  total: number;
  /** How many are kept available. */
  target: number;
}

/**
 * A connection to one server. The server is reached by the first call; the
 * constructor only reads options and environment.
 *
 * Every method rejects with a {@link SandgateError}.
 */
export class Client {
  readonly #transport: Transport;
  readonly #template: string;

  /**
   * @throws InvalidRequestError when the options cannot be used: a malformed
   * address, a file that cannot be read, a token that would travel in the clear.
   */
  constructor(options: ClientOptions = {}) {
    const settings = connection(options);
    this.#transport = new Transport(settings);
    this.#template = settings.template;
  }

  /** Describes the server: its version, capabilities and enforcement, and the caller's identity. */
  async serverInfo(call: CallOptions = {}): Promise<ServerInfo> {
    return serverInfo(await this.#transport.repeatable(rpc.getServerInfo, {}, call));
  }

  /**
   * Returns a sandbox in which a command can run. The returned handle states its
   * incarnation with every call; `created` says whether it was made now.
   *
   * @throws SandboxExistsError when the id exists with another spec;
   * SandboxStartError when it could not be started: nothing is left behind.
   */
  async create(options: CreateOptions = {}, call: CallOptions = {}): Promise<Sandbox> {
    refuseUnknown(options, CREATE_OPTIONS);
    const { id, template, labels, ttlMs, idleTtlMs, providerOptions, ...spec } = options;
    // A generated id makes a retry after a lost reply safe, and no other caller has it:
    // what the second reply finds there was made for the first.
    const own = !id;
    const reply = await this.#transport.repeatable(
      rpc.createSandbox,
      {
        sandboxId: id || newId("sb"),
        ...defined({
          template: template || this.#template || undefined,
          labels,
          ttl: duration("ttlMs", ttlMs),
          idleTtl: duration("idleTtlMs", idleTtlMs),
          providerOptions,
          spec: Object.keys(defined(spec)).length === 0 ? undefined : specMessage(spec),
        }),
      },
      call,
    );
    const info = required(reply.sandbox);
    return new Sandbox(this.#transport, info.sandboxId, {
      incarnation: info.incarnation,
      created: own || reply.created,
    });
  }

  /**
   * Returns a sandbox that is there, with its incarnation.
   *
   * @throws SandboxNotFoundError when it is not.
   */
  async get(id: string, call: CallOptions = {}): Promise<Sandbox> {
    const { sandbox } = await this.#transport.repeatable(rpc.getSandbox, { sandboxId: id }, call);
    const { sandboxId, incarnation } = required(sandbox);
    return new Sandbox(this.#transport, sandboxId, { incarnation });
  }

  /** Yields the tenant's sandboxes, fetching pages as they are needed. */
  async *list(
    options: ListOptions = {},
    call: CallOptions = {},
  ): AsyncGenerator<SandboxInfo, void, undefined> {
    let pageToken = "";
    do {
      const page = await this.listPage({ ...options, pageToken }, call);
      yield* page.sandboxes;
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }

  /**
   * Returns one page of the tenant's sandboxes. A page may be empty and yet have a
   * next one.
   *
   * @throws InvalidRequestError when the token is malformed, or its page is gone
   * (PAGE_TOKEN_EXPIRED): begin again.
   */
  async listPage(
    options: ListOptions & { pageToken?: string } = {},
    call: CallOptions = {},
  ): Promise<SandboxPage> {
    const { labels = {}, states = [], pageSize = 0, pageToken = "" } = options;
    const request = { labels, states: states.map(stateValue), pageSize, pageToken };
    const { sandboxes, nextPageToken } = await this.#transport.repeatable(rpc.listSandboxes, request, call);
    return { sandboxes: sandboxes.map(sandboxInfo), nextPageToken };
  }

  /**
   * Yields what happens to the tenant's sandboxes, until the caller leaves the
   * iteration. Reconnects transparently: after a broken connection or a restart of the
   * server the watch continues after the last event.
   *
   * @throws InvalidRequestError when the cursor is malformed.
   */
  watch(options: WatchOptions = {}, call: CallOptions = {}): AsyncGenerator<SandboxEvent, void, undefined> {
    return watch(this.#transport, options, call);
  }

  /** Changes labels, lifetimes and network rules, and renews idleness. */
  async update(id: string, options: UpdateOptions, call: CallOptions = {}): Promise<SandboxInfo> {
    const { ttlMs, idleTtlMs, networkAllow, ...rest } = options;
    const request = {
      sandboxId: id,
      ...rest,
      ...defined({
        ttl: duration("ttlMs", ttlMs),
        idleTtl: duration("idleTtlMs", idleTtlMs),
        network: networkAllow && { allow: networkAllow },
      }),
    };
    return sandboxInfo(
      required((await this.#transport.repeatable(rpc.updateSandbox, request, call)).sandbox),
    );
  }

  /**
   * Ends a sandbox and everything in it. Returns false when there was nothing to
   * delete, which is no error.
   */
  async delete(id: string, call: CallOptions = {}): Promise<boolean> {
    const request = { sandboxId: id, allowMissing: true };
    return (await this.#transport.repeatable(rpc.deleteSandbox, request, call)).deleted;
  }

  /** Deletes the tenant's sandboxes that have been idle for a stated time. */
  async cleanup(options: CleanupOptions = {}, call: CallOptions = {}): Promise<CleanupResult> {
    const { maxIdleMs, labels = {}, dryRun = false } = options;
    const request = { labels, dryRun, ...defined({ maxIdle: duration("maxIdleMs", maxIdleMs) }) };
    const reply = await this.#transport.unary(rpc.cleanupSandboxes, request, call);
    return {
      deletedIds: [...reply.deletedSandboxIds],
      kept: reply.kept,
      failures: reply.failures.map(({ sandboxId, message }) => ({ id: sandboxId, message })),
    };
  }

  /**
   * Reports a template's pool.
   *
   * @param template Default: that of {@link create}.
   * @throws TemplateNotFoundError when the template has no pool, or is not there;
   * UnsupportedError when the server's provider keeps no pools.
   */
  async poolStatus(template = "", call: CallOptions = {}): Promise<PoolStatus> {
    const name = template || this.#template;
    const reply = await this.#transport.repeatable(rpc.getPoolStatus, { template: name }, call);
    const { available, active, total, target } = reply;
    return { available, active, total, target };
  }

  /** Returns a handle of a sandbox without asking for it; any incarnation of it is meant. */
  sandbox(id: string): Sandbox {
    return new Sandbox(this.#transport, id);
  }

  /**
   * Stops a sandbox's processes and keeps its disk, as far as the provider can.
   *
   * @throws UnsupportedError when the server's provider cannot suspend.
   */
  async suspend(id: string, call: CallOptions = {}): Promise<SandboxInfo> {
    const reply = await this.#transport.repeatable(rpc.suspendSandbox, { sandboxId: id }, call);
    return sandboxInfo(required(reply.sandbox));
  }

  /**
   * Brings a suspended sandbox back, as another incarnation. Returns when a command
   * can run.
   */
  async resume(id: string, call: CallOptions = {}): Promise<SandboxInfo> {
    const reply = await this.#transport.repeatable(rpc.resumeSandbox, { sandboxId: id }, call);
    return sandboxInfo(required(reply.sandbox));
  }

  /**
   * Ends the calls under way, which reject with CallCancelledError, and the
   * connection. Commands go on until their `disconnectGraceMs` ends. May be called again.
   */
  close(): void {
    this.#transport.close();
  }

  /** {@link close}, for `using`. */
  [Symbol.dispose](): void {
    this.close();
  }
}
