import { BaseSandbox, createDeepAgent, isSandboxBackend } from "deepagents";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { SandgateSandbox } from "../../src/deepagents.js";
import { Client } from "../../src/index.js";
import { deepagentsSuite } from "../deepagents.suite.js";
import { ScriptedModel } from "../scriptedModel.js";
import { address, withServer } from "./server.js";

withServer("the deepagents contract", () => {
  deepagentsSuite({
    make: (options) => new SandgateSandbox({ connection: { address }, ...options }),
    root: "/tmp/suite",
  });
});

withServer("SandgateSandbox", () => {
  let client: Client;
  let sandbox: SandgateSandbox;
  const received: string[] = [];

  beforeAll(async () => {
    client = new Client({ address });
    sandbox = await SandgateSandbox.create({
      client,
      commandTimeoutMs: 3_000,
      onOutput: (text) => received.push(text),
    });
  });
  afterAll(async () => {
    await sandbox?.close();
    client?.close();
  });

  it("runs no command for any file method", async () => {
    await sandbox.write("/workspace/a.txt", "one\ntwo");
    await sandbox.edit("/workspace/a.txt", "two", "three");
    await sandbox.read("/workspace/a.txt");
    await sandbox.readRaw("/workspace/a.txt");
    await sandbox.ls("/workspace");
    await sandbox.grep("three", "/workspace");
    await sandbox.glob("**/*", "/workspace");
    await sandbox.uploadFiles([["/workspace/b.png", new Uint8Array(10)]]);
    await sandbox.downloadFiles(["/workspace/b.png"]);
    await sandbox.read("/workspace/b.png");
    await sandbox.delete("/workspace/b.png");
    expect(await sandbox.sandbox.processes({ includeEnded: true })).toEqual([]);
    // Nothing that deepagents implements by commands is left as it is.
    const own = [SandgateSandbox.prototype, Object.getPrototypeOf(SandgateSandbox.prototype)].flatMap(
      (prototype) => Object.getOwnPropertyNames(prototype),
    );
    const inherited = Object.getOwnPropertyNames(BaseSandbox.prototype).filter(
      (name) => name !== "constructor",
    );
    expect(own).toEqual(expect.arrayContaining(inherited));
  });

  it("C21 says that its server cannot suspend, where it cannot", async (context) => {
    if ((await client.serverInfo()).capabilities.includes("suspend")) return context.skip("this one can");
    await expect(sandbox.suspend()).rejects.toMatchObject({ name: "UnsupportedError" });
    await expect(sandbox.resume()).rejects.toMatchObject({ name: "UnsupportedError" });
  });

  it("ends a command in time, with what it printed, and leaves no process", async () => {
    const start = performance.now();
    const result = await sandbox.execute("echo begun; sleep 100 & sleep 100");
    expect(performance.now() - start).toBeLessThan(50_000);
    expect(result).toEqual({
      output: "begun\nCommand timed out after 3 seconds",
      exitCode: 124,
      truncated: false,
    });
    const processes = await sandbox.sandbox.processes({ includeEnded: true });
    expect(processes.map((p) => p.liveProcesses)).toEqual(processes.map(() => 0));
    expect((await sandbox.execute("sleep 3.5", { timeoutMs: 30_000 })).exitCode).toBe(0);
  });

  it("tells output as it comes", async () => {
    received.length = 0;
    const script = "echo one; until test -e received; do sleep 0.1; done; echo two >&2";
    const running = sandbox.execute(script, { timeoutMs: 30_000 });
    await expect.poll(() => received).toEqual(["one\n"]);
    await sandbox.write("/workspace/received", "");
    expect((await running).output).toBe("one\ntwo\n");
    expect(received).toEqual(["one\n", "two\n"]);
  });

  it("streams both outputs apart", async () => {
    const seen: string[] = [];
    const script = "echo out; until test -e apart; do sleep 0.1; done; echo err >&2; exit 3";
    for await (const event of sandbox.executeStream(script, { timeoutMs: 30_000 })) {
      if (event.type === "output") seen.push(`${event.stream}:${event.text}`);
      if (seen.length === 1) await sandbox.write("/workspace/apart", "");
      if (event.type === "exited") seen.push(`${event.reason} ${event.exitCode}`);
    }
    expect(seen).toEqual(["stdout:out\n", "stderr:err\n", "EXITED 3"]);
  });

  it("kills the command when its signal aborts", async () => {
    const controller = new AbortController();
    const running = sandbox.execute("sleep 101", { signal: controller.signal, timeoutMs: 60_000 });
    setTimeout(() => controller.abort(), 300);
    await expect(running).rejects.toMatchObject({ code: "CANCELLED" });
    // The kill was delivered; its processes are gone as soon as the kernel ended them.
    const left = async () => (await sandbox.sandbox.processes()).map((p) => p.command);
    await expect.poll(left).not.toContainEqual(expect.stringContaining("sleep 101"));
  });

  it("is what deepagents takes for a sandbox, and an agent works with it", async () => {
    expect(isSandboxBackend(sandbox)).toBe(true);
    const model = new ScriptedModel([
      {
        name: "write_file",
        args: { file_path: "/workspace/sum.sh", content: "echo $((40 + 2)) | tee result.txt\n" },
      },
      { name: "execute", args: { command: "sh /workspace/sum.sh" } },
      { name: "read_file", args: { file_path: "/workspace/result.txt" } },
      { name: "ls", args: { path: "/workspace" } },
      { name: "grep", args: { pattern: "42", path: "/workspace" } },
      { name: "glob", args: { pattern: "*.sh", path: "/workspace" } },
      { name: "edit_file", args: { file_path: "/workspace/sum.sh", old_string: "40", new_string: "50" } },
      { name: "read_file", args: { file_path: "/workspace/sum.sh" } },
    ]);
    const agent = createDeepAgent({ model, backend: sandbox });
    const { messages } = await agent.invoke({ messages: [{ role: "user", content: "add" }] });
    const text = messages.filter((m) => m.getType() === "tool").map((m) => JSON.stringify(m.content));
    expect(text[1]).toContain("[Command succeeded with exit code 0]");
    expect(text[2]).toContain("42");
    expect(text[3]).toContain("/workspace/sum.sh");
    expect(text[4]).toContain("result.txt");
    expect(text[5]).toContain("sum.sh");
    expect(text[7]).toContain("$((50 + 2))");
  });

  describe("the sandbox's life", () => {
    it("ends with what made it, and not with what only uses it", async () => {
      const made = await SandgateSandbox.create({ client });
      const used = await SandgateSandbox.connect(made.id, { connection: { address } });
      await used.write("/workspace/x", "shared");
      expect((await made.execute("cat /workspace/x")).output).toBe("shared");
      await used.close();
      expect((await client.get(made.id)).id).toBe(made.id);
      const again = await SandgateSandbox.create({ client, id: made.id });
      await again.close();
      expect((await made.execute("echo still here")).output).toBe("still here\n");
      await made.close();
      await expect(client.get(made.id)).rejects.toMatchObject({ reason: "SANDBOX_NOT_FOUND" });
    });

    it("ends with `await using`", async () => {
      let id = "";
      {
        await using scoped = await SandgateSandbox.create({ client });
        id = scoped.id;
        expect((await scoped.execute("true")).exitCode).toBe(0);
      }
      await expect(client.get(id)).rejects.toMatchObject({ reason: "SANDBOX_NOT_FOUND" });
    });

    it("is never begun anew: a lost sandbox is an error, not a missing file", async () => {
      const lost = await SandgateSandbox.create({ client });
      await client.delete(lost.id);
      const { output, exitCode } = await lost.execute("echo hello");
      expect(output).toMatch(/^Error: /);
      expect(exitCode).toBeNull();
      for (const { error } of [
        await lost.read("/workspace/x"),
        await lost.ls("/tmp"),
        await lost.grep("x", "/tmp"),
      ]) {
        expect(error).toContain(lost.id);
      }
      await expect(lost.downloadFiles(["/workspace/x"])).rejects.toMatchObject({
        code: "FILE_OPERATION_FAILED",
      });
      await expect(SandgateSandbox.connect(lost.id, { client })).rejects.toMatchObject({
        name: "SandboxNotFoundError",
      });
      await lost.close();
    });
  });
});
