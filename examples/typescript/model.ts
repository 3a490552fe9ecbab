/** A chat model that plays a script: real tool calls, no key, no network. */

import { BaseChatModel } from "@langchain/core/language_models/chat_models";
import { AIMessage, type BaseMessage } from "@langchain/core/messages";
import type { ChatResult } from "@langchain/core/outputs";

/** A tool call, or a last answer made of what the tools returned. */
export type Turn = { name: string; args: Record<string, unknown> } | ((results: string[]) => string);

/** Plays one turn per call, whatever the input. */
export class ScriptedModel extends BaseChatModel {
  readonly #turns: readonly Turn[];

  constructor(turns: readonly Turn[]) {
    super({});
    this.#turns = turns;
  }

  override _llmType(): string {
    return "scripted";
  }

  /** The script needs no tool definitions. */
  override bindTools(): this {
    return this;
  }

  override async _generate(messages: BaseMessage[]): Promise<ChatResult> {
    const index = messages.filter((message) => message.getType() === "ai").length;
    const turn = this.#turns[index] ?? (() => "There is nothing left to do.");
    const message =
      typeof turn === "function"
        ? new AIMessage(turn(messages.filter((m) => m.getType() === "tool").map((m) => m.text)))
        : new AIMessage({ content: "", tool_calls: [{ ...turn, id: `call_${index}`, type: "tool_call" }] });
    return { generations: [{ text: message.text, message }] };
  }
}
