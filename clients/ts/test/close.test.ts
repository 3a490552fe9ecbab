/** Closing a client ends its calls at once; the other clients have the same cases. */

import { status } from "@grpc/grpc-js";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { CallCancelledError, Client, type Sandbox } from "../src/index.js";
import { failure } from "./failure.js";
import { FakeServer } from "./fakeServer.js";

let fake: FakeServer;
let client: Client;

beforeEach(async () => {
  fake = await new FakeServer().start();
  client = new Client({ address: fake.address });
});

afterEach(() => {
  client.close();
  fake.stop();
});

const restarting = (name: string) => () => {
  const away = () => failure(status.UNAVAILABLE, "restarting", "SERVER_SHUTTING_DOWN");
  fake.failures.set(name, Array.from({ length: 999 }, away));
};

/** Makes the fake take a call without an answer. */
const hanging = (name: string) => () => {
  Object.assign(fake, { [`_${name}`]: () => {} });
};

describe("close", () => {
  it.each<[string, () => void, (sandbox: Sandbox) => Promise<unknown>, string, number]>([
    ["a retry of a unary call", restarting("GetSandbox"), (s) => s.info(), "GetSandbox", 2],
    ["a retry of a stream", restarting("Execute"), (s) => s.execute("true"), "Execute", 2],
    ["a unary call", hanging("getSandbox"), (s) => s.info(), "GetSandbox", 1],
    ["an upload", hanging("upload"), (s) => s.uploadFile("/x", "x"), "Upload", 1],
    ["a download", hanging("download"), (s) => s.downloadFile("/x"), "Download", 1],
    ["a command", () => {}, (s) => s.execute("exec sleep 1000"), "Execute", 1],
  ])("ends %s", async (_, prepare, call, name, count) => {
    const sandbox = await client.create();
    prepare();
    const running = call(sandbox).catch((error: unknown) => error);
    await vi.waitFor(
      () => expect(fake.calls.filter((n) => n === name).length).toBeGreaterThanOrEqual(count),
      {
        timeout: 60_000,
      },
    );
    client.close();
    expectClosed(await running);
    for (const later of [client.serverInfo(), sandbox.execute("true"), sandbox.uploadFile("/x", "")]) {
      expectClosed(await later.catch((error: unknown) => error));
    }
    client.close();
  });

  it("ends a call that waits for its token", async () => {
    const waiting = new Client({ address: fake.address, token: () => new Promise(() => {}) });
    const running = waiting.serverInfo().catch((error: unknown) => error);
    waiting.close();
    expectClosed(await running);
  });

  it("leaves commands to their disconnect grace", async () => {
    const sandbox = await client.create();
    const running = sandbox.execute("exec sleep 1000").catch((error: unknown) => error);
    await vi.waitFor(() => expect(fake.processes.size).toBe(1), { timeout: 60_000 });
    client.close();
    expectClosed(await running);
    const [process] = fake.processes.values();
    expect(process?.child.exitCode).toBeNull();
    expect(process?.child.signalCode).toBeNull();
    expect(fake.calls).not.toContain("SignalProcess");
  });
});

function expectClosed(error: unknown): void {
  expect(error).toBeInstanceOf(CallCancelledError);
  expect(error).toMatchObject({
    message: "the client is closed",
    code: "CANCELLED",
    reason: "CALL_CANCELLED",
  });
}
