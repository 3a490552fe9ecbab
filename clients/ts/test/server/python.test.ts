import { Command, MemorySaver } from "@langchain/langgraph";
import { createDeepAgent, type FileData } from "deepagents";
import { afterAll, beforeAll, expect, it } from "vitest";
import {
  createExecutePythonTool,
  SandgateSandbox,
  SandgateThreadBackend,
  sandgateStreaming,
  TOOL_MODE_PROMPT_SUFFIX,
  threadSandboxId,
} from "../../src/deepagents.js";
import { Client } from "../../src/index.js";
import { outputs, ScriptedModel, turn } from "../scriptedModel.js";
import { address, withServer } from "./server.js";

const python = (code: string) => ({ name: "execute_python", args: { code } });
const contents = (state: unknown) =>
  Object.fromEntries(
    Object.entries((state as { files: Record<string, FileData> }).files).map(([path, f]) => [
      path,
      f.content,
    ]),
  );

withServer("createExecutePythonTool", () => {
  const connection = { address };
  let client: Client;

  beforeAll(() => {
    client = new Client({ address });
  });
  afterAll(() => client?.close());

  it("S2-6 C19 runs Python on the virtual files and copies back what it did to them", async () => {
    await using backend = new SandgateThreadBackend({ connection, ttlMs: 600_000 });
    const model = new ScriptedModel([
      { name: "write_file", args: { file_path: "/data/in.txt", content: "1\n2\n3" } },
      python("print(sum(int(x) for x in open('data/in.txt')))\nopen('out.txt', 'w').write('six')"),
      { name: "read_file", args: { file_path: "/out.txt" } },
      // What changed in the virtual files is there before the next call.
      { name: "edit_file", args: { file_path: "/data/in.txt", old_string: "3", new_string: "30" } },
      python(
        "import os, sys\nprint(open('data/in.txt').read().split())\nos.remove('out.txt')\n" +
          "open('bytes.bin', 'wb').write(bytes(range(256)))\nprint('oops', file=sys.stderr)\nsys.exit(7)",
      ),
    ]);
    const agent = createDeepAgent({
      model,
      tools: [createExecutePythonTool({ backend })],
      systemPrompt: TOOL_MODE_PROMPT_SUFFIX,
      checkpointer: new MemorySaver(),
    });
    const state = await agent.invoke(turn("go"), { configurable: { thread_id: "ts python" } });
    const [, first, read, , second] = outputs(state);
    expect(first).toBe("exit=0\n6\n");
    expect(read).toContain("six");
    expect(second).toBe("exit=7\n['1', '2', '30']\noops\n");
    const files = contents(state);
    expect(Object.keys(files).sort()).toEqual(["/bytes.bin", "/data/in.txt"]);
    expect(files["/data/in.txt"]).toBe("1\n2\n30");
    await client.delete(threadSandboxId("ts python"));
  });

  it("C19 streams, says why Python ended, and takes any sandbox and program", async () => {
    await using backend = await SandgateSandbox.create({ client, commandTimeoutMs: 5_000 });
    const tool = createExecutePythonTool({ backend, directory: "/tmp/app", interpreter: ["sh"] });
    const agent = createDeepAgent({
      model: new ScriptedModel([
        python("pwd; echo $0; sleep 30"),
        python("head -c 2000000 /dev/zero > large"),
      ]),
      tools: [tool],
      middleware: [sandgateStreaming()],
    });
    const deltas: unknown[] = [];
    let last: unknown;
    const stream = await agent.stream(turn("go"), { streamMode: ["tools", "values"] });
    for await (const [mode, chunk] of stream as AsyncIterable<[string, { event?: string; data?: unknown }]>) {
      if (mode === "values") last = chunk;
      else if (chunk.event === "on_tool_event") deltas.push(chunk.data);
    }
    expect(deltas.join("")).toBe("/tmp/app\nsh\n");
    const [late, large] = outputs(last as Parameters<typeof outputs>[0]);
    expect(late).toBe("exit=124\n/tmp/app\nsh\nCommand timed out after 5 seconds");
    expect(large).toContain("[/tmp/app/large is too large to be copied back]");
  });

  it("C19 does not bring back what the agent deleted", async () => {
    await using backend = await SandgateSandbox.create({ client });
    const agent = createDeepAgent({
      model: new ScriptedModel([
        python("open('made', 'w').write('1')"),
        { name: "delete", args: { file_path: "/made" } },
        python("import os; print(os.listdir('.'))"),
      ]),
      tools: [createExecutePythonTool({ backend })],
    });
    const state = await agent.invoke(turn("go"));
    const [, deleted, listed] = outputs(state);
    expect(deleted).not.toMatch(/error/i);
    expect(listed).toBe("exit=0\n[]\n");
    expect(contents(state)).toEqual({});
  });

  it("S2-6 is a tool like any other", async () => {
    const tool = createExecutePythonTool({ sandbox: { connection }, name: "py" });
    expect(tool.name).toBe("py");
    await expect(tool.invoke({ code: "1" })).rejects.toThrow("thread_id");
    await using backend = await SandgateSandbox.create({ client });
    const direct = createExecutePythonTool({ backend });
    const result: unknown = await direct.invoke({ code: "print(6 * 7)" });
    expect(result).toBeInstanceOf(Command);
    expect(JSON.stringify(result)).toContain("exit=0\\n42");
  });
});
