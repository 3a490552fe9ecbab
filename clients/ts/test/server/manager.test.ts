import { Annotation, END, MemorySaver, MessagesAnnotation, START, StateGraph } from "@langchain/langgraph";
import { CompositeBackend, createDeepAgent, StateBackend } from "deepagents";
import { afterAll, beforeAll, expect, it } from "vitest";
import {
  createSandboxBackendFactory,
  RECREATED,
  SandgateManager,
  SandgateThreadBackend,
  threadSandboxId,
} from "../../src/deepagents.js";
import { Client } from "../../src/index.js";
import { CommandModel, outputs, ScriptedModel, turn } from "../scriptedModel.js";
import { address, withServer } from "./server.js";
import { TestServer } from "./setup.js";

const thread = (name: string) => ({ configurable: { thread_id: name } });

withServer("SandgateManager", () => {
  const connection = { address };
  let client: Client;

  beforeAll(() => {
    client = new Client({ address });
  });
  afterAll(() => client?.close());

  it("S3-21 S3-22 C17 gives each thread a sandbox of its own and keeps its id in the state", async () => {
    const checkpointer = new MemorySaver();
    const [one, two] = [threadSandboxId("ts m1"), threadSandboxId("ts m2")];
    {
      await using manager = new SandgateManager({
        connection,
        ttlSeconds: 600,
        defaultLabels: { of: "ts-manager" },
        skipCleanup: true,
      });
      const agent = await manager.createAgent(new CommandModel(), {
        checkpointer,
        systemPrompt: "Be brief.",
      });
      await Promise.all(["ts m1", "ts m2"].map((n) => agent.invoke(turn(`echo ${n} > f`), thread(n))));
      const state = await agent.invoke(turn("cat f"), thread("ts m1"));
      expect(outputs(state)[0]).toContain("ts m1");
      // Typed as what createDeepAgent returns, with the id of the sandbox.
      const id: string | null | undefined = state.sandboxId;
      expect(id).toBe(one);
      // @ts-expect-error messages are no string
      const wrong: string = state.messages;
      expect(wrong).toHaveLength(8);
      const other: { values: { sandboxId?: string } } = await agent.getState(thread("ts m2"));
      expect(other.values.sandboxId).toBe(two);
      expect((await client.get(one).then((s) => s.info())).labels).toMatchObject({ of: "ts-manager" });
    }
    // In another process, what the state knows to have been is not made silently.
    await client.delete(one);
    {
      await using manager = new SandgateManager({ connection, ttlSeconds: 600, skipCleanup: true });
      const agent = await manager.createAgent(new CommandModel(), { checkpointer });
      expect(outputs(await agent.invoke(turn("cat f"), thread("ts m1")))[0]).toContain("sandbox is lost");
      expect(outputs(await agent.invoke(turn("cat f"), thread("ts m2")))[0]).toContain("ts m2");
    }
    {
      await using manager = new SandgateManager({ connection, ttlSeconds: 600, recreate: true });
      const agent = await manager.createAgent(new CommandModel(), {
        checkpointer,
        memory: ["/workspace/AGENTS.md"],
      });
      const [received, after] = outputs(await agent.invoke(turn("cat f", "echo hi"), thread("ts m1")));
      expect(received).toContain(RECREATED);
      expect(after).toContain("hi");
      expect(after).not.toContain(RECREATED);
      await agent.invoke(turn("true"), thread("ts m2"));
      expect(manager.backend.acquired.sort()).toEqual([one, two].sort());
    }
    // S3-23: shutdown deleted them.
    for (const id of [one, two]) await expect(client.get(id)).rejects.toMatchObject({ code: "NOT_FOUND" });
  });

  it("S3-22 C4 makes nothing before the first tool call", async () => {
    await using manager = new SandgateManager({ connection, defaultLabels: { of: "ts-lazy" } });
    const agent = await manager.createAgent(new ScriptedModel([]));
    const state = await agent.invoke(turn("true"), thread("ts lazy"));
    expect((state as { sandboxId?: string }).sandboxId).toBeUndefined();
    expect((await client.listPage({ labels: { of: "ts-lazy" } })).sandboxes).toEqual([]);
  });

  it("S3-22 finds every thread's sandbox again after the server was killed", async () => {
    const server = new TestServer();
    await server.start();
    const manager = new SandgateManager({ connection: { address: server.address }, ttlSeconds: 600 });
    try {
      const agent = await manager.createAgent(new CommandModel(), { checkpointer: new MemorySaver() });
      for (const name of ["r1", "r2"]) await agent.invoke(turn(`echo ${name} > f`), thread(name));
      await server.stop("SIGKILL");
      await server.start();
      for (const name of ["r1", "r2"]) {
        expect(outputs(await agent.invoke(turn("cat f"), thread(name)))[0]).toContain(name);
      }
    } finally {
      await manager.shutdown();
      await server.close();
    }
  });

  it("S3-23 C17 has nodes for graphs that are built by hand", async () => {
    const State = Annotation.Root({
      ...MessagesAnnotation.spec,
      sandboxId: Annotation<string | undefined>,
    });
    await using manager = new SandgateManager({ connection, ttlSeconds: 600 });
    const graph = new StateGraph(State)
      .addNode("setup", manager.createSetupNode())
      .addNode("agent", manager.createAgentNode(new CommandModel()))
      .addEdge(START, "setup")
      .addEdge("setup", "agent")
      .addEdge("agent", END)
      .compile({ checkpointer: new MemorySaver() });
    await graph.invoke(turn("echo kept > f"), thread("ts nodes"));
    const state = await graph.invoke(turn("cat f"), thread("ts nodes"));
    expect(outputs(state)[0]).toContain("kept");
    expect(state.sandboxId).toBe(threadSandboxId("ts nodes"));
    // Lost: setup refuses, in this process and in another one.
    expect(await client.delete(threadSandboxId("ts nodes"))).toBe(true);
    const lost = await graph.invoke(turn("cat f"), thread("ts nodes"));
    expect(outputs(lost)[0]).toContain("sandbox is lost");
    await using other = new SandgateManager({ connection });
    const again = new StateGraph(State)
      .addNode("setup", other.createSetupNode())
      .addEdge(START, "setup")
      .addEdge("setup", END)
      .compile();
    await expect(again.invoke({ sandboxId: "x" }, thread("ts nodes"))).rejects.toMatchObject({
      name: "SandboxReplacedError",
    });
  });

  it("S3-23 C6 reconnects, or says that the sandbox is lost, or makes another one", async () => {
    await using manager = new SandgateManager({ connection, ttlSeconds: 600 });
    const made = await manager.getOrReconnect();
    expect((await manager.getOrReconnect(made.id)).id).toBe(made.id);
    await manager.provider.delete(made.id);
    await expect(manager.getOrReconnect(made.id)).rejects.toMatchObject({ name: "SandboxNotFoundError" });
    await using lenient = new SandgateManager({
      connection,
      recreate: true,
      defaultLabels: { of: "ts-reconnect" },
    });
    const other = await lenient.getOrReconnect(made.id);
    expect(other.id).not.toBe(made.id);
    expect((await other.execute("echo hi")).output).toBe("hi\n");
    await expect.poll(async () => (await lenient.cleanup(0)).deleted).toEqual([other.id]);
  });
});

withServer("SandgateThreadBackend", () => {
  const connection = { address };
  let client: Client;

  beforeAll(() => {
    client = new Client({ address });
  });
  afterAll(() => client?.close());

  it("S3-22 keeps threads apart and is safe under races", async () => {
    await using backend = new SandgateThreadBackend({ connection, ttlMs: 600_000 });
    const agent = createDeepAgent({ model: new CommandModel(), backend });
    const names = Array.from({ length: 4 }, (_, i) => `ts race ${i}`);
    // Two processes' worth of runs on each thread at once, before any sandbox is there.
    await using second = new SandgateThreadBackend({ connection, ttlMs: 600_000 });
    const other = createDeepAgent({ model: new CommandModel(), backend: second });
    await Promise.all(
      names.flatMap((name) => [
        agent.invoke(turn(`echo a >> f; echo ${name} >> g`), thread(name)),
        agent.invoke(turn("echo b >> f"), thread(name)),
        other.invoke(turn("echo c >> f"), thread(name)),
      ]),
    );
    for (const name of names) {
      const [output] = outputs(await agent.invoke(turn("sort f; cat g"), thread(name)));
      expect(output).toContain(`a\nb\nc\n${name}\n`);
    }
    expect(backend.acquired.sort()).toEqual(names.map(threadSandboxId).sort());
    expect(backend.id).toBe("sandgate-threads");
    for (const id of backend.acquired) await client.delete(id);
  });

  it("C6 tells a lost sandbox from a missing file, also when another took its name", async () => {
    await using backend = new SandgateThreadBackend({ connection, ttlMs: 600_000 });
    const agent = createDeepAgent({ model: new CommandModel(), backend });
    await agent.invoke(turn("echo x > f"), thread("ts lost"));
    const id = threadSandboxId("ts lost");
    await client.delete(id);
    const [gone] = outputs(await agent.invoke(turn("cat f"), thread("ts lost")));
    expect(gone).toContain("this thread's sandbox is lost");
    await client.create({ id, ttlMs: 600_000 });
    const [replaced] = outputs(await agent.invoke(turn("cat f"), thread("ts lost")));
    expect(replaced).toContain("this thread's sandbox is lost");
    const readers = createDeepAgent({
      model: new ScriptedModel([
        { name: "read_file", args: { file_path: "/workspace/f" } },
        { name: "ls", args: { path: "/workspace" } },
      ]),
      backend,
    });
    for (const output of outputs(await readers.invoke(turn(""), thread("ts lost")))) {
      expect(output).toContain("this thread's sandbox is lost");
    }
    await client.delete(id);
  });

  it("C6 makes one new sandbox when many operations find the old one lost at once", async () => {
    await using backend = new SandgateThreadBackend({ connection, ttlMs: 600_000, recreate: true });
    const calls = (text: string) => Array.from({ length: 4 }, () => text);
    const agent = createDeepAgent({ model: new CommandModel(), backend });
    await agent.invoke(turn("true"), thread("ts many"));
    await client.delete(threadSandboxId("ts many"));
    const states = await Promise.all(
      calls("echo alive").map((command) => agent.invoke(turn(command, command), thread("ts many"))),
    );
    for (const state of states) {
      const [first, second] = outputs(state);
      expect(first?.includes(RECREATED) || first?.includes("alive")).toBe(true);
      expect(second).toContain("alive");
    }
    expect(states.some((state) => outputs(state)[0]?.includes(RECREATED))).toBe(true);
    await client.delete(threadSandboxId("ts many"));
  });

  it("says what is missing where there is no thread", async () => {
    await using backend = new SandgateThreadBackend({ connection });
    expect((await backend.ls("/")).error).toContain("thread_id");
    await expect(backend.execute("true")).rejects.toMatchObject({ name: "InvalidRequestError" });
    expect(() => new SandgateThreadBackend({ connection, id: "x" } as object)).toThrow("its own sandbox id");
  });

  it("S4-4 S4-5 C18 works from a factory and behind a CompositeBackend", async () => {
    const factory = createSandboxBackendFactory({ connection, ttlMs: 600_000 });
    const model = () =>
      new ScriptedModel([
        { name: "write_file", args: { file_path: "/workspace/real.txt", content: "in the sandbox" } },
        { name: "write_file", args: { file_path: "/memories/note.txt", content: "in the state" } },
        { name: "execute", args: { command: "cat /workspace/real.txt; ls /memories" } },
        { name: "read_file", args: { file_path: "/memories/note.txt" } },
      ]);
    const direct = createDeepAgent({ model: model(), backend: factory });
    expect(outputs(await direct.invoke(turn(""), thread("ts factory")))[2]).toContain("in the sandbox");
    const composite = createDeepAgent({
      model: model(),
      backend: new CompositeBackend(factory.threads, { "/memories/": new StateBackend() }),
    });
    const results = outputs(await composite.invoke(turn(""), thread("ts composite")));
    expect(results[2]).toContain("in the sandbox");
    expect(results[2]).toContain("No such file");
    expect(results[3]).toContain("in the state");
    // Runs without a thread share one sandbox, which goes with the factory.
    const shared = createDeepAgent({ model: new CommandModel(), backend: factory });
    await shared.invoke(turn("echo shared > f"));
    expect(outputs(await shared.invoke(turn("cat f")))[0]).toContain("shared");
    const { id } = factory();
    for (const acquired of factory.threads.acquired) await client.delete(acquired);
    await factory[Symbol.asyncDispose]();
    await expect(client.get(id)).rejects.toMatchObject({ code: "NOT_FOUND" });
  });
});
