/**
 * A deep agent with a network, in which every step is real but the model. It
 * installs a package, clones a private repository with a secret that it cannot
 * read, starts a web server, and returns the server's URL. README.md says what the
 * server's configuration must have.
 *
 *     export INDEX=https://packages.example.com/simple/
 *     export REPOSITORY=https://git.example.com/team/site.git
 *     npm run network
 *
 * The sandbox ends with a line, or the end, of the standard input.
 */

import { type BaseMessage, HumanMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { createDeepAgent } from "deepagents";
import type { EgressRule } from "sandgate";
import { SandgateSandbox } from "sandgate/deepagents";
import { z } from "zod";
import { ScriptedModel } from "./model.js";

const { INDEX, REPOSITORY, PRIVATE } = process.env;
if (!INDEX || !REPOSITORY) throw new Error("INDEX and REPOSITORY must be set");

const TASK = `Publish the README.md of ${REPOSITORY} as a web page, made by the package markdown.`;

const SERVE = `\
nohup python3 -m http.server 8000 --directory site >server.log 2>&1 &
curl -sf --retry 30 --retry-delay 1 --retry-connrefused -o /dev/null http://127.0.0.1:8000/`;

// A real model is one line, with its package installed and its key set:
// const model = new ChatAnthropic({ model: "claude-sonnet-4-5" });
const model = new ScriptedModel([
  { name: "execute", args: { command: "pip install -q markdown" } },
  { name: "execute", args: { command: `git clone -q ${REPOSITORY} site` } },
  { name: "execute", args: { command: "python3 -m markdown site/README.md > site/index.html" } },
  { name: "execute", args: { command: SERVE } },
  { name: "get_url", args: { port: 8000 } },
  (results) => {
    const failed = results.some((result) => result.includes("[Command failed"));
    return failed ? "A command failed." : `The page is at ${results.at(-1)}`;
  },
]);

/** What the sandbox may reach: the two hosts, and one of them with a secret. */
function rules(index: URL, git: URL): EgressRule[] {
  const ports = [index, git].map(({ port }) => Number(port || 443));
  const [ofIndex = 443, ofGit = 443] = ports;
  return [
    { hosts: [index.hostname], ports: [ofIndex], methods: ["GET", "HEAD"] },
    { hosts: [git.hostname], ports: [ofGit], secret: { name: "git-token", user: "x-access-token" } },
    // The CIDR of hosts whose addresses are not public.
    ...(PRIVATE ? [{ cidrs: [PRIVATE], ports }] : []),
  ];
}

await using sandbox = await SandgateSandbox.create({
  labels: { example: "network" },
  ttlMs: 3_600_000,
  env: { PIP_INDEX_URL: INDEX },
  network: "PROXY",
  networkAllow: rules(new URL(INDEX), new URL(REPOSITORY)),
});
console.log(`sandbox ${sandbox.id}\nuser: ${TASK}`);

const getUrl = tool(async ({ port }) => (await sandbox.sandbox.getUrl(port)).url, {
  name: "get_url",
  description: "Returns a URL at which a browser reaches a port of the sandbox.",
  schema: z.object({ port: z.number() }),
});

/** Prints what one step of the agent added to the conversation. */
function show(message: BaseMessage): void {
  const calls = "tool_calls" in message && Array.isArray(message.tool_calls) ? message.tool_calls : [];
  for (const { name, args } of calls) console.log(`\nagent calls ${name}: ${JSON.stringify(args)}`);
  if (message.getType() === "tool") console.log(message.text);
  else if (message.getType() === "ai" && message.text) console.log(`\nagent: ${message.text}`);
}

let answer = "";
const agent = createDeepAgent({ model, backend: sandbox, tools: [getUrl] });
const steps = await agent.stream({ messages: [new HumanMessage(TASK)] }, { streamMode: "updates" });
for await (const step of steps) {
  for (const update of Object.values(step as Record<string, { messages?: unknown } | undefined>)) {
    for (const message of Array.isArray(update?.messages) ? (update.messages as BaseMessage[]) : []) {
      show(message);
      if (message.getType() === "ai") answer = message.text;
    }
  }
}
if (answer.startsWith("The page is at")) {
  for await (const _ of process.stdin) break;
} else process.exitCode = 1;
