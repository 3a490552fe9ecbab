/** A chat model without a key: it runs the last message as a command. */

import { BaseChatModel } from "@langchain/core/language_models/chat_models";
import { AIMessage, type BaseMessage } from "@langchain/core/messages";
import type { ChatResult } from "@langchain/core/outputs";

/** Calls the tool `execute` with the user's words, and answers with the output. */
export class CommandModel extends BaseChatModel {
  constructor() {
    super({});
  }

  override _llmType(): string {
    return "commands";
  }

  /** It needs no tool definitions. */
  override bindTools(): this {
    return this;
  }

  override async _generate(messages: BaseMessage[]): Promise<ChatResult> {
    const last = messages.at(-1);
    const command = messages.findLast((message) => message.getType() === "human")?.text ?? "";
    const call = { name: "execute", args: { command }, id: `call-${messages.length}` };
    const message =
      last?.getType() === "tool"
        ? new AIMessage(last.text)
        : new AIMessage({ content: "", tool_calls: [{ ...call, type: "tool_call" }] });
    return { generations: [{ text: message.text, message }] };
  }
}

/** The model that MODEL names, such as `anthropic:claude-sonnet-4-5`, or one that needs no key. */
export const chosenModel = () => process.env["MODEL"] || new CommandModel();
