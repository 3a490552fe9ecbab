/** Retries of broken calls; the other clients have the same cases. */

import { readFileSync, writeFileSync } from "node:fs";
import { status } from "@grpc/grpc-js";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Client, SandgateError, UnavailableError } from "../src/index.js";
import { Retry } from "../src/retry.js";
import { failure } from "./failure.js";
import { FakeServer } from "./fakeServer.js";

const away = (retryAfterMs?: number) =>
  failure(
    status.UNAVAILABLE,
    "restarting",
    "SERVER_SHUTTING_DOWN",
    retryAfterMs === undefined ? {} : { retryAfterMs },
  );

describe("Retry", () => {
  const error = new SandgateError("away", { code: "UNAVAILABLE" });

  beforeEach(() => {
    vi.useFakeTimers({ toFake: ["performance"] });
  });
  afterEach(() => {
    vi.useRealTimers();
  });

  it("doubles the wait up to two seconds, until the window ends", () => {
    const retry = new Retry(() => 60_000);
    const begun = performance.now();
    for (let least = 50; ; least = Math.min(2 * least, 2_000)) {
      const wait = retry.next(error);
      if (wait === undefined) break;
      expect(wait).toBeGreaterThanOrEqual(least);
      expect(wait).toBeLessThanOrEqual(least * 1.25);
      vi.advanceTimersByTime(wait);
    }
    expect(performance.now() - begun).toBeGreaterThan(57_000);
    expect(performance.now() - begun).toBeLessThanOrEqual(60_000);
    retry.progress();
    expect(retry.next(error)).toBeLessThan(65);
  });

  it("begins the window with the first failure", () => {
    const retry = new Retry(() => 30_000);
    vi.advanceTimersByTime(100_000);
    expect(retry.next(error)).toBeDefined();
    vi.advanceTimersByTime(29_000);
    expect(retry.next(error)).toBeDefined();
    vi.advanceTimersByTime(1_000);
    expect(retry.next(error)).toBeUndefined();
    expect(new Retry(() => 0).next(error)).toBeUndefined();
  });

  it.each([
    [0, 50],
    [1_000, 1_000],
    [5_000, 5_000],
    [3_600_000, 5_000],
  ])("waits for %i ms of RetryInfo, but at most five seconds", (retryAfterMs, least) => {
    const wait = new Retry(() => 60_000).next(
      new SandgateError("away", { code: "UNAVAILABLE", retryAfterMs }),
    );
    expect(wait).toBeGreaterThanOrEqual(least);
    expect(wait).toBeLessThanOrEqual(least * 1.25);
  });
});

describe("a broken call", () => {
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

  it("is delayed by RetryInfo", async () => {
    fake.failures.set("GetServerInfo", [away(1_000)]);
    const begun = performance.now();
    await client.serverInfo();
    expect(performance.now() - begun).toBeGreaterThanOrEqual(1_000);
    expect(fake.calls).toEqual(["GetServerInfo", "GetServerInfo"]);
  });

  it("outlasts a server that is away for ten seconds", async () => {
    await client.serverInfo();
    fake.pause();
    const call = client.serverInfo();
    const early = await Promise.race([
      call.then(() => "early"),
      new Promise((resolve) => setTimeout(resolve, 10_000)),
    ]);
    expect(early).toBeUndefined();
    await fake.start();
    expect((await call).provider).toBe("fake");
  });

  it("is not repeated if its outcome is unknown", async () => {
    await client.serverInfo();
    writeFileSync(fake.file("/x"), "a");
    Object.assign(fake, {
      _editFile: (_: unknown, reply: (error: object) => void) => {
        writeFileSync(fake.file("/x"), `${readFileSync(fake.file("/x"), "utf8")}a`);
        reply(away());
      },
    });
    await expect(client.sandbox("a").edit("/x", "a", "aa")).rejects.toBeInstanceOf(UnavailableError);
    expect(fake.calls).toEqual(["GetServerInfo", "EditFile"]);
    expect(readFileSync(fake.file("/x"), "utf8")).toBe("aa");
  });

  it("has one timeout for all attempts", async () => {
    await client.serverInfo();
    fake.failures.set(
      "GetSandbox",
      Array.from({ length: 99 }, () => away()),
    );
    const begun = performance.now();
    await expect(client.get("x", { timeoutMs: 1_000 })).rejects.toBeInstanceOf(SandgateError);
    expect(performance.now() - begun).toBeLessThan(25_000); // less than the retry window
    const calls = fake.calls.filter((name) => name === "GetSandbox").length;
    expect(calls).toBeGreaterThan(1);
    expect(calls).toBeLessThan(8);
  });

  it("is not repeated before the server has answered", async () => {
    fake.pause();
    const begun = performance.now();
    await expect(client.serverInfo()).rejects.toThrow("is `sandgate serve` running");
    await expect(client.sandbox("x").execute("true")).rejects.toThrow("is `sandgate serve` running");
    expect(performance.now() - begun).toBeLessThan(5_000);
  });

  it("is not repeated without a retry window", async () => {
    using strict = new Client({ address: fake.address, reconnectTimeoutMs: 0 });
    await strict.serverInfo();
    fake.failures.set("GetServerInfo", [away()]);
    await expect(strict.serverInfo()).rejects.toBeInstanceOf(UnavailableError);
    expect(fake.calls).toHaveLength(2);
  });
});
