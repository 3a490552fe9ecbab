import { status } from "@grpc/grpc-js";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { SandgateSandbox } from "../src/deepagents.js";
import { Client } from "../src/index.js";
import { failure } from "./failure.js";
import { FakeServer } from "./fakeServer.js";

let fake: FakeServer;
/** Method and value of a header, of every call in order. */
let seen: [string, string][];

beforeEach(async () => {
  fake = await new FakeServer().start();
  seen = [];
});
afterEach(() => fake.stop());

const watch = (key: string) => {
  fake.onCall = (call) => seen.push([fake.calls.at(-1) ?? "", String(call.metadata.get(key))]);
};

/** Gives t1, t2, and so on. */
const counting = () => {
  let n = 0;
  return async () => `t${++n}`;
};

describe("metadata", () => {
  it("is the client's, and a call's before it", async () => {
    watch("x-request-id");
    using client = new Client({ address: fake.address, metadata: { "x-request-id": "all" } });
    const metadata = { "x-request-id": "one" };
    const sandbox = await client.create({ id: "a" });
    await sandbox.execute("true", { metadata });
    await sandbox.uploadFile("/x", "x", { metadata });
    await sandbox.downloadFile("/x", { metadata });
    await sandbox.info({ metadata });
    await sandbox.info();
    expect(seen).toEqual([
      ["CreateSandbox", "all"],
      ["Execute", "one"],
      ["Upload", "one"],
      ["Download", "one"],
      ["GetSandbox", "one"],
      ["GetSandbox", "all"],
    ]);
  });

  it("puts a call into a trace, and its second try too", async () => {
    watch("traceparent");
    using client = new Client({ address: fake.address });
    const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const sandbox = await client.create({ id: "a" });
    fake.faults = { breakAfterBytes: 3 };
    expect((await sandbox.execute("echo 123456", { metadata: { traceparent } })).stdout).toBe("123456\n");
    expect(seen).toEqual([
      ["CreateSandbox", ""],
      ["Execute", traceparent],
      ["Attach", traceparent],
    ]);
  });
});

describe("a token that changes", () => {
  it("is asked for before each attempt", async () => {
    watch("authorization");
    using client = new Client({ address: fake.address, token: counting() });
    const sandbox = await client.create({ id: "a" });
    fake.failures.set("GetSandbox", [failure(status.UNAVAILABLE, "away", "SERVER_SHUTTING_DOWN")]);
    await sandbox.info();
    // The stream breaks once: its second try has the token of that moment.
    fake.faults = { breakAfterBytes: 3 };
    expect((await sandbox.execute("echo 123456")).stdout).toBe("123456\n");
    expect(seen).toEqual([
      ["CreateSandbox", "Bearer t1"],
      ["GetSandbox", "Bearer t2"],
      ["GetSandbox", "Bearer t3"],
      ["Execute", "Bearer t4"],
      ["Attach", "Bearer t5"],
    ]);
  });

  it("serves a backend", async () => {
    watch("authorization");
    const connection = { address: fake.address, token: counting() };
    await using backend = await SandgateSandbox.create({ connection });
    expect((await backend.execute("echo x")).output).toBe("x\n");
    expect(seen.map(([, token]) => token)).toEqual(seen.map((_, i) => `Bearer t${i + 1}`));
  });

  it("fails the call when its source fails", async () => {
    const broken = new Error("the vault is sealed");
    using client = new Client({
      address: fake.address,
      token: () => {
        throw broken;
      },
    });
    const sandbox = client.sandbox("a");
    for (const call of [
      client.serverInfo(),
      sandbox.execute("true"),
      sandbox.uploadFile("/x", ""),
      sandbox.downloadFile("/x"),
    ]) {
      await expect(call).rejects.toMatchObject({
        name: "AuthenticationError",
        code: "UNAUTHENTICATED",
        message: "the token source failed: the vault is sealed",
        cause: broken,
      });
    }
    expect(fake.calls).toEqual([]);
  });

  it("fails the call, without the token in the error, when a header cannot have it", async () => {
    using client = new Client({ address: fake.address, token: () => "hidden\nmore" });
    await expect(client.serverInfo()).rejects.toMatchObject({
      name: "InvalidRequestError",
      message: "the token cannot be sent: it must be printable ASCII without spaces (SANDGATE_TOKEN)",
    });
    expect(fake.calls).toEqual([]);
  });

  it("holds no call longer than its deadline or its signal", async () => {
    using client = new Client({ address: fake.address, token: () => new Promise<string>(() => {}) });
    await expect(client.serverInfo({ timeoutMs: 10 })).rejects.toMatchObject({ code: "DEADLINE_EXCEEDED" });
    const signal = AbortSignal.timeout(10);
    await expect(client.sandbox("a").execute("true", { signal })).rejects.toMatchObject({
      code: "CANCELLED",
    });
    expect(fake.calls).toEqual([]);
  });
});
