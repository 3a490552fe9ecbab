import { createReadStream } from "node:fs";
import { writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as wait } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { Client, type Sandbox } from "../../src/index.js";
import { address, withServer } from "./server.js";

const OLD = "old content";
const PIECE = Buffer.alloc(256 << 10, "x");

/** A source that goes on until its consumer leaves. */
async function* endless(): AsyncGenerator<Uint8Array> {
  for (;;) {
    yield PIECE;
    await wait(1);
  }
}

/** A source that fails after some pieces. */
async function* failing(pieces: number): AsyncGenerator<Uint8Array> {
  for (let i = 0; i < pieces; i++) yield PIECE;
  throw new Error("the source failed");
}

/** A source that yields once and then nothing, for ever. */
async function* hanging(): AsyncGenerator<Uint8Array> {
  yield PIECE;
  await new Promise(() => {});
}

withServer("an upload that does not end well C16", () => {
  const local = join(tmpdir(), `sandgate-upload-${process.pid}`);
  let client: Client;
  let sandbox: Sandbox;

  beforeAll(async () => {
    client = new Client({ address });
    sandbox = await client.create();
    await writeFile(local, Buffer.alloc(8 << 20, "y"));
  });
  afterAll(async () => {
    await sandbox?.delete();
    client?.close();
  });

  const soon = () => AbortSignal.timeout(15);
  const cases: Record<string, (path: string) => Promise<unknown>> = {
    "a stream of a file that is not there": (path) =>
      sandbox.uploadFile(path, createReadStream("no-such-file")),
    "a function that opens a file that is not there": (path) =>
      sandbox.uploadFile(path, () => createReadStream("no-such-file")),
    "a source that fails at once": (path) => sandbox.uploadFile(path, failing(0)),
    "a source that fails in the middle": (path) => sandbox.uploadFile(path, failing(3)),
    "a function whose source fails in the middle": (path) => sandbox.uploadFile(path, () => failing(3)),
    "an aborted iterable": (path) => sandbox.uploadFile(path, endless(), { signal: soon() }),
    "an aborted function": (path) => sandbox.uploadFile(path, () => endless(), { signal: soon() }),
    "an aborted file": (path) => sandbox.uploadFile(path, createReadStream(local), { signal: soon() }),
    "an aborted source that hangs": (path) => sandbox.uploadFile(path, hanging(), { signal: soon() }),
    "a deadline of an iterable": (path) => sandbox.uploadFile(path, endless(), { timeoutMs: 15 }),
    "a deadline of a function": (path) => sandbox.uploadFile(path, () => endless(), { timeoutMs: 15 }),
    "a deadline with a source that hangs": (path) => sandbox.uploadFile(path, hanging(), { timeoutMs: 15 }),
    "bytes that are aborted": (path) =>
      sandbox.uploadFile(path, Buffer.alloc(16 << 20), { signal: AbortSignal.timeout(1) }),
    "several files, aborted": (path) =>
      sandbox.upload(
        [
          { path: `${path}-first`, source: "whole" },
          { path, source: endless() },
        ],
        { signal: soon() },
      ),
  };

  it.each(Object.entries(cases))("keeps the old content after %s", async (name, act) => {
    const paths = Array.from({ length: 8 }, (_, i) => `/workspace/${name.replaceAll(" ", "-")}-${i}`);
    for (const path of paths) await sandbox.write(path, OLD);
    const ends = await Promise.allSettled(paths.map((path) => act(path)));
    // What did not end in its 15 ms may have ended well on a slow machine only where it can end.
    if (!name.includes("aborted file") && !name.includes("bytes")) {
      expect(ends.map(({ status }) => status)).toEqual(paths.map(() => "rejected"));
    }
    // The server is done with a cancelled stream when it answers this one's commands.
    await sandbox.execute("true");
    for (const [i, path] of paths.entries()) {
      if (ends[i]?.status === "rejected") {
        expect(Buffer.from(await sandbox.downloadFile(path)).toString(), path).toBe(OLD);
      }
    }
  });

  it("reports how much of a file is done", async () => {
    const up: number[] = [];
    await sandbox.uploadFile("/workspace/progress", () => createReadStream(local), {
      progress: (done) => up.push(done),
    });
    expect(up.at(-1)).toBe(8 << 20);
    const down: [number, number][] = [];
    await sandbox.downloadFile("/workspace/progress", {
      offset: 1 << 20,
      progress: (...step) => down.push(step),
    });
    expect(down.at(-1)).toEqual([7 << 20, 7 << 20]);
    await expect(sandbox.downloadFile("/workspace/progress", { timeoutMs: 1 })).rejects.toMatchObject({
      name: "DeadlineExceededError",
      message: "the call did not end within its timeout of 1 ms",
    });
  });
});

withServer("closing a client", () => {
  let client: Client;
  let sandbox: Sandbox;

  beforeAll(async () => {
    client = new Client({ address });
    sandbox = await client.create();
  });
  afterAll(async () => {
    await sandbox?.delete();
    client?.close();
  });

  it("ends the calls under way", async () => {
    await sandbox.write("/workspace/closing", OLD);
    const closing = new Client({ address });
    const own = closing.sandbox(sandbox.id);
    const command = own.executeStream("echo started; sleep 20");
    const ends = [
      (async () => {
        for await (const event of command) if (event.type === "output") closing.close();
      })(),
      own.uploadFile("/workspace/closing", endless()),
      own.uploadFile("/workspace/closing", hanging()),
    ];
    for (const end of await Promise.allSettled(ends)) {
      expect(end).toMatchObject({
        status: "rejected",
        reason: { name: "CallCancelledError", message: "the client is closed" },
      });
    }
    await expect(own.info()).rejects.toMatchObject({ message: "the client is closed" });
    expect(Buffer.from(await sandbox.downloadFile("/workspace/closing")).toString()).toBe(OLD);
  });
});

describe("one signal for many calls", () => {
  it.skipIf(address === "")("warns of no leak", async () => {
    const warnings: Error[] = [];
    const warn = (warning: Error) => warnings.push(warning);
    process.on("warning", warn);
    using client = new Client({ address });
    await client.serverInfo();
    const { signal } = new AbortController();
    await Promise.all(Array.from({ length: 30 }, () => client.serverInfo({ signal })));
    await wait(10);
    process.off("warning", warn);
    expect(warnings).toEqual([]);
  });
});
