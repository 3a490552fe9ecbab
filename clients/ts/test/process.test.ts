import { existsSync, writeFileSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";
import { status } from "@grpc/grpc-js";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import {
  CallCancelledError,
  Client,
  CommandStartError,
  ConnectionLostError,
  InternalError,
  type ProcessEvent,
  type Sandbox,
  UnavailableError,
} from "../src/index.js";
import { failure } from "./failure.js";
import { FakeServer } from "./fakeServer.js";

let fake: FakeServer;
let client: Client;
let sandbox: Sandbox;

beforeEach(async () => {
  fake = await new FakeServer().start();
  client = new Client({ address: fake.address });
  sandbox = await client.create();
});

afterEach(() => {
  client.close();
  fake.stop();
});

const collect = async (events: AsyncIterable<ProcessEvent>) => {
  const all: ProcessEvent[] = [];
  for await (const event of events) all.push(event);
  return all;
};

const until = async (what: () => boolean) => {
  for (let n = 0; !what(); n++) {
    if (n > 1_500) throw new Error("it did not come true");
    await pause(10);
  }
};

describe("writeStdin", () => {
  it.each([100_003, Number.POSITIVE_INFINITY])(
    "goes on where the command took %d bytes of it",
    async (most) => {
      const input = Buffer.alloc(3 << 20, "0123456");
      let taken = Buffer.alloc(0);
      const sizes: number[] = [];
      const ends: boolean[] = [];
      // biome-ignore lint/suspicious/noExplicitAny: a call of the fake
      const _writeStdin = ({ request: { offset, data, eof } }: any, reply: any) => {
        taken = Buffer.concat([taken, data.subarray(taken.length - Number(offset)).subarray(0, most)]);
        sizes.push(data.length);
        ends.push(eof);
        reply(null, { nextOffset: BigInt(taken.length) });
      };
      Object.assign(fake, { _writeStdin });
      expect(await sandbox.writeStdin("x", input, { offset: 0, eof: true })).toBe(input.length);
      expect(taken.equals(input)).toBe(true);
      expect(Math.max(...sizes)).toBe(256 << 10);
      expect([ends[0], ends.at(-1)]).toEqual([false, true]);
      // A repeat of the whole adds nothing.
      expect(await sandbox.writeStdin("x", input, { offset: 0, eof: true })).toBe(input.length);
      expect(taken.length).toBe(input.length);
      expect(await sandbox.writeStdin("x", "", { offset: input.length, eof: true })).toBe(input.length);
    },
  );

  it("says that nothing was taken", async () => {
    Object.assign(fake, {
      _writeStdin: (_: unknown, reply: (e: null, v: object) => void) => reply(null, {}),
    });
    await expect(sandbox.writeStdin("x", "input", { offset: 0 })).rejects.toBeInstanceOf(InternalError);
  });
});

describe("execute", () => {
  it("returns both streams apart and together, and the code", async () => {
    const result = await sandbox.execute("echo out; sleep 0.05; echo err >&2; exit 3");
    expect(result).toMatchObject({ stdout: "out\n", stderr: "err\n", output: "out\nerr\n", exitCode: 3 });
    expect(result).toMatchObject({ reason: "EXITED", timedOut: false, truncated: false, signal: "" });
  });

  it("takes an argv", async () => {
    expect((await sandbox.execute(["printf", "%s|", "a b", "$HOME"])).stdout).toBe("a b|$HOME|");
  });

  it("says 124 when the time ended, with what was printed", async () => {
    const result = await sandbox.execute("echo begun; sleep 60", { timeoutMs: 300 });
    expect(result).toMatchObject({ stdout: "begun\n", exitCode: 124, timedOut: true, reason: "TIMED_OUT" });
  });

  it("says 128 + n after a signal", async () => {
    const result = await sandbox.execute("kill -TERM $$");
    expect(result).toMatchObject({ exitCode: 143, reason: "SIGNALED", signal: "SIGTERM" });
  });

  it("keeps every byte and decodes characters across pieces and streams", async () => {
    const script =
      "printf '\\303'; sleep 0.1; printf '\\303' >&2; sleep 0.1; printf '\\274\\000'; sleep 0.1; printf '\\244\\377' >&2";
    const result = await sandbox.execute(script);
    expect(result.stdout).toBe("ü\0");
    expect(result.stderr).toBe("ä\ufffd");
    expect([...result.stdoutBytes]).toEqual([0xc3, 0xbc, 0]);
    expect([...result.stderrBytes]).toEqual([0xc3, 0xa4, 0xff]);
  });

  it("gives a cut character at the end once", async () => {
    const events = await collect(sandbox.executeStream("printf 'a\\303'"));
    expect(events.map((e) => (e.type === "output" ? e.text : "")).join("")).toBe("a\ufffd");
  });

  it("throws what the server refuses, without trying again or killing", async () => {
    fake.failures.set("Execute", [failure(status.NOT_FOUND, "no such program", "COMMAND_NOT_FOUND")]);
    const error = await sandbox.execute("x").catch((e: unknown) => e);
    expect(error).toBeInstanceOf(CommandStartError);
    expect(error).toMatchObject({ reason: "COMMAND_NOT_FOUND", requestId: "request-1" });
    expect(fake.calls.filter((name) => name !== "CreateSandbox")).toEqual(["Execute"]);
  });
});

describe("a broken connection", () => {
  const script = "for i in 1 2 3 4 5 6 7 8; do echo line $i; echo err $i >&2; sleep 0.05; done";
  const whole = Array.from({ length: 8 }, (_, i) => `line ${i + 1}\n`).join("");

  it.each([
    ["before the start", { breakBeforeStart: true }],
    ["in the middle", { breakAfterBytes: 20 }],
    ["at the first byte", { breakAfterBytes: 0 }],
    ["without a status", { breakAfterBytes: 20, endQuietly: true }],
    ["with a repeated piece", { repeatOutput: true }],
  ])("resumes %s", async (_name, faults) => {
    fake.faults = faults;
    const events = await collect(sandbox.executeStream(script));
    const text = events.map((e) => (e.type === "output" && e.stream === "stdout" ? e.text : "")).join("");
    expect(text).toBe(whole);
    expect(events.map((e) => e.type).filter((type) => type !== "output")).toEqual(["started", "exited"]);
    let position = 0;
    for (const event of events) {
      if (event.type !== "output") continue;
      expect(event.position).toBe(position);
      position += event.data.length;
    }
  });

  it("resumes when the server restarts", async () => {
    const running = sandbox.execute("echo before; until test -e again; do sleep 0.05; done; echo after");
    await until(() => fake.sentBytes > 0);
    await fake.restart();
    writeFileSync(fake.file("again"), "");
    expect((await running).stdout).toBe("before\nafter\n");
    expect(fake.calls).toContain("Attach");
  });

  it("is an error that names the position when it does not come back", async () => {
    const impatient = new Client({ address: fake.address, reconnectTimeoutMs: 300 });
    const other = await impatient.create();
    const events = other.executeStream("echo hello; sleep 60");
    const read = async () => {
      for await (const event of events) if (event.type === "output") fake.stop();
    };
    const error = await read().catch((e: unknown) => e);
    expect(error).toBeInstanceOf(ConnectionLostError);
    expect(error).toMatchObject({ metadata: { position: "6" } });
    impatient.close();
  });

  it("is an error at once when the server was never there", async () => {
    const nowhere = new Client({ address: "unix:///does/not/exist.sock" });
    const start = performance.now();
    await expect(nowhere.sandbox("a").execute("true")).rejects.toBeInstanceOf(UnavailableError);
    await expect(nowhere.serverInfo()).rejects.toThrow(
      /^the server at unix:\/\/\/does\/not\/exist.sock cannot/,
    );
    expect(performance.now() - start).toBeLessThan(15_000);
    nowhere.close();
  });

  it("is no excuse for a hole", async () => {
    fake.faults = { loseOutput: true };
    const error = await sandbox.execute("echo a; sleep 0.1; echo b; sleep 60").catch((e: unknown) => e);
    expect(error).toBeInstanceOf(InternalError);
    expect(fake.calls).toContain("SignalProcess");
  });
});

describe("a caller that gives up", () => {
  it("kills the command when its signal aborts", async () => {
    const controller = new AbortController();
    const running = sandbox.execute("echo begun; sleep 60", { signal: controller.signal });
    await until(() => fake.sentBytes > 0);
    controller.abort(new Error("enough"));
    const error = await running.catch((e: unknown) => e);
    expect(error).toBeInstanceOf(CallCancelledError);
    expect(error).toMatchObject({ cause: { message: "enough" } });
    expect([...fake.processes.values()].map((p) => p.killed)).toEqual([true]);
  });

  it("does not start what is aborted already", async () => {
    const running = sandbox.execute("touch started", { signal: AbortSignal.abort() });
    await expect(running).rejects.toBeInstanceOf(CallCancelledError);
    expect(fake.calls).not.toContain("Execute");
    expect(existsSync(fake.file("started"))).toBe(false);
  });

  it("kills the command when it leaves the iteration", async () => {
    for await (const event of sandbox.executeStream("echo begun; sleep 60")) {
      if (event.type === "output") break;
    }
    expect([...fake.processes.values()].map((p) => p.killed)).toEqual([true]);
  });

  it("leaves a detached command alone", async () => {
    let execId = "";
    for await (const event of sandbox.executeStream("echo begun; sleep 0.2; touch done", { detach: true })) {
      if (event.type === "started") execId = event.execId;
      if (event.type === "output") break;
    }
    expect(fake.calls).not.toContain("SignalProcess");
    const events = await collect(sandbox.attach(execId, { position: 6 }));
    expect(events.map((e) => e.type)).toEqual(["started", "exited"]);
    expect(existsSync(fake.file("done"))).toBe(true);
  });

  it("leaves a command that it only watches alone", async () => {
    const running = sandbox.execute("echo begun; sleep 0.3; echo done", { execId: "watched" });
    await until(() => fake.sentBytes > 0);
    for await (const event of sandbox.attach("watched")) {
      if (event.type === "output") break;
    }
    expect((await running).stdout).toBe("begun\ndone\n");
  });
});

describe("a slow reader", () => {
  it("makes the server wait instead of filling memory", async () => {
    const size = 64 << 20;
    let taken = 0;
    for await (const event of sandbox.executeStream(`head -c ${size} /dev/zero`)) {
      if (event.type !== "output") continue;
      if (taken === 0) {
        await pause(500);
        expect(fake.sentBytes).toBeLessThan(16 << 20);
      }
      taken += event.data.length;
    }
    expect(taken).toBe(size);
  });
});

it("states its token, its metadata and the incarnation", async () => {
  const other = new Client({ address: fake.address, token: "t", metadata: { "x-request-id": "mine" } });
  await (await other.create({ id: "b" })).execute("true");
  expect(fake.lastMetadata.get("authorization")).toEqual(["Bearer t"]);
  expect(fake.lastMetadata.get("x-request-id")).toEqual(["mine"]);
  other.close();
});
