import { readFileSync, writeFileSync } from "node:fs";
import { Metadata, status } from "@grpc/grpc-js";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from "vitest";
import {
  Client,
  FileError,
  InvalidRequestError,
  SandboxNotFoundError,
  SandgateError,
  UnsupportedError,
} from "../src/index.js";
import { failure } from "./failure.js";
import { FakeServer } from "./fakeServer.js";

let fake: FakeServer;
let client: Client;

beforeAll(async () => {
  fake = await new FakeServer().start();
  client = new Client({ address: fake.address });
});

beforeEach(() => {
  fake.faults = {};
  fake.calls.length = 0;
});

afterAll(() => {
  client.close();
  fake.stop();
});

describe("Client", () => {
  it("makes up an id, so that a lost reply can be asked for again", async () => {
    fake.failures.set("CreateSandbox", [failure(status.UNAVAILABLE, "away", "SERVER_SHUTTING_DOWN")]);
    await client.serverInfo();
    const sandbox = await client.create();
    expect(sandbox).toMatchObject({ created: true, incarnation: "1" });
    expect(sandbox.id).toMatch(/^sb-[0-9a-f]{32}$/);
    expect(fake.calls).toEqual(["GetServerInfo", "CreateSandbox", "CreateSandbox"]);
    expect((await client.create({ id: sandbox.id })).created).toBe(false);
    expect(await sandbox.info()).toMatchObject({ id: sandbox.id, state: "ACTIVE", labels: {} });
  });

  it("made what it finds under an id that it made up", async () => {
    await client.serverInfo();
    fake.failures.set("CreateSandbox", [failure(status.UNAVAILABLE, "away", "SERVER_SHUTTING_DOWN")]);
    fake.onCall = (call) => fake._createSandbox(call, () => {}); // and its reply is lost
    const sandbox = await client.create().finally(() => {
      fake.onCall = undefined;
    });
    expect(fake.calls).toEqual(["GetServerInfo", "CreateSandbox", "CreateSandbox"]);
    expect(sandbox.created).toBe(true);
  });

  it("sends the rules of an update, also if there are none", async () => {
    const requests: { network?: { allow: object[] } }[] = [];
    const other = await new FakeServer().start();
    Object.assign(other, {
      _updateSandbox: ({ request }: { request: object }, reply: (e: null, v: object) => void) => {
        requests.push(request);
        reply(null, { sandbox: { sandboxId: "a", state: 2, createTime: { seconds: "1" } } });
      },
    });
    const updating = new Client({ address: other.address });
    await updating.update("a", { networkAllow: [{ hosts: ["a.example"], ports: [443] }] });
    await updating.update("a", { networkAllow: [] });
    await updating.update("a", { ttlMs: 1000 });
    expect(requests.map(({ network }) => network?.allow)).toEqual([
      [expect.objectContaining({ hosts: ["a.example"], ports: [443] })],
      [],
      undefined,
    ]);
    updating.close();
    other.stop();
  });

  it("suspends and resumes, and the handle follows", async () => {
    const sandbox = await client.create({ id: "suspended" });
    const other = await client.get("suspended");
    const away = () => [failure(status.UNAVAILABLE, "away", "SERVER_SHUTTING_DOWN")];
    fake.failures.set("SuspendSandbox", away());
    expect(await sandbox.suspend()).toMatchObject({ id: "suspended", state: "SUSPENDED" });
    expect(await client.suspend("suspended")).toMatchObject({ state: "SUSPENDED", incarnation: "1" });
    fake.failures.set("ResumeSandbox", away());
    expect(await sandbox.resume()).toMatchObject({ state: "ACTIVE", incarnation: "1'" });
    expect([sandbox.incarnation, other.incarnation]).toEqual(["1'", "1"]);
    const any = client.sandbox("suspended");
    await any.resume();
    expect(any.incarnation).toBe("");
    await expect(client.suspend("nowhere")).rejects.toBeInstanceOf(SandboxNotFoundError);
  });

  it("returns URLs of ports and files", async () => {
    const sandbox = await client.create({ id: "with-urls" });
    expect(await sandbox.getUrl(3000)).toEqual({
      url: "http://x/?t",
      baseUrl: "http://x/",
      token: "t",
      expireTime: new Date(60_000),
      incarnation: "1",
    });
    await sandbox.getUrl("/f", { method: "PUT", ttlMs: 90_500 });
    expect(fake.urls).toMatchObject([
      { sandboxId: "with-urls", expectedIncarnation: "1", target: { case: "port", value: 3000 }, method: 0 },
      { target: { case: "path", value: "/f" }, method: 2, ttl: { seconds: 90n, nanos: 500_000_000 } },
    ]);
    expect(fake.urls[0]?.ttl).toBeUndefined();
    await expect(sandbox.getUrl(80, { ttlMs: -1 })).rejects.toBeInstanceOf(InvalidRequestError);
  });

  it("says that a provider cannot suspend", async () => {
    const sandbox = await client.create({ id: "awake" });
    fake.faults = { cannotSuspend: true };
    for (const refused of [() => sandbox.suspend(), () => client.resume("awake"), () => sandbox.resume()]) {
      const error = await refused().catch((e: unknown) => e);
      expect(error).toBeInstanceOf(UnsupportedError);
      expect(error).toMatchObject({
        reason: "FEATURE_UNSUPPORTED",
        message: "the provider fake cannot suspend sandboxes",
      });
    }
    expect(sandbox.incarnation).toBe("1");
  });

  it("throws its own errors", async () => {
    const error = await client.get("nowhere").catch((e: unknown) => e);
    expect(error).toBeInstanceOf(SandboxNotFoundError);
    expect(error).toMatchObject({
      name: "SandboxNotFoundError",
      code: "NOT_FOUND",
      reason: "SANDBOX_NOT_FOUND",
      metadata: { sandbox_id: "nowhere" },
      requestId: "request-1",
    });
    await expect(client.poolStatus()).rejects.toBeInstanceOf(UnsupportedError);
  });

  it("lists over pages", async () => {
    for (const id of ["l1", "l2", "l3"]) await client.create({ id, labels: { of: "list" } });
    const ids: string[] = [];
    for await (const info of client.list({ pageSize: 1 })) ids.push(info.id);
    expect(ids).toEqual(expect.arrayContaining(["l1", "l2", "l3"]));
    expect(fake.calls.filter((name) => name === "ListSandboxes")).toHaveLength(ids.length);
  });

  it("does not repeat what is not safe to repeat", async () => {
    const away = () => [failure(status.UNAVAILABLE, "away", "AGENT_UNAVAILABLE")];
    const sandbox = client.sandbox("a");
    fake.failures.set("WriteFile", away());
    const created = sandbox.write("/a", "", { createOnly: true });
    await expect(created).rejects.toBeInstanceOf(SandgateError);
    fake.failures.set("EditFile", away());
    await expect(sandbox.edit("/a", "b", "c")).rejects.toBeInstanceOf(SandgateError);
    expect(fake.calls).toEqual(["WriteFile", "EditFile"]);
  });

  it("repeats an overwriting write", async () => {
    await client.serverInfo();
    fake.calls.length = 0;
    fake.failures.set("WriteFile", [failure(status.UNAVAILABLE, "away", "AGENT_UNAVAILABLE")]);
    expect(await client.sandbox("a").write("/once", "again")).toMatchObject({ size: 5 });
    expect(fake.calls).toEqual(["WriteFile", "WriteFile"]);
  });

  it("waits for a server that restarts before a call that is made once", async () => {
    await client.serverInfo();
    fake.pause();
    await new Promise((resolve) => setTimeout(resolve, 100)); // until that is noticed
    const edit = client.sandbox("a").edit("/a", "b", "c");
    await new Promise((resolve) => setTimeout(resolve, 300));
    fake.calls.length = 0;
    await fake.start();
    await expect(edit).rejects.toMatchObject({ reason: "FEATURE_UNSUPPORTED" }); // the fake's answer
    expect(fake.calls).toEqual(["EditFile"]);
  });

  it("stops waiting for a server when its signal aborts", async () => {
    const other = new Client({ address: fake.address });
    await other.serverInfo();
    fake.pause();
    await new Promise((resolve) => setTimeout(resolve, 100)); // until that is noticed
    const ended = new AbortController();
    const call = { signal: ended.signal };
    const edits = [call, {}].map((o) =>
      other
        .sandbox("a")
        .edit("/a", "b", "c", o)
        .catch((e: unknown) => e),
    );
    setTimeout(() => ended.abort(), 50);
    expect(await edits[0]).toMatchObject({ message: "the caller cancelled" });
    other.close();
    expect(await edits[1]).toMatchObject({ message: "the client is closed" });
    await fake.start();
  });

  it("sends what is made once only once, also where the server goes away under it", async () => {
    const draining = await new FakeServer().start();
    const other = new Client({ address: draining.address, reconnectTimeoutMs: 200 });
    await other.serverInfo();
    const arrived = new Promise<(error: null, value: object) => void>((resolve) => {
      Object.assign(draining, { _editFile: (_: unknown, reply: never) => resolve(reply) });
    });
    const edit = other.sandbox("a").edit("/a", "b", "c");
    edit.catch(() => {});
    const reply = await arrived;
    draining.drain();
    await new Promise((resolve) => setTimeout(resolve, 500)); // longer than its patience
    reply(null, { occurrences: 1 });
    await expect(edit).resolves.toBeDefined();
    expect(draining.calls).toEqual(["GetServerInfo", "EditFile"]);
    other.close();
    draining.stop();
  });

  it("refuses an option that there is not", async () => {
    const options = { ttlSeconds: 60 } as object;
    await expect(client.create(options)).rejects.toThrow(/no option ttlSeconds; there are .*ttlMs/);
    expect(fake.calls).toEqual([]);
  });

  it.each<[string, () => Promise<unknown>]>([
    ["ttlMs", () => client.create({ ttlMs: Number.NaN })],
    ["idleTtlMs", () => client.update("a", { idleTtlMs: Number.POSITIVE_INFINITY })],
    ["timeoutMs", () => client.sandbox("a").execute("true", { timeoutMs: Number.NaN })],
    ["timeoutMs", () => client.serverInfo({ timeoutMs: Number.NaN })],
    ["timeoutMs", () => client.serverInfo({ timeoutMs: -1 })],
    ["timeoutMs", () => client.sandbox("a").edit("/a", "b", "c", { timeoutMs: -1 })],
    ["timeoutMs", () => client.sandbox("a").uploadFile("/a", "b", { timeoutMs: -1 })],
    ["timeoutMs", () => client.sandbox("a").downloadFile("/a", { timeoutMs: -1 })],
    ["maxOutputBytes", () => client.sandbox("a").execute("true", { maxOutputBytes: 1.5 })],
    ["resources.memoryBytes", () => client.create({ resources: { memoryBytes: -1 } })],
    ["limit", () => client.sandbox("a").read("/a", { limit: 1.5 })],
    ["offset", () => client.sandbox("a").downloadFile("/a", { offset: Number.NaN })],
    ["max_processes", () => client.create({ resources: { maxProcesses: 1.5 } })],
  ])("refuses a %s that is no such number, and names it", async (field, call) => {
    const error = await call().catch((e: unknown) => e);
    expect(error).toBeInstanceOf(InvalidRequestError);
    expect((error as Error).message).toContain(field);
    expect(fake.calls).toEqual([]);
  });

  it.each<[string, (text: string) => Promise<unknown>]>([
    ["path", (path) => client.sandbox("a").write(path, "")],
    ["path", (path) => client.sandbox("a").stat(path)],
    ["path", (path) => client.sandbox("a").uploadFile(path, "")],
    ["path", (path) => client.sandbox("a").downloadFile(path)],
    ["destination", (path) => client.sandbox("a").move("/a", path)],
    ["labels", (key) => client.create({ labels: { [key]: "value" } })],
  ])("refuses a %s that is no well-formed text", async (field, call) => {
    for (const half of ["/a\ud83d", "/\ude00a"]) {
      const error = await call(half).catch((e: unknown) => e);
      expect(error).toBeInstanceOf(InvalidRequestError);
      expect((error as Error).message).toContain(field);
    }
    const whole = await call("/a\ud83d\ude00").catch((e: unknown) => e);
    expect(whole).not.toBeInstanceOf(InvalidRequestError);
  });

  it("ends a call at its deadline or signal", async () => {
    const call = { signal: AbortSignal.abort("no") };
    await expect(client.get("a", call)).rejects.toMatchObject({ code: "CANCELLED", cause: "no" });
  });

  describe("with a deadline", () => {
    const MINUTE_MS = 60_000;
    let late = 0;

    beforeEach(() => {
      // Timers stay real: grpc-js's own must not go off before the answer is there.
      vi.useFakeTimers({ toFake: ["Date"] });
      fake.onCall = () => vi.setSystemTime(Date.now() + late);
    });
    afterEach(() => {
      fake.onCall = undefined;
      vi.useRealTimers();
    });

    const cancelled = () => ({ code: status.CANCELLED, details: "Call cancelled", metadata: new Metadata() });

    it.each([
      ["GetSandbox", () => client.get("a", { timeoutMs: MINUTE_MS })],
      ["WriteFile", () => client.sandbox("a").write("/late", "", { timeoutMs: MINUTE_MS })],
      ["Download", () => client.sandbox("a").download(["/a"], { timeoutMs: MINUTE_MS })],
    ])("says of %s that it passed, also where the server's cancelling came first", async (method, call) => {
      late = MINUTE_MS;
      fake.failures.set(method, [cancelled()]);
      await expect(call()).rejects.toMatchObject({
        name: "DeadlineExceededError",
        code: "DEADLINE_EXCEEDED",
        message: `the call did not end within its timeout of ${MINUTE_MS} ms`,
      });
      expect(fake.calls).toEqual([method]);
    });

    it("takes a cancelled call before it for a break", async () => {
      late = MINUTE_MS - 5_000;
      await client.serverInfo();
      fake.failures.set("GetSandbox", [cancelled()]);
      await client.get("nowhere", { timeoutMs: MINUTE_MS }).catch(() => {});
      expect(fake.calls).toEqual(["GetServerInfo", "GetSandbox", "GetSandbox"]);
    });

    it("holds over all repeats", async () => {
      late = 40_000;
      const left: number[] = [];
      fake.onCall = (call) => {
        left.push(call.getDeadline() - Date.now());
        vi.setSystemTime(Date.now() + late);
      };
      fake.failures.set("GetSandbox", [failure(status.UNAVAILABLE, "away", "SERVER_SHUTTING_DOWN")]);
      await client.get("nowhere", { timeoutMs: MINUTE_MS }).catch(() => {});
      expect(left).toHaveLength(2);
      expect(left[0]).toBeGreaterThan(MINUTE_MS - 5_000);
      expect(left[1]).toBeLessThanOrEqual(MINUTE_MS - late);
    });
  });

  it("refuses calls after close", async () => {
    const other = new Client({ address: fake.address });
    other.close();
    other.close();
    await expect(other.serverInfo()).rejects.toMatchObject({ code: "CANCELLED" });
  });
});

describe("files", () => {
  const big = Uint8Array.from({ length: 3 << 20 }, (_, i) => (i * 7) ^ (i >> 9));

  it("go up and down in pieces, in order, one result each", async () => {
    const sandbox = await client.create();
    const results = await sandbox.upload([
      { path: "/a/b/big", source: big },
      { path: "/forbidden", source: "no" },
      { path: "/empty", source: "" },
      { path: "/stream", source: parts(["one ", "two"]) },
    ]);
    expect(results.map((r) => [r.path, r.size, r.error?.reason])).toEqual([
      ["/a/b/big", big.length, undefined],
      ["/forbidden", 2, "FILE_PERMISSION_DENIED"],
      ["/empty", 0, undefined],
      ["/stream", 7, undefined],
    ]);
    const down = await sandbox.download(["/stream", "/missing", "/a/b/big", "/empty"]);
    expect(down.map((r) => r.error?.reason)).toEqual([undefined, "FILE_NOT_FOUND", undefined, undefined]);
    expect(Buffer.from(down[2]?.content ?? []).equals(big)).toBe(true);
    expect(new TextDecoder().decode(down[0]?.content)).toBe("one two");
    expect(await sandbox.upload([])).toEqual([]);
    expect(await sandbox.download([])).toEqual([]);
  });

  it("come in parts and as a stream", async () => {
    const sandbox = await client.create();
    await sandbox.uploadFile("/digits", "0123456789");
    const part = await sandbox.downloadFile("/digits", { offset: 3, limit: 4 });
    expect(new TextDecoder().decode(part)).toBe("3456");
    await expect(sandbox.downloadFile("/missing")).rejects.toBeInstanceOf(FileError);
    await expect(sandbox.uploadFile("/forbidden", "x")).rejects.toMatchObject({ code: "PERMISSION_DENIED" });
  });

  it("are checked by their hash", async () => {
    const sandbox = await client.create();
    fake.faults = { corruptUpload: true };
    await expect(sandbox.uploadFile("/x", "abc")).rejects.toMatchObject({ reason: "FILE_CHECKSUM_MISMATCH" });
    fake.faults = { corruptDownload: true };
    writeFileSync(fake.file("/x"), "abc");
    await expect(sandbox.downloadFile("/x")).rejects.toMatchObject({ reason: "FILE_CHECKSUM_MISMATCH" });
  });

  it("stop asking their source when the server refuses", async () => {
    fake.failures.set("Upload", [failure(status.INVALID_ARGUMENT, "no", "REQUEST_INVALID")]);
    const sandbox = await client.create();
    let asked = 0;
    const source = (async function* () {
      for (; asked < 10_000; asked++) yield new Uint8Array(256 << 10);
    })();
    await expect(sandbox.uploadFile("/x", source)).rejects.toBeInstanceOf(InvalidRequestError);
    expect(asked).toBeLessThan(200);
  });

  it.each<[string, unknown]>([
    ["text", "hello"],
    ["numbers", 7],
    ["buffers that are no bytes", new ArrayBuffer(4)],
    ["nothing", null],
  ])("refuse a source of %s, and leave the old content", async (_, chunk) => {
    const sandbox = await client.create();
    await sandbox.uploadFile("/x", "old");
    const source = async function* () {
      yield chunk as Uint8Array;
    };
    for (const wrong of [source(), source, [chunk] as unknown as AsyncIterable<Uint8Array>]) {
      const error = await sandbox.uploadFile("/x", wrong).catch((e: unknown) => e);
      expect(error).toBeInstanceOf(InvalidRequestError);
      expect((error as Error).message).toContain("must yield Uint8Array");
    }
    await expect(sandbox.upload([{ path: "/x", source }])).rejects.toBeInstanceOf(InvalidRequestError);
    expect(readFileSync(fake.file("/x"), "utf8")).toBe("old");
  });

  it("give up when their source does", async () => {
    const sandbox = await client.create();
    const source = (async function* () {
      yield new Uint8Array(10);
      throw new Error("the disk is gone");
    })();
    await expect(sandbox.uploadFile("/x", source)).rejects.toThrow("the disk is gone");
  });
});

async function* parts(texts: string[]) {
  for (const text of texts) yield new TextEncoder().encode(text);
}
