import { createDeepAgent } from "deepagents";
import { afterAll, beforeAll, expect, it } from "vitest";
import { SandgateProvider, SandgateSandbox } from "../../src/deepagents.js";
import { Client } from "../../src/index.js";
import { outputs, ScriptedModel, turn } from "../scriptedModel.js";
import { address, withServer } from "./server.js";

withServer("familiar options", () => {
  let client: Client;

  beforeAll(() => {
    client = new Client({ address });
  });
  afterAll(() => client?.close());

  it("S1-16 S1-20 S1-34 C14 allowPrefixes: writes elsewhere are refused by the server, and run nothing", async () => {
    await using sandbox = await SandgateSandbox.create({ client, allowPrefixes: ["/workspace/out"] });
    expect((await sandbox.write("/workspace/out/a", "1")).error).toBeUndefined();
    expect((await sandbox.write("/workspace/b", "1")).error).toContain("Failed to write");
    expect((await sandbox.write("/workspace/outside", "1")).error).toContain("Failed to write");
    expect((await sandbox.write("/workspace/out/../b", "1")).error).toContain("Failed to write");
    expect((await sandbox.edit("/workspace/out/a", "1", "2")).error).toBeUndefined();
    await client.sandbox(sandbox.id).stat("/workspace/out/a");
    expect((await sandbox.delete("/workspace")).error).toBeDefined();
    const uploads = await sandbox.uploadFiles([
      ["/workspace/out/c", new Uint8Array(1)],
      ["/workspace/d", new Uint8Array(1)],
    ]);
    expect(uploads.map((r) => r.error)).toEqual([null, "permission_denied"]);
    for (const size of [0, 1, 2 << 20]) {
      const [one] = await sandbox.uploadFiles([["/workspace/d", new Uint8Array(size)]]);
      expect(one?.error).toBe("permission_denied");
    }
    expect(await sandbox.sandbox.processes({ includeEnded: true })).toEqual([]);
    // Another client meets the same policy: it is the sandbox's, not this object's.
    await expect(client.sandbox(sandbox.id).write("/workspace/b", "1")).rejects.toMatchObject({
      reason: "POLICY_DENIED",
    });
  });

  it("S4-6 S4-7 C14 denyPrefixes: written by nobody, read by all", async () => {
    await using sandbox = await SandgateSandbox.create({ client, denyPrefixes: ["/workspace/locked"] });
    expect((await sandbox.write("/workspace/locked/x", "1")).error).toContain("Failed to write");
    expect((await sandbox.write("/workspace/free", "1")).error).toBeUndefined();
    expect((await sandbox.edit("/workspace/locked/x", "a", "b")).error).toBeDefined();
    expect((await sandbox.ls("/workspace/locked")).error).toBeUndefined();
    const agent = createDeepAgent({
      model: new ScriptedModel([
        { name: "write_file", args: { file_path: "/workspace/locked/y", content: "no" } },
        { name: "write_file", args: { file_path: "/workspace/z", content: "yes" } },
      ]),
      backend: sandbox,
    });
    const [refused, done] = outputs(await agent.invoke(turn("")));
    expect(refused).toContain("Failed to write");
    expect(done).not.toContain("Failed");
  });

  it("S4-8 C14 denyCommands: a command that contains one is refused", async () => {
    await using sandbox = await SandgateSandbox.create({ client, denyCommands: ["rm -rf"] });
    const { output, exitCode } = await sandbox.execute("echo hi; rm -rf /workspace");
    expect(output).toMatch(/^Error: .*rm -rf/);
    expect(exitCode).toBeNull();
    expect((await sandbox.execute("echo hi")).output).toBe("hi\n");
  });

  it("S1-17 S1-18 S1-19 C13 virtualMode: every file method lies beneath rootDir, and nothing leads out", async () => {
    await using sandbox = await SandgateSandbox.create({
      client,
      virtualMode: true,
      rootDir: "/workspace/root",
      initialFiles: { "first.txt": "first" },
    });
    expect((await sandbox.write("/dir/a.txt", "needle")).error).toBeUndefined();
    expect((await sandbox.execute("cat /workspace/root/dir/a.txt /workspace/root/first.txt")).output).toBe(
      "needlefirst",
    );
    expect((await sandbox.read("/dir/a.txt")).content).toBe("needle");
    expect((await sandbox.ls("/")).files?.map((f) => f.path)).toEqual(["/dir/", "/first.txt"]);
    expect((await sandbox.grep("needle", "/")).matches?.[0]?.path).toBe("/dir/a.txt");
    expect((await sandbox.glob("**/*.txt", "/")).files?.map((f) => f.path)).toEqual([
      "dir/a.txt",
      "first.txt",
    ]);
    expect((await sandbox.edit("/dir/a.txt", "needle", "pin")).occurrences).toBe(1);
    const [up] = await sandbox.uploadFiles([["/up", Buffer.from("up")]]);
    expect(up?.error).toBeNull();
    const [down] = await sandbox.downloadFiles(["/up"]);
    expect(Buffer.from(down?.content ?? []).toString()).toBe("up");
    for (const path of ["/../etc/passwd", "/dir/../../x", "~/x", "/~root/x"]) {
      expect((await sandbox.read(path)).error, path).toMatch(/leads out|not allowed/);
      expect((await sandbox.write(path, "x")).error, path).toContain("leads out");
      expect((await sandbox.ls(path)).error, path).toContain("leads out");
      const [refused] = await sandbox.downloadFiles([path]);
      expect(refused?.error, path).toBe("invalid_path");
    }
    // A link out is no way out either: the server resolves it in the kernel.
    await sandbox.execute("ln -s /etc /workspace/root/etc");
    expect((await sandbox.read("/etc/passwd")).content).toBeUndefined();
  });

  it("S1-18 C13 virtualMode without rootDir begins at /workspace", async () => {
    await using sandbox = await SandgateSandbox.create({ client, virtualMode: true });
    await sandbox.write("/a", "1");
    expect((await sandbox.execute("cat /workspace/a")).output).toBe("1");
  });

  it("S1-20 C13 C14 prefixes are paths of the sandbox, with a virtual root too", async () => {
    await using sandbox = await SandgateSandbox.create({
      client,
      virtualMode: true,
      allowPrefixes: ["/workspace/out/"],
      denyPrefixes: ["/workspace/out/locked"],
    });
    expect((await sandbox.write("/out/a", "1")).error).toBeUndefined();
    expect((await sandbox.write("/b", "1")).error).toContain("Failed to write");
    expect((await sandbox.write("/out/locked/c", "1")).error).toContain("Failed to write");
    expect((await sandbox.execute("cat /workspace/out/a")).output).toBe("1");
    // A link from where writing is allowed to where it is not is no way there.
    await sandbox.execute("mkdir -p /workspace/elsewhere; ln -s ../elsewhere /workspace/out/link");
    expect((await sandbox.write("/out/link/d", "1")).error).toContain("Failed to write");
    // Commands are bound by the prefixes, too.
    expect((await sandbox.execute("ls /workspace/elsewhere")).output).toContain("No such file");
    // What holds the root allows all of it.
    await using whole = await SandgateSandbox.create({
      client,
      virtualMode: true,
      allowPrefixes: ["/workspace/"],
    });
    expect((await whole.write("/b", "1")).error).toBeUndefined();
    await expect(
      SandgateSandbox.create({ client, virtualMode: true, allowPrefixes: ["/etc"] }),
    ).rejects.toThrow("is not beneath rootDir");
  });

  it("C13 finds where relative paths begin in a root that `access` makes virtual", async () => {
    await using owner = await SandgateSandbox.create({
      client,
      access: { rootDir: "/workspace", virtual: true },
      denyPrefixes: ["/workspace/locked"],
      initialFiles: { "a.txt": "needle" },
    });
    expect((await owner.execute("cat /workspace/a.txt")).output).toBe("needle");
    const guest = await SandgateSandbox.connect(owner.id, { client });
    for (const sandbox of [owner, guest]) {
      expect((await sandbox.glob("*.txt", ".")).files?.map((f) => f.path)).toEqual(["a.txt"]);
      expect((await sandbox.write("/locked/x", "1")).error).toContain("Failed to write");
    }
    await guest.close();
  });

  it("C14 holds what only connects to a sandbox to its own policy", async () => {
    await using owner = await SandgateSandbox.create({ client });
    const guest = await SandgateSandbox.connect(owner.id, {
      client,
      denyPrefixes: ["/workspace/locked"],
      denyCommands: ["curl"],
    });
    expect((await guest.write("/workspace/locked/x", "1")).error).toContain("Failed to write");
    expect((await guest.execute("curl x")).output).toMatch(/^Error: /);
    expect((await owner.write("/workspace/locked/x", "1")).error).toBeUndefined();
    const provider = new SandgateProvider({ client, denyPrefixes: ["/workspace/locked"] });
    const taken = await provider.getOrCreate({ sandboxId: owner.id });
    expect((await taken.write("/workspace/locked/y", "1")).error).toContain("Failed to write");
    await guest.close();
    expect((await owner.execute("cat locked/x")).output).toBe("1");
  });

  it("S4-9 S4-10 C15 auditLog: receives every operation, reads too, and never contents", async () => {
    const received: [string, string, Record<string, unknown>][] = [];
    await using sandbox = await SandgateSandbox.create({
      client,
      auditLog: (operation, target, metadata) => received.push([operation, target, metadata]),
    });
    await sandbox.write("/workspace/a", "secret");
    await sandbox.edit("/workspace/a", "secret", "public", true);
    await sandbox.execute("true");
    await sandbox.uploadFiles([["/workspace/b", new Uint8Array(3)]]);
    await sandbox.downloadFiles(["/workspace/b"]);
    await sandbox.read("/workspace/a");
    await sandbox.ls("/workspace");
    await sandbox.grep("x", "/workspace");
    await sandbox.glob("*", "/workspace");
    await sandbox.delete("/workspace/b");
    await sandbox.read("/workspace/missing");
    const error = null;
    expect(received).toEqual([
      ["write", "/workspace/a", { size: 6, error }],
      ["edit", "/workspace/a", { replaceAll: true, error }],
      ["execute", "true", { error, exitCode: 0 }],
      ["upload", "/workspace/b", { size: 3, error }],
      ["download", "/workspace/b", { error }],
      ["read", "/workspace/a", { error }],
      ["ls", "/workspace", { error }],
      ["grep", "/workspace", { error }],
      ["glob", "/workspace", { error }],
      ["delete", "/workspace/b", { error }],
      ["read", "/workspace/missing", { error: "File '/workspace/missing' not found" }],
    ]);
    expect(JSON.stringify(received)).not.toContain("secret");
  });

  it("C15 auditLog: has the error of a command that was refused, timed out or had no sandbox", async () => {
    const received: Record<string, unknown>[] = [];
    await using sandbox = await SandgateSandbox.create({
      client,
      denyCommands: ["curl"],
      auditLog: (_operation, _target, metadata) => received.push(metadata),
    });
    const refused = { error: expect.stringContaining("policy"), exitCode: null };
    const late = { error: "TIMED_OUT", exitCode: 124 };
    const lost = { error: expect.stringContaining("there is no sandbox"), exitCode: null };
    const drained = async (events: AsyncIterable<unknown>) => {
      for await (const _ of events);
    };
    await sandbox.execute("exit 3");
    await sandbox.execute("curl x");
    await expect(drained(sandbox.executeStream("curl x"))).rejects.toThrow("policy");
    await sandbox.execute("sleep 30", { timeoutMs: 100 });
    await drained(sandbox.executeStream("sleep 30", { timeoutMs: 100 }));
    await client.delete(sandbox.id);
    await sandbox.execute("true");
    await expect(drained(sandbox.executeStream("true"))).rejects.toThrow("there is no sandbox");
    expect(received).toEqual([{ error: null, exitCode: 3 }, refused, refused, late, late, lost, lost]);
  });

  it("C17 read: returns a long line whole, and says of a longer one that it is cut", async () => {
    await using sandbox = await SandgateSandbox.create({ client });
    const [long, longer] = ["x".repeat(600_000), "y".repeat(3 << 20)];
    await sandbox.uploadFiles([["/workspace/f", Buffer.from(`${long}\n${longer}\nlast\n`)]]);
    const first = await sandbox.read("/workspace/f");
    expect(first).toMatchObject({ startLine: 1, endLine: 1, nextOffset: 1 });
    expect(first.content === long).toBe(true);
    const second = await sandbox.read("/workspace/f", 1);
    expect(second).toMatchObject({ startLine: 2, endLine: 2, nextOffset: 2 });
    expect(String(second.content).slice((2 << 20) - 1)).toBe(
      "y\n\n[Line 2 was cut after 2097152 bytes: it is too long to be read at once.]",
    );
    expect((await sandbox.read("/workspace/f", 2)).content).toBe("last");
  });

  it("S1-14 S1-15 S3-18 C10 maxOutputSize and commandTimeout", async () => {
    await using sandbox = await SandgateSandbox.create({ client, maxOutputSize: 100, commandTimeout: 3 });
    const cut = await sandbox.execute("seq 1 1000; exit 3");
    expect(cut).toMatchObject({ exitCode: 3, truncated: true });
    expect(cut.output.length).toBe(100);
    expect(await sandbox.execute("echo a; echo b >&2; sleep 30")).toEqual({
      output: "a\nb\nCommand timed out after 3 seconds",
      exitCode: 124,
      truncated: false,
    });
  });

  it("S1-3 S1-13 C4 start and stop: every start is a new sandbox with reuseSandbox false", async () => {
    const sandbox = new SandgateSandbox({ client, reuseSandbox: false });
    await expect(sandbox.execute("true")).rejects.toMatchObject({ code: "NOT_INITIALIZED" });
    await sandbox.start();
    const first = sandbox.id;
    await sandbox.write("/workspace/x", "1");
    await sandbox.stop();
    await sandbox.stop();
    expect(sandbox.isRunning).toBe(false);
    await expect(client.get(first)).rejects.toMatchObject({ name: "SandboxNotFoundError" });
    await sandbox.start();
    expect(sandbox.id).not.toBe(first);
    expect((await sandbox.ls("/workspace")).files).toEqual([]);
    await sandbox.close();
    await expect(client.get(sandbox.id)).rejects.toMatchObject({ name: "SandboxNotFoundError" });
  });

  it("S1-12 S1-21 S1-22 C4 C5 reuseSandbox, sandboxId and skipCleanup: made on first use, kept, found again", async () => {
    const options = { client, sandboxId: "ts-reused", reuseSandbox: true, skipCleanup: true };
    const sandbox = new SandgateSandbox(options);
    expect(sandbox.id).toBe("ts-reused");
    await expect(client.get("ts-reused")).rejects.toMatchObject({ name: "SandboxNotFoundError" });
    const both = await Promise.all([sandbox.write("/workspace/x", "kept"), sandbox.execute("echo hi")]);
    expect(both[1].output).toBe("hi\n");
    await sandbox.stop();
    expect((await sandbox.read("/workspace/x")).content).toBe("kept");
    await sandbox.close();
    await using again = new SandgateSandbox({ ...options, skipCleanup: false, deleteOnClose: true });
    expect((await again.execute("cat x")).output).toBe("kept");
  });

  it("S1-2 S3-23 C4 `await using` deletes what it made, with startupTimeoutMs in bounds", async () => {
    let id = "";
    {
      await using sandbox = await SandgateSandbox.create({ client, startupTimeoutMs: 60_000 });
      id = sandbox.id;
      expect((await sandbox.execute("true")).exitCode).toBe(0);
    }
    await expect(client.get(id)).rejects.toMatchObject({ name: "SandboxNotFoundError" });
    await expect(SandgateSandbox.create({ client, startupTimeoutMs: 1 })).rejects.toMatchObject({
      name: "DeadlineExceededError",
    });
  });
});
