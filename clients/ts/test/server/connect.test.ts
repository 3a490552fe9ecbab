import { createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import { buffer } from "node:stream/consumers";
import { afterAll, beforeAll, expect, it } from "vitest";
import {
  Client,
  ConnectionLostError,
  InvalidRequestError,
  PortClosedError,
  type ProcessEvent,
  type Sandbox,
} from "../../src/index.js";
import { address, withServer } from "./server.js";

/** Listens on two ports, which its first line tells: a SHA-256 at the end; a reset after one byte. */
const PROGRAM = `
import hashlib, socket, socketserver, struct, threading

class Digest(socketserver.BaseRequestHandler):
    def handle(self):
        digest = hashlib.sha256()
        while data := self.request.recv(1 << 16):
            digest.update(data)
        self.request.sendall(digest.digest())

class Reset(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.recv(1)
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def shutdown_request(self, request):
        request.close()  # Not a shutdown first, which would end the connection politely.

servers = [Server(("127.0.0.1", 0), of) for of in (Digest, Reset)]
for server in servers:
    threading.Thread(target=server.serve_forever).start()
print(*(server.server_address[1] for server in servers), flush=True)
`;

withServer("a connection to a sandbox's port", () => {
  let client: Client;
  let sandbox: Sandbox;
  let program: AsyncGenerator<ProcessEvent>;
  let digests = 0;
  let resets = 0;

  beforeAll(async () => {
    client = new Client({ address });
    sandbox = await client.create({ labels: { of: "ts-tests" } });
    program = sandbox.executeStream(["python3", "-c", PROGRAM]);
    for (let ports: number[] = []; ports.length === 0; ) {
      const { value } = await program.next();
      if (value?.type === "output") ports = value.text.split(" ").map(Number);
      [digests = 0, resets = 0] = ports;
    }
  });
  afterAll(async () => {
    await program?.return(undefined);
    await sandbox?.delete();
    client?.close();
  });

  it("ends each direction on its own", async () => {
    const content = randomBytes(16 << 20);
    const all = await Promise.all(
      [1, 2].map(async () => {
        const socket = await sandbox.connect(digests);
        socket.end(content);
        return buffer(socket);
      }),
    );
    const digest = createHash("sha256").update(content).digest();
    expect(all).toEqual([digest, digest]);
  });

  it("has typed errors", async () => {
    const socket = await sandbox.connect(resets);
    socket.write("x");
    const [error] = await once(socket.resume(), "error");
    expect(error).toBeInstanceOf(ConnectionLostError);
    expect(error.reason).toBe("CONNECTION_RESET");
    await expect(sandbox.connect(1)).rejects.toBeInstanceOf(PortClosedError);
    await expect(sandbox.connect(1 << 16)).rejects.toBeInstanceOf(InvalidRequestError);
    await expect(sandbox.connect(digests, { host: "192.0.2.1" })).rejects.toBeInstanceOf(InvalidRequestError);
  });
});
