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

/** A chat model that runs each line of the last message as a command, and then says "done". */
export class CommandModel extends BaseChatModel {
  constructor() {
    super({});
  }

  override _llmType(): string {
    return "commands";
  }

  override bindTools(): this {
    return this;
  }

  override async _generate(messages: BaseMessage[]): Promise<ChatResult> {
    const last = messages.findLastIndex((m) => m.getType() === "human");
    const commands = String(messages[last]?.content).split("\n");
    const index = messages.slice(last).filter((m) => m.getType() === "ai").length;
    const command = commands[index];
    const id = `call_${messages.length}`;
    const message =
      command === undefined
        ? new AIMessage("done")
        : new AIMessage({ content: "", tool_calls: [{ ...toolCall(command), id, type: "tool_call" }] });
    return { generations: [{ text: String(message.content), message }] };
  }
}

/** A line "task NAME: COMMAND" is given to the subagent of that name; any other is run. */
function toolCall(line: string): ToolCall {
  const [, subagent_type, description] = /^task ([a-z-]+): (.*)$/.exec(line) ?? [];
  return description === undefined
    ? { name: "execute", args: { command: line } }
    : { name: "task", args: { description, subagent_type } };
}

/** What a {@link CommandModel} receives. */
export function turn(...commands: string[]): { messages: { role: "user"; content: string }[] } {
  return { messages: [{ role: "user", content: commands.join("\n") }] };
}

/** What the tools returned since the last message of a user. */
export function outputs(state: { messages: BaseMessage[] }): string[] {
  const last = state.messages.findLastIndex((m) => m.getType() === "human");
  return state.messages
    .slice(last)
    .filter((m) => m.getType() === "tool")
    .map((m) => m.text);
}
