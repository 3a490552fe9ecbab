import { createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import * as http from "node:http";
import * as net from "node:net";
import type { Duplex } from "node:stream";
import { buffer } from "node:stream/consumers";
import { pipeline } from "node:stream/promises";
import { afterEach, beforeEach, describe, expect, it, onTestFinished, vi } from "vitest";
import {
  CallCancelledError,
  Client,
  ConnectionLostError,
  DeadlineExceededError,
  PortClosedError,
  SandboxReplacedError,
} from "../src/index.js";
import { FakeForward } from "./fakeForward.js";

const SIZE = 16 << 20;

let fake: FakeForward;
let client: Client;

beforeEach(async () => {
  fake = await new FakeForward().start();
  client = new Client({ address: fake.address });
});

afterEach(async () => {
  await vi.waitFor(() => expect(fake.open).toBe(0), 10_000);
  client.close();
  fake.stop();
});

const connect = (port: number) => client.sandbox("one").connect(port);

/** Listens until the test ends, and returns the port. */
async function listen(server: net.Server): Promise<number> {
  onTestFinished(() => void server.close());
  await once(server.listen(0, "127.0.0.1"), "listening");
  return (server.address() as net.AddressInfo).port;
}

const program = (serve: (socket: net.Socket) => void) =>
  listen(
    net.createServer({ allowHalfOpen: true }, (socket) => {
      socket.on("error", () => {});
      serve(socket);
    }),
  );

const digest = (data: Uint8Array) => createHash("sha256").update(data).digest();

const digestAfterTheEnd = (socket: net.Socket) => {
  const hash = createHash("sha256");
  socket.on("data", (data) => hash.update(data));
  socket.on("end", () => socket.end(hash.digest()));
};

const resetAtOnce = (socket: net.Socket) => socket.once("data", () => socket.resetAndDestroy());

/** Connections of sandboxes, as the guide shows it. */
class Agent extends http.Agent {
  // @ts-expect-error The types lack the callback.
  override createConnection(
    { port }: { port: number },
    done: (error: Error | null, socket?: Duplex) => void,
  ): void {
    connect(Number(port)).then((socket) => done(null, socket), done);
  }
}

function request(options: http.RequestOptions, body: string): Promise<http.IncomingMessage> {
  return new Promise((resolve, reject) => {
    http
      .request({ method: "POST", ...options }, resolve)
      .on("error", reject)
      .end(body);
  });
}

describe("connect", () => {
  it("ends each direction on its own", async () => {
    const socket = await connect(await program(digestAfterTheEnd));
    const content = randomBytes(SIZE);
    socket.end(content);
    expect(await buffer(socket)).toEqual(digest(content));
    await vi.waitFor(() => expect(socket.destroyed).toBe(true));
  });

  it("brings 16 MiB back, in bounded memory", async () => {
    const socket = await connect(await program((one) => one.pipe(one)));
    const content = randomBytes(SIZE);
    const reply = buffer(socket);
    await pipeline([content], socket, { end: true });
    expect(digest(await reply)).toEqual(digest(content));
  });

  it("makes the program wait for a slow reader", async () => {
    let sent = 0;
    const socket = await connect(
      await program((one) => {
        const more = () => {
          do sent += 1 << 16;
          while (sent < 1 << 30 && one.write(Buffer.alloc(1 << 16)));
        };
        one.on("drain", more);
        more();
      }),
    );
    let before = -1;
    await vi.waitFor(
      () => {
        const stalled = sent === before;
        before = sent;
        expect(stalled).toBe(true);
      },
      { timeout: 10_000, interval: 200 },
    );
    expect(sent).toBeLessThan(64 << 20);
    socket.destroy();
  });

  it("carries HTTP with an agent that keeps connections", async () => {
    const server = http.createServer((incoming, reply) => incoming.pipe(reply));
    const port = await listen(server);
    const agent = new Agent({ keepAlive: true });
    for (const text of ["one", "two"]) {
      const reply = await request({ port, agent, timeout: 10_000 }, text);
      expect((await buffer(reply)).toString()).toBe(text);
    }
    expect(fake.started.map((one) => one.port)).toEqual([port]);
    agent.destroy();
  });

  it("carries an upgrade, as of a web socket", async () => {
    const server = http.createServer();
    server.on("upgrade", (_, socket) => {
      socket.write("HTTP/1.1 101 Switching Protocols\r\nupgrade: echo\r\nconnection: upgrade\r\n\r\n");
      socket.pipe(socket);
    });
    const agent = new Agent();
    const headers = { connection: "upgrade", upgrade: "echo" };
    const sent = http.request({ port: await listen(server), agent, headers }).end();
    const [, socket] = (await once(sent, "upgrade")) as [unknown, Duplex];
    socket.write("hello");
    expect(String((await once(socket, "data"))[0])).toBe("hello");
    socket.end();
    await once(socket.resume(), "end");
  });

  it("fails on a port that nothing listens on", async () => {
    const server = net.createServer();
    const port = await listen(server);
    await new Promise((resolve) => server.close(resolve));
    await expect(connect(port)).rejects.toMatchObject({
      constructor: PortClosedError,
      reason: "PORT_CLOSED",
    });
  });

  it("emits an error, never a clean end, when the program resets", async () => {
    const socket = await connect(await program(resetAtOnce));
    const ended = vi.fn();
    socket.on("end", ended);
    socket.write("x");
    const [error] = await once(socket.resume(), "error");
    expect(error).toBeInstanceOf(ConnectionLostError);
    expect(error.reason).toBe("CONNECTION_RESET");
    expect(ended).not.toHaveBeenCalled();
  });

  it("waits for a server that restarts", async () => {
    const port = await program((one) => one.pipe(one));
    (await connect(port)).destroy(); // The server was reached.
    fake.faults.push("SERVER_SHUTTING_DOWN", "SERVER_SHUTTING_DOWN");
    (await connect(port)).destroy();
    expect(fake.started).toHaveLength(4);
  });

  it("has the sandbox's incarnation and errors", async () => {
    fake.faults.push("SANDBOX_REPLACED");
    await expect(connect(1)).rejects.toBeInstanceOf(SandboxReplacedError);
    expect(fake.started[0]).toMatchObject({ sandboxId: "one", host: "localhost", port: 1 });
  });

  it("opens nothing after its timeout or signal", async () => {
    const sandbox = client.sandbox("one");
    await expect(sandbox.connect(1, { host: "slow", timeoutMs: 50 })).rejects.toBeInstanceOf(
      DeadlineExceededError,
    );
    const controller = new AbortController();
    const opening = sandbox.connect(1, { host: "slow", signal: controller.signal });
    await vi.waitFor(() => expect(fake.started).toHaveLength(2));
    controller.abort();
    await expect(opening).rejects.toBeInstanceOf(CallCancelledError);
  });

  it("is open after its signal and timeout", async () => {
    const controller = new AbortController();
    const port = await program((one) => one.pipe(one));
    const options = { signal: controller.signal, timeoutMs: 5_000 };
    const socket = await client.sandbox("one").connect(port, options);
    controller.abort();
    socket.end("x");
    expect((await buffer(socket)).toString()).toBe("x");
  });

  it("resets the program when it is destroyed or the client is closed", async () => {
    const errors: string[] = [];
    const port = await program((one) => one.on("error", (error: Error) => errors.push(error.message)));
    (await connect(port)).destroy();
    await vi.waitFor(() => expect(errors).toHaveLength(1));
    const socket = await connect(port);
    client.close();
    expect((await once(socket, "error"))[0]).toBeInstanceOf(CallCancelledError);
    await vi.waitFor(() => expect(errors).toHaveLength(2));
  });

  it("emits timeout without data", async () => {
    const socket = await connect(await program(() => {}));
    await once(socket.setTimeout(20), "timeout");
    socket.destroy();
  });
});
