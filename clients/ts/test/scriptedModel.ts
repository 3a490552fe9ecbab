import { BaseChatModel } from "@langchain/core/language_models/chat_models";
import { AIMessage, type BaseMessage } from "@langchain/core/messages";
import type { ChatResult } from "@langchain/core/outputs";

/** One tool call. */
export interface ToolCall {
  name: string;
  args: Record<string, unknown>;
}

/** A chat model that makes given tool calls, one per turn, and then says "done". */
export class ScriptedModel extends BaseChatModel {
  readonly #calls: readonly ToolCall[];

  constructor(calls: readonly ToolCall[]) {
    super({});
    this.#calls = calls;
  }

  override _llmType(): string {
    return "scripted";
  }

  override bindTools(): this {
    return this;
  }

  override async _generate(messages: BaseMessage[]): Promise<ChatResult> {
    const turn = messages.filter((m) => m.getType() === "ai").length;
    const call = this.#calls[turn];
    const message =
      call === undefined
        ? new AIMessage("done")
        : new AIMessage({ content: "", tool_calls: [{ ...call, id: `call_${turn}`, type: "tool_call" }] });
    return { generations: [{ text: String(message.content), message }] };
  }
}
