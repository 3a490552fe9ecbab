import { MemorySaver } from "@langchain/langgraph";
import { createDeepAgent } from "deepagents";
import { afterAll, beforeAll, expect, it } from "vitest";
import {
  SandgateManager,
  SandgateSandbox,
  sandgateStreaming,
  threadSandboxId,
} from "../../src/deepagents.js";
import { Client } from "../../src/index.js";
import { CommandModel, outputs, turn } from "../scriptedModel.js";
import { address, withServer } from "./server.js";
import { TestServer } from "./setup.js";

interface ToolEvent {
  event: string;
  name: string;
  toolCallId?: string;
  data?: unknown;
}

const thread = (name: string) => ({ configurable: { thread_id: name } });

withServer("an agent that streams", () => {
  const connection = { address };
  let client: Client;
  let sandbox: SandgateSandbox;

  beforeAll(async () => {
    client = new Client({ address });
    sandbox = await SandgateSandbox.create({ client });
  });
  afterAll(async () => {
    await sandbox?.close();
    client?.close();
  });

  it("gives each piece of output at once, as an event of its tool call", async () => {
    const agent = createDeepAgent({
      model: new CommandModel(),
      backend: sandbox,
      middleware: [sandgateStreaming()],
    });
    const script = "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two; exit 4";
    const stream = await agent.stream(turn(script), { streamMode: ["tools", "values"] });
    const events: ToolEvent[] = [];
    let last: unknown;
    for await (const [mode, chunk] of stream as AsyncIterable<[string, unknown]>) {
      if (mode === "values") last = chunk;
      if (mode !== "tools") continue;
      const event = chunk as ToolEvent;
      events.push(event);
      // Only now may it go on: without the first piece the test would hang.
      if (event.data === "one\n") await sandbox.write("/workspace/go", "");
    }
    expect(events.map((e) => e.event)).toEqual([
      "on_tool_start",
      "on_tool_event",
      "on_tool_event",
      "on_tool_end",
    ]);
    expect(events.filter((e) => e.event === "on_tool_event").map((e) => e.data)).toEqual(["one\n", "two\n"]);
    expect(new Set(events.map((e) => `${e.name} ${e.toolCallId}`)).size).toBe(1);
    expect(events[0]?.name).toBe("execute");
    // What the model gets is what it gets without streaming.
    const [received] = outputs(last as Parameters<typeof outputs>[0]);
    const plain = createDeepAgent({ model: new CommandModel(), backend: sandbox });
    expect(received).toBe(outputs(await plain.invoke(turn(script)))[0]);
    expect(received).toContain("exit code 4");
  });

  it("gives the output of subagents of the manager's agents, too", async () => {
    await using manager = new SandgateManager({ connection, ttlSeconds: 600 });
    const helper = { name: "helper", description: "Helps.", systemPrompt: "Help." };
    const agent = await manager.createAgent(new CommandModel(), { subagents: [helper] });
    const tasks = turn("task helper: echo by helper", "task general-purpose: echo by general", "echo itself");
    const options = { ...thread("ts subagents"), streamMode: "tools", subgraphs: true } as const;
    const deltas: unknown[] = [];
    for await (const [, event] of (await agent.stream(tasks, options)) as AsyncIterable<
      [string[], ToolEvent]
    >) {
      if (event.event === "on_tool_event" && event.name === "execute") deltas.push(event.data);
    }
    expect(deltas).toEqual(["by helper\n", "by general\n", "itself\n"]);
  });

  it("leaves other tools and other modes as they are", async () => {
    const agent = createDeepAgent({
      model: new CommandModel(),
      backend: sandbox,
      middleware: [sandgateStreaming([])],
    });
    const stream = await agent.stream(turn("echo quiet"), { streamMode: "tools" });
    const events: ToolEvent[] = [];
    for await (const event of stream as AsyncIterable<unknown>) events.push(event as ToolEvent);
    expect(events.map((e) => e.event)).toEqual(["on_tool_start", "on_tool_end"]);
  });

  it("kills the command when its run is cancelled, and leaves no process", async () => {
    const agent = createDeepAgent({ model: new CommandModel(), backend: sandbox });
    const controller = new AbortController();
    const running = agent.invoke(turn("sleep 4321.5 & setsid sleep 4321.5"), { signal: controller.signal });
    running.catch(() => {});
    const list = async () => (await sandbox.execute("ps -ef | grep -c '[s]leep 4321.5'")).output.trim();
    await expect.poll(list).not.toBe("0");
    controller.abort();
    await expect(running).rejects.toThrow();
    await expect.poll(list).toBe("0");
    const commands = async () => (await sandbox.sandbox.processes()).map((p) => p.command);
    await expect.poll(commands).not.toContainEqual(expect.stringContaining("sleep 4321.5"));
  });

  it("S3-20 S3-22 C17 does a session over turns, threads, a restart and a cancelled run", async () => {
    const server = new TestServer();
    await server.start();
    const own = { address: server.address };
    const manager = new SandgateManager({ connection: own, ttlSeconds: 600 });
    const admin = new Client(own);
    try {
      const agent = await manager.createAgent(new CommandModel(), { checkpointer: new MemorySaver() });
      const names = ["session a", "session b"];
      // Turn one: each thread leaves a file in its own sandbox.
      for (const name of names) await agent.invoke(turn(`echo ${name} > who; pip --version`), thread(name));
      await server.stop("SIGKILL");
      await server.start();
      // Turn two: what was left is there, and the output streams.
      for (const name of names) {
        const deltas: unknown[] = [];
        const stream = await agent.stream(turn("cat who"), { ...thread(name), streamMode: "tools" });
        for await (const event of stream as AsyncIterable<unknown>) {
          if ((event as ToolEvent).event === "on_tool_event") deltas.push((event as ToolEvent).data);
        }
        expect(deltas).toEqual([`${name}\n`]);
      }
      // Turn three: a run is cancelled in the middle of a command.
      const controller = new AbortController();
      const config = { ...thread("session a"), signal: controller.signal };
      const running = agent.invoke(turn("echo begun > begun; sleep 8765.5"), config);
      running.catch(() => {});
      const first = await admin.get(threadSandboxId("session a"));
      await expect.poll(async () => (await first.execute("cat begun")).stdout).toBe("begun\n");
      controller.abort();
      await expect(running).rejects.toThrow();
      await expect.poll(async () => await first.processes()).toEqual([]);
      expect((await first.execute("ps -ef | grep -c '[s]leep 8765'")).stdout).toBe("0\n");
      // Turn four: the thread goes on where it was.
      const state = await agent.invoke(turn("cat who begun"), thread("session a"));
      expect(outputs(state)[0]).toContain("session a\nbegun\n");
      expect((state as { sandboxId?: string }).sandboxId).toBe(threadSandboxId("session a"));
      expect((await admin.listPage()).sandboxes.length).toBe(2);
      await manager.shutdown();
      expect((await admin.listPage()).sandboxes).toEqual([]);
    } finally {
      admin.close();
      await manager.shutdown();
      await server.close();
    }
  });

  it("is cancelled for one thread and runs on for another", async () => {
    await using manager = new SandgateManager({ connection, ttlSeconds: 600 });
    const agent = await manager.createAgent(new CommandModel());
    const controller = new AbortController();
    const doomed = agent.invoke(turn("sleep 2222.5"), { ...thread("ts doomed"), signal: controller.signal });
    doomed.catch(() => {});
    const living = agent.invoke(
      turn("while [ ! -e end ]; do sleep 0.05; done; echo lived"),
      thread("ts living"),
    );
    const find = (name: string) => client.sandbox(threadSandboxId(name));
    const count = (name: string) =>
      find(name)
        .processes()
        .then(
          (all) => all.length,
          () => 0,
        );
    await expect.poll(() => count("ts doomed")).toBe(1);
    await expect.poll(() => count("ts living")).toBe(1);
    controller.abort();
    await expect(doomed).rejects.toThrow();
    await expect.poll(() => count("ts doomed")).toBe(0);
    expect(await count("ts living")).toBe(1);
    await find("ts living").write("/workspace/end", "");
    expect(outputs(await living)[0]).toContain("lived");
  });
});
