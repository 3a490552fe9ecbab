/** A command's output on LangGraph's `tools` stream, and what a run says about itself. */

import { AsyncLocalStorage } from "node:async_hooks";
import type { RunnableConfig } from "@langchain/core/runnables";
import { DynamicStructuredTool } from "@langchain/core/tools";
import { getConfig } from "@langchain/langgraph";
import { type AgentMiddleware, createMiddleware } from "langchain";

const listeners = new AsyncLocalStorage<(text: string) => void>();

/** Hands a piece of output to the tool call that runs here, if it streams. */
export function emit(text: string): void {
  listeners.getStore()?.(text);
}

/** What the agent's run that this is called in was given. Undefined outside of one. */
export function runConfig(): RunnableConfig | undefined {
  return getConfig() as RunnableConfig | undefined;
}

/**
 * Streams what a command writes while the agent's `execute` tool runs:
 * `agent.stream(input, { streamMode: "tools" })` gives each piece of output at once,
 * as an `on_tool_event` of its tool call. Without that stream mode nothing happens.
 * One instance serves any number of agents.
 *
 * @param tools Names of the tools whose commands stream. Default: "execute" and
 * "execute_python".
 */
export function sandgateStreaming(tools: readonly string[] = ["execute", "execute_python"]): AgentMiddleware {
  return createMiddleware({
    name: "SandgateStreaming",
    wrapToolCall: (request, handler) => {
      const { tool } = request;
      if (!(tool instanceof DynamicStructuredTool) || !tools.includes(tool.name)) return handler(request);
      return handler({ ...request, tool: streaming(tool) });
    },
  });
}

/** The same tool, as one that yields what its commands write. */
function streaming(tool: DynamicStructuredTool): DynamicStructuredTool {
  return new DynamicStructuredTool({
    name: tool.name,
    description: tool.description,
    schema: tool.schema,
    responseFormat: tool.responseFormat as "content",
    returnDirect: tool.returnDirect,
    func: (async (input, manager, config) => {
      const pieces = new Pieces();
      const result = listeners.run(
        (text) => pieces.put(text),
        () => Promise.resolve(tool.func(input, manager, config)),
      );
      return yielding(pieces, result);
    }) as typeof tool.func,
  });
}

async function* yielding<T>(pieces: Pieces, result: Promise<T>): AsyncGenerator<string, T, undefined> {
  result.then(
    () => pieces.end(),
    () => pieces.end(),
  );
  yield* pieces.all();
  return await result;
}

/** Pieces of output on their way from a callback to an iteration. */
class Pieces {
  #waiting: string[] = [];
  #wake: () => void = () => {};
  #ended = false;

  put(text: string): void {
    this.#waiting.push(text);
    this.#wake();
  }

  end(): void {
    this.#ended = true;
    this.#wake();
  }

  async *all(): AsyncGenerator<string, void, undefined> {
    for (;;) {
      const some = this.#waiting.splice(0);
      if (some.length > 0) yield some.join("");
      else if (this.#ended) return;
      else {
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
      }
    }
  }
}
