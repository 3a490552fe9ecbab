/** The applications of `examples/typescript`, as their users start them. */

import { execFileSync, spawn } from "node:child_process";
import { rmSync } from "node:fs";
import { createServer } from "node:net";
import { join, resolve } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { Client } from "../../src/index.js";
import { address, withServer } from "../server/server.js";

const directory = resolve(import.meta.dirname, "../../../../examples/typescript");
const INSTALL_MS = 300_000;

interface Running {
  url: string;
  /** All that it printed. */
  text(): string;
  stop(): Promise<void>;
}

/** A free port that the system hands out to nobody else meanwhile: it is below its own. */
const freePort = () =>
  new Promise<number>((resolved) => {
    const port = 10_000 + Math.floor(Math.random() * 20_000);
    const server = createServer();
    server.once("error", () => resolved(freePort()));
    server.listen(port, "127.0.0.1", () => server.close(() => resolved(port)));
  });

/** Starts a program and waits until it answers. */
async function start(cwd: string, args: (port: number) => string[], path: string): Promise<Running> {
  const port = await freePort();
  const inherited = Object.entries(process.env).filter(
    ([key]) => !/^(MODEL$|LANGSMITH|VITEST|NODE_)/.test(key),
  );
  const env = {
    ...Object.fromEntries(inherited),
    SANDGATE_ADDRESS: address,
    PORT: String(port),
    LANGGRAPH_CLI_NO_ANALYTICS: "1",
  };
  const child = spawn("node", args(port), { cwd, env, stdio: ["ignore", "pipe", "pipe"], detached: true });
  let text = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (data) => (text += data));
  // Closed when the last of its processes has ended.
  const ended = new Promise<void>((done) => child.once("close", () => done()));
  const url = `http://127.0.0.1:${port}`;
  const stop = async () => {
    if (child.exitCode === null && child.signalCode === null) {
      process.kill(-(child.pid as number), "SIGTERM");
    }
    await ended;
  };
  const answers = () =>
    fetch(url + path).then(
      (answer) => answer.ok,
      () => false,
    );
  try {
    await expect.poll(answers, { timeout: 180_000, interval: 200 }).toBe(true);
  } catch (error) {
    await stop();
    throw new Error(`it did not start: ${text}`, { cause: error });
  }
  return { url, text: () => text, stop };
}

const ask = (url: string, body?: unknown, method = body === undefined ? "GET" : "POST") =>
  fetch(url, {
    method,
    headers: { "content-type": "application/json" },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });

withServer("the examples", () => {
  const client = new Client({ address });
  const ids = async (app: string) =>
    (await client.listPage({ labels: { app } })).sandboxes.map(({ id }) => id);

  beforeAll(() => {
    // What `npm run service` and `npm run platform` do first.
    for (const script of ["preservice", "preplatform"]) {
      execFileSync("npm", ["run", "--silent", script], { cwd: directory, stdio: "pipe" });
    }
  }, INSTALL_MS);
  afterAll(() => client.close());

  it("are sound", () => {
    execFileSync("npm", ["run", "--silent", "typecheck"], { cwd: directory, stdio: "inherit" });
  }, 120_000);

  it("S3-24 an Express service streams, with one sandbox per thread, over restarts", async () => {
    const service = () => start(directory, () => ["--import", "tsx", "service/app.ts"], "/sandboxes");
    const chat = async ({ url }: Running, thread: string, message: string) => {
      const answer = await ask(`${url}/chat/${thread}`, { message });
      const lines = (await answer.text()).trim().split("\n");
      return lines.map((line) => JSON.parse(line) as Record<string, string>);
    };
    const first = await service();
    let before: Record<string, string>[];
    try {
      // The first piece comes before the command may go on.
      const waiting = "echo first; until test -e go; do sleep 0.05; done; echo second";
      const answer = await ask(`${first.url}/chat/one`, { message: waiting });
      let text = "";
      for await (const piece of answer.body as unknown as AsyncIterable<Uint8Array>) {
        text += new TextDecoder().decode(piece);
        if (text === '{"output":"first\\n"}\n') {
          const [id = ""] = await ids("chat-express");
          await client.sandbox(id).write("/workspace/go", "");
        }
      }
      expect(text.split("\n")[1]).toBe('{"output":"second\\n"}');
      await chat(first, "one", "echo kept > /workspace/x");
      expect(await chat(first, "two", "cat /workspace/x 2>/dev/null || echo none")).toContainEqual({
        output: "none\n",
      });
      before = await chat(first, "one", "cat /workspace/x");
      expect(before[0]).toEqual({ output: "kept\n" });
      expect(await (await ask(`${first.url}/sandboxes`)).json()).toHaveLength(2);
    } finally {
      await first.stop();
    }
    // Another process, as a restart or a replica, finds the same sandboxes.
    const second = await service();
    try {
      expect(await chat(second, "one", "cat /workspace/x")).toEqual(before);
      for (const { id } of (await (await ask(`${second.url}/sandboxes`)).json()) as { id: string }[]) {
        await ask(`${second.url}/sandboxes/${id}`, undefined, "DELETE");
      }
      expect(await (await ask(`${second.url}/sandboxes`)).json()).toEqual([]);
    } finally {
      await second.stop();
    }
  }, 600_000);

  it("S3-24 langgraph dev serves an agent, with one sandbox per thread", async () => {
    const platform = join(directory, "platform");
    const state = join(platform, ".langgraph_api");
    rmSync(state, { recursive: true, force: true });
    const cli = join(platform, "node_modules/@langchain/langgraph-cli/dist/cli/cli.mjs");
    const dev = await start(platform, (port) => [cli, "dev", "--port", String(port), "--no-browser"], "/ok");
    try {
      const made = (await (await ask(`${dev.url}/threads`, {})).json()) as { thread_id: string };
      const run = async (command: string) => {
        const input = { messages: [{ role: "user", content: command }] };
        const answer = await ask(`${dev.url}/threads/${made.thread_id}/runs/wait`, {
          assistant_id: "agent",
          input,
        });
        return (await answer.json()) as { messages: { content: string }[]; sandboxId: string };
      };
      const first = await run("echo kept > /workspace/x");
      const second = await run("cat /workspace/x");
      expect(second.messages.at(-1)?.content).toMatch(/^kept\n/);
      expect(second.sandboxId).toBe(first.sandboxId);
      expect(await ids("platform-js")).toEqual([first.sandboxId]);
      await client.delete(first.sandboxId);
    } finally {
      await dev.stop();
      rmSync(state, { recursive: true, force: true });
    }
  }, 600_000);
});
