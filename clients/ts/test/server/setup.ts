/**
 * Starts one real server for these tests: `bin/sandgate serve` on a unix socket.
 * SANDGATE_ADDRESS names another one instead.
 */

import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import type { TestProject } from "vitest/node";
import type { ClientOptions } from "../../src/options.js";

declare module "vitest" {
  export interface ProvidedContext {
    /** Where the server is; empty: there is none. */
    address: string;
    /** Why there is none. */
    reason: string;
  }
}

/** The server's program: SANDGATE_BIN, else what `make build` makes. */
export const PROGRAM =
  process.env["SANDGATE_BIN"] || resolve(import.meta.dirname, "../../../../bin/sandgate");

/** Why no server can be started here. Empty: one can. */
export function whyNot(): string {
  const root = process.getuid?.() === 0;
  const runc = spawnSync("runc", ["--version"]).status === 0;
  return root && runc ? "" : "needs root and runc to start a server; SANDGATE_ADDRESS names a running one";
}

/** How a server of these tests is started. */
export interface ServerOptions {
  /** Flags of `sandgate serve`, beside those for its directory and socket. */
  flags?: string[];
  /** True: it listens on a port of loopback. Default: on a unix socket. */
  tcp?: boolean;
  /** Its configuration file, as JSON, which is YAML too. */
  config?: object;
}

/** A server of these tests. */
export class TestServer {
  readonly directory = mkdtempSync(join(tmpdir(), "sandgate-ts-"));
  /** Where it serves; of a port, known once it has started. */
  address = `unix://${join(this.directory, "server.sock")}`;
  #options: ServerOptions;
  #process: ChildProcess | undefined;

  constructor(options: ServerOptions = {}) {
    this.#options = options;
  }

  /** Starts it and waits until it serves; again where it served before. */
  async start(): Promise<void> {
    if (!existsSync(PROGRAM)) throw new Error(`${PROGRAM} is not there: run "make build" first`);
    const { flags = [], tcp = false, config } = this.#options;
    const listen = tcp && this.address.startsWith("unix:") ? "127.0.0.1:0" : this.address;
    const args = ["serve", "--listen", listen, "--state-dir", join(this.directory, "state"), ...flags];
    if (process.env["SANDGATE_AGENT_BIN"]) args.push("--agent", process.env["SANDGATE_AGENT_BIN"]);
    if (config !== undefined) {
      writeFileSync(join(this.directory, "config.yaml"), JSON.stringify(config));
      args.push("--config", join(this.directory, "config.yaml"));
    }
    const child = spawn(PROGRAM, args, { stdio: ["ignore", "ignore", "pipe"] });
    this.#process = child;
    let log = "";
    await new Promise<void>((ready, failed) => {
      child.stderr?.on("data", (data: Buffer) => {
        log = (log + data.toString()).slice(-10_000);
        const at = /serves at ([^\s,]+),/.exec(log)?.[1];
        if (at === undefined) return;
        if (tcp) this.address = at;
        ready();
      });
      child.once("exit", (code) => failed(new Error(`the server ended with ${code}: ${log}`)));
    });
    child.removeAllListeners("exit");
  }

  /** Ends it, by default as a crash does, and waits for its end. */
  async stop(signal: NodeJS.Signals = "SIGKILL"): Promise<void> {
    const child = this.#process;
    this.#process = undefined;
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
    const ended = new Promise((resolve) => child.once("exit", resolve));
    child.kill(signal);
    await ended;
    rmSync(join(this.directory, "server.sock"), { force: true });
  }

  /** Ends it, deletes its sandboxes, those of its pools too, and its directory. */
  async close(connection: ClientOptions = {}): Promise<void> {
    if (this.#process !== undefined) {
      const { Client } = await import("../../src/client.js");
      const client = new Client({ address: this.address, ...connection });
      for await (const { id } of client.list()) await client.delete(id);
      client.close();
      if (this.#options.config !== undefined) {
        // A pool outlives its server; the next one deletes what it has no pool for.
        await this.stop("SIGTERM");
        const { config: _, ...rest } = this.#options;
        this.#options = rest;
        await this.start();
      }
    }
    await this.stop("SIGTERM");
    rmSync(this.directory, { recursive: true, force: true });
  }
}

export default async function setup(project: TestProject): Promise<(() => Promise<void>) | undefined> {
  const given = process.env["SANDGATE_ADDRESS"];
  const reason = given ? "" : whyNot();
  project.provide("reason", reason);
  if (given || reason !== "") {
    project.provide("address", given ?? "");
    return undefined;
  }
  const server = new TestServer();
  await server.start();
  project.provide("address", server.address);
  return () => server.close();
}
