/** Tokens that are replaced in a file; the other clients have the same cases. */

import { mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { status } from "@grpc/grpc-js";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { AuthenticationError, Client, type Sandbox } from "../src/index.js";
import { connection } from "../src/options.js";
import { failure } from "./failure.js";
import { FakeServer } from "./fakeServer.js";

let fake: FakeServer;
let client: Client;
let directory: string;
let file: string;

/** Replaces the token file, as a refresher does. */
function write(token: string): void {
  writeFileSync(`${file}.new`, token);
  renameSync(`${file}.new`, file);
}

beforeEach(async () => {
  fake = await new FakeServer().start();
  directory = mkdtempSync(join(tmpdir(), "sandgate-token-"));
  file = join(directory, "token");
  client = new Client({ address: fake.address, tokenFile: file });
});
afterEach(() => {
  client.close();
  fake.stop();
  rmSync(directory, { recursive: true });
});

const revoked = () =>
  failure(status.UNAUTHENTICATED, "expired while it ran", "CREDENTIALS_INVALID", {
    metadata: { outcome: "unknown" },
  });

describe("a token file", () => {
  it("is read again when it changes", async () => {
    for (const [content, why] of [
      ["\n", "it is empty"],
      ["x".repeat((64 << 10) + 1), "it has more than 65536 bytes"],
    ] as const) {
      write(content);
      await expect(client.serverInfo()).rejects.toMatchObject({
        name: "AuthenticationError",
        message: `the token file ${file} cannot be used: ${why}`,
      });
    }
    rmSync(file);
    await expect(client.serverInfo()).rejects.toMatchObject({
      name: "AuthenticationError",
      message: expect.stringContaining(`the token file ${file} cannot be used: ENOENT`),
      cause: { code: "ENOENT" },
    });
    expect(fake.calls).toEqual([]);
    for (const token of ["one", "two"]) {
      fake.token = token;
      write(`${token}\n`);
      await client.serverInfo();
    }
    expect(fake.calls).toHaveLength(2);
    // While the file is being replaced, the client has the last token.
    write("");
    await client.serverInfo();
    rmSync(file);
    await client.serverInfo();
    expect(fake.calls).toHaveLength(4);
  });

  const address = "127.0.0.1:1";
  const both = { SANDGATE_TOKEN: "e", SANDGATE_TOKEN_FILE: "ef" };
  it.each([
    [{ SANDGATE_TOKEN: "e" }, {}, "e"],
    [{ SANDGATE_TOKEN_FILE: "ef" }, {}, "a file"],
    [both, { token: "o" }, "o"],
    [both, { token: "" }, ""],
    [both, { tokenFile: "of" }, "a file"],
  ])("of %j beside %j", (env, options, expected) => {
    const { token } = connection({ address, ...options }, env);
    expect(typeof token === "function" ? "a file" : token).toBe(expected);
  });

  it("beside a token is an error", () => {
    expect(() => connection({ address }, both)).toThrow("SANDGATE_TOKEN_FILE");
    expect(() => connection({ address, token: "o", tokenFile: "of" }, {})).toThrow("set one of them");
  });

  it("is not sent over a network without TLS", () => {
    expect(() => connection({ address: "example.com:1", tokenFile: "f" }, {})).toThrow("without TLS");
  });
});

describe("a rejected token", () => {
  const calls: [string, (sandbox: Sandbox) => Promise<unknown>][] = [
    ["GetSandbox", (sandbox) => sandbox.info()],
    ["SignalProcess", (sandbox) => sandbox.signal("x", "SIGTERM")],
    ["EditFile", (sandbox) => sandbox.edit("/a", "b", "c")],
    ["Execute", (sandbox) => sandbox.execute("true")],
    ["Download", (sandbox) => sandbox.downloadFile("/x")],
    ["Upload", (sandbox) => sandbox.uploadFile("/x", "x")],
    ["Forward", (sandbox) => sandbox.connect(1)],
  ];

  it.each(calls)("that has changed lets %s be made once more", async (name, call) => {
    write("old");
    fake.token = "new";
    fake.onRejected = () => write("new");
    const error = await call(client.sandbox("a")).catch((e: unknown) => e);
    expect(error).not.toBeInstanceOf(AuthenticationError);
    expect(fake.calls).toEqual([name, name]);
  });

  it.each(calls)("that has not changed fails %s", async (name, call) => {
    write("old");
    fake.token = "new";
    await expect(call(client.sandbox("a"))).rejects.toBeInstanceOf(AuthenticationError);
    expect(fake.calls).toEqual([name]);
  });

  it("leads to one retry if the source changes every time", async () => {
    fake.token = "never";
    let n = 0;
    using other = new Client({ address: fake.address, token: () => `t${n++}` });
    await expect(other.serverInfo()).rejects.toBeInstanceOf(AuthenticationError);
    await expect(other.sandbox("a").execute("true")).rejects.toBeInstanceOf(AuthenticationError);
    expect(fake.calls).toEqual(["GetServerInfo", "GetServerInfo", "Execute", "Execute"]);
  });

  it("leaves the outcome unknown if it was revoked while the call ran", async () => {
    fake.onCall = () => write("new");
    write("old");
    fake.failures.set("GetServerInfo", [revoked()]);
    await client.serverInfo();
    write("old");
    fake.failures.set("EditFile", [revoked()]);
    await expect(client.sandbox("a").edit("/a", "b", "c")).rejects.toBeInstanceOf(AuthenticationError);
    expect(fake.calls).toEqual(["GetServerInfo", "GetServerInfo", "EditFile"]);
  });
});

describe("a stream", () => {
  it("continues with the next token", async () => {
    write("t0");
    fake.token = "t0";
    const sandbox = await client.create({ id: "a" });
    const steps = Array.from({ length: 5 }, (_, i) => join(directory, `step${i}`));
    const script = steps.map((step, i) => `echo ${i}; until [ -e ${step} ]; do sleep 0.01; done`).join("; ");
    let output = "";
    let n = 0;
    for await (const event of sandbox.executeStream(script)) {
      if (event.type !== "output") continue;
      output += event.text;
      write(`t${n + 1}`);
      fake.token = `t${n + 1}`;
      writeFileSync(steps[n++] as string, "");
    }
    expect(output).toBe("0\n1\n2\n3\n4\n");
    expect(fake.calls.filter((name) => name === "Execute")).toHaveLength(1);
    expect(fake.calls.filter((name) => name === "Attach")).toHaveLength(5);
  });

  it("ends if its token has expired and is not replaced", async () => {
    write("old");
    fake.token = "old";
    const sandbox = await client.create({ id: "a" });
    const events = sandbox.executeStream("echo half; sleep 100", { detach: true });
    for await (const event of events) if (event.type === "output") break;
    const attached = sandbox.attach([...fake.processes.keys()][0] as string);
    await attached.next();
    fake.token = "new";
    await expect(
      (async () => {
        for await (const _ of attached);
      })(),
    ).rejects.toBeInstanceOf(AuthenticationError);
    expect(fake.calls.filter((name) => name === "Attach")).toHaveLength(1);
    expect(readFileSync(file, "utf8")).toBe("old");
  });
});
