/** `SandgateManager`: agents and graphs whose threads have sandboxes. */

import type { BaseMessage } from "@langchain/core/messages";
import type { ClientTool, ServerTool } from "@langchain/core/tools";
import type { InteropZodObject } from "@langchain/core/utils/types";
import {
  type AnySubAgent,
  type CreateDeepAgentParams,
  createDeepAgent,
  GENERAL_PURPOSE_SUBAGENT,
  getHarnessProfile,
  type SupportedResponseFormat,
} from "deepagents";
import { type AgentMiddleware, createMiddleware } from "langchain";
import type { z } from "zod";
import { Client } from "../client.js";
import type { SandgateError } from "../errors.js";
import { defined } from "../values.js";
import { isLost, type SandgateSandbox } from "./backend.js";
import { lifetimes } from "./policy.js";
import { type CleanedUp, type ProviderOptions, SandgateProvider } from "./provider.js";
import { sandgateStreaming } from "./streaming.js";
import { currentThread, SandgateThreadBackend } from "./threads.js";

/** The field of a graph's state that holds the id of its thread's sandbox. */
export const SANDBOX_KEY = "sandboxId";

/** What describes the sandboxes, and what becomes of them. */
export interface ManagerOptions extends ProviderOptions {
  /** True: a thread that lost its sandbox gets a new one, and the AI agent is notified. Default: false. */
  recreate?: boolean;
  /** True: `shutdown` leaves the sandboxes, for their lifetimes to end. Default: false. */
  skipCleanup?: boolean;
}

/** A model as `createDeepAgent` takes it. */
export type Model = NonNullable<CreateDeepAgentParams["model"]>;

/** Options of `createDeepAgent`, but its model and backend. */
export type AgentOptions<
  TResponse extends SupportedResponseFormat = SupportedResponseFormat,
  TContext extends InteropZodObject = InteropZodObject,
  TMiddleware extends readonly AgentMiddleware[] = readonly AgentMiddleware[],
  TSubagents extends readonly AnySubAgent[] = readonly AnySubAgent[],
  TTools extends readonly (ClientTool | ServerTool)[] = readonly (ClientTool | ServerTool)[],
> = Omit<CreateDeepAgentParams<TResponse, TContext, TMiddleware, TSubagents, TTools>, "model" | "backend">;

/** The agent that `createDeepAgent` makes, with the id of the thread's sandbox in its state. */
export type Agent<
  TResponse extends SupportedResponseFormat = SupportedResponseFormat,
  TContext extends InteropZodObject = InteropZodObject,
  TMiddleware extends readonly AgentMiddleware[] = readonly [],
  TSubagents extends readonly AnySubAgent[] = readonly [],
  TTools extends readonly (ClientTool | ServerTool)[] = readonly [],
> = ReturnType<
  typeof createDeepAgent<
    TResponse,
    TContext,
    readonly [SandboxIdMiddleware, ...TMiddleware],
    TSubagents,
    TTools
  >
>;

/** Keeps the id of the thread's sandbox in the agent's state. */
export type SandboxIdMiddleware = AgentMiddleware<
  z.ZodObject<{ [SANDBOX_KEY]: z.ZodOptional<z.ZodNullable<z.ZodString>> }>
>;

/** What the manager's nodes read of a graph's state. */
export type NodeState = Record<string, unknown>;

/** A node of a LangGraph graph. */
export type Node = (state: NodeState) => Promise<Record<string, unknown>>;

/**
 * Gives each thread of a LangGraph application a sandbox of its own.
 *
 * A sandbox is made with the first tool call of its thread and found again by every
 * process. Its id is kept in the graph's state, so that a lost sandbox differs from
 * one that was never made: it is an error of each operation, or with `recreate` a
 * new sandbox of which the AI agent is notified.
 */
export class SandgateManager {
  /** The backend of all agents, for graphs that are built by hand. */
  readonly backend: SandgateThreadBackend;
  /** The provider behind `getOrReconnect` and `cleanup`. */
  readonly provider: SandgateProvider;
  readonly #client: Client;
  readonly #ownsClient: boolean;
  readonly #recreate: boolean;
  readonly #skipCleanup: boolean;
  #ending: Promise<void> | undefined;

  /** @throws InvalidRequestError when the connection's options cannot be used. */
  constructor({ recreate = false, skipCleanup = false, ...options }: ManagerOptions = {}) {
    const { defaultLabels, ttlSeconds, ttlIdleSeconds, ...described } = options;
    this.#client = options.client ?? new Client(options.connection);
    this.#ownsClient = options.client === undefined;
    this.#recreate = recreate;
    this.#skipCleanup = skipCleanup;
    this.provider = new SandgateProvider({ ...options, client: this.#client });
    this.backend = new SandgateThreadBackend({
      ...described,
      ...lifetimes({ ttlSeconds, ttlIdleSeconds }),
      labels: { ...defaultLabels, ...described.labels },
      client: this.#client,
      recreate,
    });
  }

  /**
   * Returns a deep agent whose threads have sandboxes. It is the agent's own graph,
   * so all its steps and the output of its commands stream, those of its subagents
   * included. Run it with a `thread_id`.
   */
  async createAgent<
    TResponse extends SupportedResponseFormat = SupportedResponseFormat,
    TContext extends InteropZodObject = InteropZodObject,
    const TMiddleware extends readonly AgentMiddleware[] = readonly [],
    const TSubagents extends readonly AnySubAgent[] = readonly [],
    const TTools extends readonly (ClientTool | ServerTool)[] = readonly [],
  >(
    model: Model,
    options: AgentOptions<TResponse, TContext, TMiddleware, TSubagents, TTools> = {},
  ): Promise<Agent<TResponse, TContext, TMiddleware, TSubagents, TTools>> {
    const own = [sandgateStreaming(), await this.#keepId()];
    const middleware = [...own, ...((options.middleware ?? []) as readonly AgentMiddleware[])];
    const subagents = streamingSubagents(model, options as AgentOptions);
    const params = { ...options, model, backend: this.backend, middleware, subagents };
    return createDeepAgent(params as never) as never;
  }

  /**
   * Returns a node that makes or takes the thread's sandbox at once and writes its id
   * to the state. Nodes after it use {@link backend}. A lost sandbox is a
   * SandboxReplacedError, unless `recreate` is set.
   */
  createSetupNode({ stateSandboxKey = SANDBOX_KEY }: { stateSandboxKey?: string } = {}): Node {
    return async (state) => {
      this.#expect(state, stateSandboxKey);
      return { [stateSandboxKey]: await this.backend.acquire() };
    };
  }

  /**
   * Returns a node that runs a deep agent on the state's `messages`, and writes the
   * messages and the sandbox's id to the state. The agent's steps are those of a
   * subgraph.
   */
  createAgentNode(
    model: Model,
    { stateSandboxKey = SANDBOX_KEY, ...options }: AgentOptions & { stateSandboxKey?: string } = {},
  ): Node {
    let agent: Promise<Pick<Agent, "invoke">> | undefined;
    return async (state) => {
      this.#expect(state, stateSandboxKey);
      agent ??= this.createAgent(model, options);
      const messages = state["messages"] as BaseMessage[];
      const result = await (await agent).invoke({ messages });
      return {
        messages: result.messages,
        ...this.#changed(state[stateSandboxKey], stateSandboxKey),
      };
    };
  }

  /**
   * Takes an existing sandbox, or makes one where no id is known yet.
   *
   * @throws SandboxNotFoundError when it is lost, SandboxNotActiveError when it failed,
   * and `recreate` is not set; with it, a new sandbox with another id is made.
   */
  async getOrReconnect(sandboxId?: string | null): Promise<SandgateSandbox> {
    if (sandboxId) {
      try {
        return await this.provider.reconnect(sandboxId);
      } catch (error) {
        if (!this.#recreate || !isLost(error)) throw error;
      }
    }
    return this.provider.getOrCreate();
  }

  /** Deletes idle sandboxes with the default labels; see {@link SandgateProvider.cleanup}. */
  cleanup(maxIdleSeconds?: number): Promise<CleanedUp> {
    return this.provider.cleanup(maxIdleSeconds);
  }

  /**
   * Deletes the sandboxes of the threads served here, and ends the connection. Every
   * one is tried. With `skipCleanup` all stay. May be called again.
   *
   * @throws SandgateError when one could not be deleted.
   */
  shutdown(): Promise<void> {
    this.#ending ??= this.#end();
    return this.#ending;
  }

  /** {@link shutdown}, for `await using`. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.shutdown();
  }

  async #end(): Promise<void> {
    const failed: SandgateError[] = [];
    for (const sandboxId of this.#skipCleanup ? [] : this.backend.acquired) {
      await this.provider.delete(sandboxId).catch((error: SandgateError) => failed.push(error));
    }
    if (this.#ownsClient) this.#client.close();
    if (failed[0] !== undefined) throw failed[0];
  }

  /** Keeps the sandbox's id in the state, which shows whether a sandbox was lost. */
  async #keepId(): Promise<AgentMiddleware> {
    const { z } = await zod();
    return createMiddleware({
      name: "SandgateSandboxId",
      stateSchema: z.object({ [SANDBOX_KEY]: z.string().nullish() }),
      beforeAgent: (state) => {
        this.#expect(state, SANDBOX_KEY);
      },
      beforeModel: (state) => this.#changed((state as NodeState)[SANDBOX_KEY], SANDBOX_KEY),
    }) as AgentMiddleware;
  }

  #expect(state: NodeState, key: string): void {
    if (state[key]) this.backend.expect(currentThread());
  }

  /** The update that the state needs, if any. */
  #changed(known: unknown, key: string): Record<string, string> | undefined {
    const { id, acquired } = this.backend;
    return id !== known && acquired.includes(id) ? { [key]: id } : undefined;
  }
}

/**
 * The agent's subagents, each with a stream of its commands' output: deepagents does
 * not give them the agent's middleware.
 */
function streamingSubagents(model: Model, options: AgentOptions): AnySubAgent[] {
  const given: readonly AnySubAgent[] = options.subagents ?? [];
  const subagents = given.map((subagent) =>
    // Those that were made elsewhere are as they are.
    "runnable" in subagent || "graphId" in subagent
      ? subagent
      : { ...subagent, middleware: [sandgateStreaming(), ...(subagent.middleware ?? [])] },
  );
  const { name } = GENERAL_PURPOSE_SUBAGENT;
  const profile = typeof model === "string" ? getHarnessProfile(model) : undefined;
  const left = profile?.generalPurposeSubagent !== undefined || given.some((s) => s.name === name);
  if (left) return subagents;
  const { tools, skills } = options;
  const generalPurpose = { ...GENERAL_PURPOSE_SUBAGENT, ...defined({ tools, skills }) };
  return [{ ...generalPurpose, middleware: [sandgateStreaming()] } as AnySubAgent, ...subagents];
}

/** Something that this part of the package needs is not installed. */
export class MissingDependencyError extends Error {
  override readonly name = "MissingDependencyError";
}

/** zod, which langchain's own state schemas are made of; nothing else here needs it. */
async function zod(): Promise<typeof import("zod")> {
  try {
    return await import("zod");
  } catch (cause) {
    throw new MissingDependencyError("SandgateManager needs zod: npm install zod", { cause });
  }
}
