/**
 * A deep agent that writes a program, runs it in a sandbox and reads what it left.
 * Its model is scripted, so that it needs no key and no network; its tools, and
 * what they do, are real.
 */

import { type BaseMessage, HumanMessage } from "@langchain/core/messages";
import { createDeepAgent } from "deepagents";
import { SandgateSandbox } from "sandgate/deepagents";
import { ScriptedModel } from "./model.js";

const TASK = "Compute the first ten prime numbers with a program and tell me their sum.";

const PROGRAM = `#!/bin/sh
# Prints the first ten primes, one every tenth of a second, and keeps their sum.
n=2 found=0 sum=0
while [ "$found" -lt 10 ]; do
  d=2 prime=1
  while [ $((d * d)) -le "$n" ]; do
    [ $((n % d)) -eq 0 ] && prime=0 && break
    d=$((d + 1))
  done
  if [ "$prime" -eq 1 ]; then
    found=$((found + 1)) sum=$((sum + n))
    echo "prime $found is $n"
    sleep 0.1
  fi
  n=$((n + 1))
done
echo "$sum" > /workspace/sum.txt
`;

// A real model is one line, with its package installed and its key set:
// const model = new ChatAnthropic({ model: "claude-sonnet-4-5" });
const model = new ScriptedModel([
  { name: "write_file", args: { file_path: "/workspace/primes.sh", content: PROGRAM } },
  { name: "execute", args: { command: "sh /workspace/primes.sh" } },
  { name: "read_file", args: { file_path: "/workspace/sum.txt" } },
  (results) => `The sum of the first ten primes is ${/\b\d+\s*$/.exec(results.at(-1) ?? "")?.[0].trim()}.`,
]);

const print = (text: string) => process.stdout.write(text);

/** Puts a mark before each line. */
const marked = (text: string, mark: string) => text.replace(/^(?!$)/gm, mark);

/** Prints what one step of the agent added to the conversation. */
function show(message: BaseMessage): void {
  const calls = "tool_calls" in message && Array.isArray(message.tool_calls) ? message.tool_calls : [];
  for (const { name, args } of calls) print(`\n> ${name} ${JSON.stringify(args).slice(0, 100)}\n`);
  if (message.getType() === "tool") print(marked(`${message.text.trim()}\n`, "    "));
  else if (calls.length === 0) print(`\nagent: ${message.text}\n`);
}

let pieces = 0;
await using sandbox = await SandgateSandbox.create({
  commandTimeoutMs: 30_000,
  // Comes while the command runs; the agent gets the whole when it has ended.
  onOutput: (text) => {
    pieces++;
    print(marked(text, "    | "));
  },
});
print(`sandbox ${sandbox.id}\nuser: ${TASK}\n`);

const agent = createDeepAgent({ model, backend: sandbox });
let answer = "";
const steps = await agent.stream({ messages: [new HumanMessage(TASK)] }, { streamMode: "updates" });
for await (const step of steps) {
  for (const update of Object.values(step as Record<string, { messages?: unknown } | undefined>)) {
    for (const message of Array.isArray(update?.messages) ? (update.messages as BaseMessage[]) : []) {
      if (message.getType() === "human") continue;
      show(message);
      if (message.getType() === "ai") answer = message.text;
    }
  }
}

// The model's word is not enough: the file in the sandbox is what counts.
const [file] = await sandbox.downloadFiles(["/workspace/sum.txt"]);
const sum = new TextDecoder().decode(file?.content ?? new Uint8Array()).trim();
const done = sum === "129" && answer.includes("129") && pieces > 1;
print(done ? `\nThe task was done; its output came in ${pieces} pieces.\n` : "\nThe task was NOT done.\n");
process.exitCode = done ? 0 : 1;
