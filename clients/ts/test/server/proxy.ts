/** A TCP proxy in front of a server's unix socket, whose connections can be cut. */

import { connect, createServer, type Server, type Socket } from "node:net";

/** What a cutting proxy does with the next bytes. */
export class CuttingProxy {
  readonly #target: string;
  readonly #sockets = new Set<Socket>();
  readonly #server: Server;
  readonly #muted = new WeakSet<Socket>();
  #limits: number[] = [];
  #held = false;
  /** How many connections came so far. */
  connections = 0;
  /** How many of them were cut. */
  cuts = 0;

  /** @param target Path of the server's socket. */
  constructor(target: string) {
    this.#target = target;
    this.#server = createServer((client) => this.#join(client));
  }

  /** Starts it; returns the address to use in place of the server's. */
  async start(): Promise<string> {
    await new Promise<void>((ready) => this.#server.listen(0, "127.0.0.1", ready));
    const address = this.#server.address();
    if (address === null || typeof address === "string") throw new Error("no port");
    return `127.0.0.1:${address.port}`;
  }

  /** Cuts each of the next connections after so many bytes, of both ways together. */
  cutAfter(...bytes: number[]): void {
    this.#limits = bytes;
  }

  /** Cuts all connections that are there. */
  cut(): void {
    for (const socket of this.#sockets) socket.destroy();
  }

  /** Lets nothing more through on the connections that are there, and leaves them open. */
  mute(): void {
    for (const socket of this.#sockets) this.#muted.add(socket);
  }

  /** Refuses new connections and cuts the others, until {@link release}. */
  hold(): void {
    this.#held = true;
    this.cut();
  }

  /** Ends {@link hold}. */
  release(): void {
    this.#held = false;
  }

  /** Ends it and its connections. */
  async close(): Promise<void> {
    this.cut();
    await new Promise((closed) => this.#server.close(closed));
  }

  #join(client: Socket): void {
    if (this.#held) {
      client.destroy();
      return;
    }
    this.connections++;
    const server = connect(this.#target);
    const limit = this.#limits.shift();
    let seen = 0;
    const pass = (from: Socket, to: Socket) => {
      this.#sockets.add(from);
      from.on("error", () => {});
      from.on("close", () => {
        this.#sockets.delete(from);
        to.destroy();
      });
      from.on("data", (data) => {
        if (this.#muted.has(from)) return;
        seen += data.length;
        if (limit !== undefined && seen > limit) {
          this.cuts++;
          from.destroy();
          to.destroy();
          return;
        }
        if (!to.write(data)) {
          from.pause();
          to.once("drain", () => from.resume());
        }
      });
    };
    pass(client, server);
    pass(server, client);
  }
}
