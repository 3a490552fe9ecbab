import { createHash } from "node:crypto";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { Client, type ProcessEvent, type Sandbox } from "../../src/index.js";
import { address, withServer } from "./server.js";
import { TestServer, whyNot } from "./setup.js";

const collect = async (events: AsyncIterable<ProcessEvent>) => {
  const all: ProcessEvent[] = [];
  for await (const event of events) all.push(event);
  return all;
};

/** Follows a command; `output` comes true with its first piece of output. */
const followed = (events: AsyncIterable<ProcessEvent>) => {
  let saw: () => void = () => {};
  const output = new Promise<void>((resolve) => {
    saw = resolve;
  });
  const all = (async () => {
    const seen: ProcessEvent[] = [];
    for await (const event of events) {
      seen.push(event);
      if (event.type === "output") saw();
    }
    return seen;
  })();
  return { output, all };
};

const stdoutOf = (events: ProcessEvent[]) => events.map((e) => (e.type === "output" ? e.text : "")).join("");

withServer("a sandbox", () => {
  let client: Client;
  let sandbox: Sandbox;

  beforeAll(async () => {
    client = new Client({ address });
    sandbox = await client.create({ labels: { of: "ts-tests" } });
  });
  afterAll(async () => {
    await sandbox?.delete();
    client?.close();
  });

  it("is deleted at the end of `await using` by the handle that made it, and by no other", async () => {
    let id = "";
    {
      await using made = await client.create();
      id = made.id;
      {
        await using other = await client.get(id);
        expect(other.created).toBe(false);
      }
      expect((await made.info()).state).toBe("ACTIVE");
    }
    await expect(client.get(id)).rejects.toMatchObject({ name: "SandboxNotFoundError" });
  });

  it("is known to its server", async () => {
    const info = await client.serverInfo();
    expect(info.version).not.toBe("");
    expect(info.limits.maxMessageBytes).toBeGreaterThan(1 << 20);
    expect(await sandbox.info()).toMatchObject({
      id: sandbox.id,
      state: "ACTIVE",
      labels: { of: "ts-tests" },
    });
    const ids: string[] = [];
    for await (const { id } of client.list({ labels: { of: "ts-tests" } })) ids.push(id);
    expect(ids).toEqual([sandbox.id]);
    const updated = await client.update(sandbox.id, { setLabels: { more: "yes" }, idleTtlMs: 3_600_000 });
    expect(updated).toMatchObject({ labels: { of: "ts-tests", more: "yes" }, idleTtlMs: 3_600_000 });
  });

  it("is the same for the same id and spec, and no other", async () => {
    const first = await client.create({ id: "ts-same", env: { A: "1" } });
    expect(await client.create({ id: "ts-same", env: { A: "1" } })).toMatchObject({ created: false });
    await expect(client.create({ id: "ts-same", env: { A: "2" } })).rejects.toMatchObject({
      name: "SandboxExistsError",
    });
    expect((await first.execute("echo $A")).stdout).toBe("1\n");
    expect(await first.delete()).toBe(true);
    expect(await first.delete()).toBe(false);
  });

  it("C21 suspends and resumes, or says that its server cannot", async () => {
    if ((await client.serverInfo()).capabilities.includes("suspend")) {
      expect(await sandbox.suspend()).toMatchObject({ state: "SUSPENDED" });
      const { incarnation } = await sandbox.resume();
      expect(sandbox.incarnation).toBe(incarnation);
      return;
    }
    for (const refused of [() => sandbox.suspend(), () => sandbox.resume(), () => client.suspend("any")]) {
      await expect(refused()).rejects.toMatchObject({
        name: "UnsupportedError",
        code: "UNIMPLEMENTED",
        reason: "FEATURE_UNSUPPORTED",
        message: expect.stringContaining("cannot suspend"),
      });
    }
    expect((await sandbox.execute("echo awake")).stdout).toBe("awake\n");
  });

  it("runs commands with what they are given", async () => {
    const options = { cwd: "/tmp", env: { X: "y" }, stdin: "given" };
    const result = await sandbox.execute("pwd; echo $X; cat; echo >&2 err; exit 3", options);
    expect(result).toMatchObject({
      stdout: "/tmp\ny\ngiven",
      stderr: "err\n",
      exitCode: 3,
      reason: "EXITED",
    });
  });

  it.each([
    ["a missing program", ["/no/such/program"], {}, "COMMAND_NOT_FOUND", "CommandStartError"],
    ["what is no program", ["/etc/passwd"], {}, "COMMAND_NOT_EXECUTABLE", "CommandStartError"],
    ["a missing directory", ["true"], { cwd: "/no/such" }, "WORKING_DIRECTORY_INVALID", "CommandStartError"],
    ["a relative directory", ["true"], { cwd: "x" }, undefined, "InvalidRequestError"],
    ["no program at all", [], {}, "REQUEST_INVALID", "InvalidRequestError"],
  ])("says why %s cannot be run", async (_name, argv, options, reason, name) => {
    const error = await sandbox.execute(argv, options).catch((e: unknown) => e);
    expect(error).toMatchObject({ name, ...(reason === undefined ? {} : { reason }) });
    expect((error as Error).message).not.toBe("");
  });

  it("takes standard input piece by piece", async () => {
    const seen: string[] = [];
    for await (const event of sandbox.executeStream(["cat"], { stdinOpen: true, execId: "cat" })) {
      if (event.type === "started") {
        const next = await sandbox.writeStdin("cat", "one ", { offset: 0 });
        expect(await sandbox.writeStdin("cat", "two", { offset: next, eof: true })).toBe(7);
      }
      if (event.type === "output") seen.push(event.text);
    }
    expect(seen.join("")).toBe("one two");
  });

  it("gives a terminal", async () => {
    const result = await sandbox.execute("test -t 0 && stty size", { terminal: { rows: 33, columns: 99 } });
    expect(result.stdout.trim()).toBe("33 99");
  });

  it("signals, lists and lets attach to a detached command", async () => {
    let execId = "";
    for await (const event of sandbox.executeStream("echo up; sleep 103", { detach: true })) {
      if (event.type === "started") execId = event.execId;
      if (event.type === "output") break;
    }
    expect((await sandbox.processes()).map((p) => [p.execId, p.detached])).toContainEqual([execId, true]);
    const following = collect(sandbox.attach(execId));
    expect(await sandbox.signal(execId, "SIGTERM", "TREE")).toBe(true);
    const events = await following;
    expect(events.map((e) => e.type)).toEqual(["started", "output", "exited"]);
    expect(events.at(-1)).toMatchObject({ reason: "KILLED", signal: "SIGTERM" });
    await expect(collect(sandbox.attach("no-such"))).rejects.toMatchObject({ name: "ExecNotFoundError" });
  });

  it("counts output beyond the cap and drops it", async () => {
    const result = await sandbox.execute("head -c 100000 /dev/zero; exit 4", { maxOutputBytes: 1000 });
    expect(result.truncated).toBe(true);
    expect(result.exitCode).toBe(4);
    expect(result.stdoutBytes).toHaveLength(1000);
    expect(result.exited.stdoutBytes).toBe(100_000);
  });

  it("does files natively", async () => {
    expect(await sandbox.makeDirectory("/workspace/d/e")).toBe(true);
    expect(await sandbox.makeDirectory("/workspace/d/e")).toBe(false);
    expect(await sandbox.write("/workspace/d/a.txt", "one\ntwo\n", { mode: 0o600 })).toMatchObject({
      created: true,
    });
    expect(await sandbox.stat("/workspace/d/a.txt")).toMatchObject({
      type: "REGULAR",
      size: 8,
      mode: 0o600,
    });
    expect(await sandbox.read("/workspace/d/a.txt", { offset: 1 })).toMatchObject({
      content: "two",
      startLine: 2,
    });
    expect(await sandbox.edit("/workspace/d/a.txt", "two", "2")).toMatchObject({ occurrences: 1 });
    await sandbox.move("/workspace/d/a.txt", "/workspace/d/b.txt");
    expect((await sandbox.list("/workspace/d")).map((f) => f.path)).toEqual([
      "/workspace/d/b.txt",
      "/workspace/d/e",
    ]);
    const found = await sandbox.search("/workspace/d", "^[0-9]$", { regexp: true, contextBefore: 1 });
    expect(found.matches).toEqual([
      { path: "/workspace/d/b.txt", line: 2, text: "2", before: ["one"], after: [] },
    ]);
    expect((await sandbox.glob("/workspace", "*.txt")).files.map((f) => f.path)).toContain(
      "/workspace/d/b.txt",
    );
    await expect(sandbox.remove("/workspace/d")).rejects.toMatchObject({ reason: "DIRECTORY_NOT_EMPTY" });
    expect(await sandbox.remove("/workspace/d", { recursive: true })).toBe(true);
    expect(await sandbox.remove("/workspace/d", { allowMissing: true })).toBe(false);
    await expect(sandbox.stat("relative")).rejects.toMatchObject({ reason: "PATH_INVALID" });
  });

  it("takes 256 MiB and gives it back, in bounded memory", async () => {
    const size = 256 << 20;
    const block = Uint8Array.from({ length: 1 << 20 }, (_, i) => (i * 13) ^ (i >> 7));
    const sum = createHash("sha256");
    let most = 0;
    const watch = () => {
      most = Math.max(most, process.memoryUsage().arrayBuffers);
    };
    const source = async function* () {
      for (let sent = 0; sent < size; sent += block.length) {
        sum.update(block);
        watch();
        yield block;
      }
    };
    const before = process.memoryUsage().arrayBuffers;
    const { sha256 } = await sandbox.uploadFile("/workspace/256MiB", source());
    const wanted = sum.digest("hex");
    expect(Buffer.from(sha256).toString("hex")).toBe(wanted);
    const down = createHash("sha256");
    for await (const chunk of sandbox.downloadStream("/workspace/256MiB")) {
      down.update(chunk);
      watch();
    }
    expect(down.digest("hex")).toBe(wanted);
    // With what waits to be collected: how much depends on how busy the machine is.
    expect(most - before).toBeLessThan(96 << 20);
    await sandbox.remove("/workspace/256MiB");
  });

  it("ends with a clear reason when it is deleted under a command", async () => {
    const doomed = await client.create();
    const { output, all } = followed(doomed.executeStream("echo up; sleep 100"));
    await output;
    const deleted = doomed.delete();
    expect((await all).at(-1)).toMatchObject({ type: "exited", reason: "SANDBOX_STOPPED" });
    expect(await deleted).toBe(true);
    await expect(doomed.execute("true")).rejects.toMatchObject({ name: "SandboxNotFoundError" });
  });
});

const reason = whyNot();
describe("a server that is killed and started again", () => {
  if (reason !== "") return it.skip(reason, () => {});
  let server: TestServer;
  let client: Client;

  beforeEach(async () => {
    server = new TestServer();
    await server.start();
    client = new Client({ address: server.address });
  });
  afterEach(async () => {
    client.close();
    await server.close();
  });

  it("loses no byte of a running command", async () => {
    const sandbox = await client.create();
    const script = "for i in $(seq 1 40); do echo line $i; sleep 0.05; done; exit 5";
    const { output, all } = followed(sandbox.executeStream(script));
    await output;
    await server.stop("SIGKILL");
    await server.start();
    const events = await all;
    expect(stdoutOf(events)).toBe(Array.from({ length: 40 }, (_, i) => `line ${i + 1}\n`).join(""));
    expect(events.at(-1)).toMatchObject({ reason: "EXITED", exitCode: 5 });
    expect((await sandbox.execute("echo again")).stdout).toBe("again\n");
  });
});
