import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { readFileSync, renameSync, writeFileSync } from "node:fs";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { SandgateSandbox } from "../../src/deepagents.js";
import { Client } from "../../src/index.js";
import { Certificates } from "../certificates.js";
import { CuttingProxy } from "./proxy.js";
import { address, withServer } from "./server.js";
import { PROGRAM, TestServer } from "./setup.js";

withServer("a server with TLS and authentication", () => {
  const made = new Certificates();
  const at = (name: string) => made.at(name);
  /** Makes a token, notes its hash for the server, and returns it. */
  const token = (name: string, tenant: string, entries: string[]): string => {
    const file = at(`${name}.entry`);
    const made = execFileSync(
      "sh",
      ["-c", `"$0" token new --name ${name} --tenant ${tenant} 2>${file}`, PROGRAM],
      {
        encoding: "utf8",
      },
    );
    entries.push(/- \{.*\}/.exec(readFileSync(file, "utf8"))?.[0] ?? "");
    return made.trim();
  };
  let server: TestServer;
  let tokens: { alice: string; bob: string };
  const clients: Client[] = [];
  const connect = (options: ConstructorParameters<typeof Client>[0]) => {
    const client = new Client({ address: `https://${server.address}`, caFile: at("ca.pem"), ...options });
    clients.push(client);
    return client;
  };

  beforeAll(async () => {
    made.authority("ca");
    made.authority("stranger");
    made.signed("server", "ca", "subjectAltName=IP:127.0.0.1,DNS:localhost");
    const carol = { subject: "/CN=carol/O=ops" };
    made.signed("carol", "ca", "extendedKeyUsage=clientAuth", carol);
    made.signed("mallory", "stranger", "extendedKeyUsage=clientAuth", carol);
    const entries: string[] = [];
    tokens = { alice: token("alice", "research", entries), bob: token("bob", "sales", entries) };
    writeFileSync(at("tokens.yaml"), `tokens:\n${entries.map((entry) => `  ${entry}\n`).join("")}`);
    server = new TestServer({
      tcp: true,
      flags: [
        ...["--tls-cert", at("server.pem"), "--tls-key", at("server.key"), "--tls-client-ca", at("ca.pem")],
        ...["--tokens-file", at("tokens.yaml"), "--audit-file", at("audit.log")],
      ],
    });
    await server.start();
  });
  afterAll(async () => {
    for (const name of ["alice", "bob"] as const) {
      const client = connect({ token: tokens[name] });
      for await (const { id } of client.list()) await client.delete(id);
    }
    const carol = connect({ certFile: at("carol.pem"), keyFile: at("carol.key") });
    for await (const { id } of carol.list()) await carol.delete(id);
    for (const client of clients) client.close();
    await server.stop("SIGTERM");
    await server.close();
    made.remove();
  });

  it("knows a caller by its token, and keeps tenants apart", async () => {
    const [alice, bob] = [connect({ token: tokens.alice }), connect({ token: tokens.bob })];
    expect((await alice.serverInfo()).principal).toEqual({ name: "alice", tenant: "research", role: "user" });
    const [hers, his] = await Promise.all([alice.create({ id: "thread-1" }), bob.create({ id: "thread-1" })]);
    await hers.write("/workspace/secret", "hers");
    await expect(his.stat("/workspace/secret")).rejects.toMatchObject({ reason: "FILE_NOT_FOUND" });
    expect((await hers.execute("cat secret")).stdout).toBe("hers");
    const only = await alice.create({ id: "only-hers" });
    await expect(bob.get(only.id)).rejects.toMatchObject({ name: "SandboxNotFoundError" });
    await only.delete();
  });

  it("follows a command whose token expires and is replaced in its file", async () => {
    /** Lets the server accept a token, and puts it into the client's file. */
    const renew = (name: string, lifetimeMs: number) => {
      const sha256 = createHash("sha256").update(`${name}-secret`).digest("hex");
      const expires = new Date(Date.now() + lifetimeMs).toISOString();
      const entry = JSON.stringify({ name, tenant: "research", sha256, expires });
      const file = readFileSync(at("tokens.yaml"), "utf8");
      writeFileSync(at("tokens.new"), `${file}  - ${entry}\n`);
      renameSync(at("tokens.new"), at("tokens.yaml"));
      writeFileSync(at("token.new"), `${name}-secret\n`);
      renameSync(at("token.new"), at("token"));
    };
    const sandbox = await connect({ token: tokens.alice }).create({ id: "followed" });
    renew("first", 6_000);
    const client = connect({ tokenFile: at("token") });
    // Until the server has read its tokens again.
    await expect.poll(() => client.serverInfo().catch(() => undefined)).toBeDefined();
    let output = "";
    let renewed = false;
    for await (const event of client
      .sandbox(sandbox.id)
      .executeStream("for n in $(seq 90); do echo $n; sleep 0.1; done")) {
      if (event.type === "output") output += event.text;
      if (!renewed) renew("second", 600_000);
      renewed = true;
    }
    expect(output).toBe(Array.from({ length: 90 }, (_, i) => `${i + 1}\n`).join(""));
    expect(readFileSync(at("audit.log"), "utf8")).toContain('"operation":"Attach"');
    await sandbox.delete();
  });

  it("knows a caller by its certificate", async () => {
    const carol = connect({ certFile: at("carol.pem"), keyFile: at("carol.key") });
    expect((await carol.serverInfo()).principal.name).toBe("carol");
    const backend = await SandgateSandbox.create({ client: carol });
    expect((await backend.execute("echo hello")).output).toBe("hello\n");
    await backend.close();
  });

  it.each([
    ["no credentials", () => ({}), /^AuthenticationError: /],
    ["a wrong token", () => ({ token: "sgt_wrong" }), /^AuthenticationError: /],
    [
      "a stranger's certificate",
      () => ({ certFile: at("mallory.pem"), keyFile: at("mallory.key") }),
      /^UnavailableError: .*; it ended the TLS handshake/,
    ],
    [
      "an authority that did not sign the server",
      () => ({ caFile: at("stranger.pem"), token: tokens.alice }),
      /^UnavailableError: .*; its certificate is not trusted/,
    ],
    [
      "no TLS",
      () => ({ address: server.address, caFile: "", token: tokens.alice }),
      /^UnavailableError: .*; if it speaks TLS/,
    ],
  ])("refuses %s", async (_name, options, received) => {
    const error = await connect(options())
      .serverInfo({ timeoutMs: 10_000 })
      .catch((e: Error) => e);
    expect(String(error)).toMatch(received);
  });

  it("knows a caller by a token that changes", async () => {
    let token = "sgt_old";
    const client = connect({ token: async () => token });
    await expect(client.serverInfo()).rejects.toMatchObject({ name: "AuthenticationError" });
    token = tokens.alice;
    expect((await client.serverInfo()).principal.name).toBe("alice");
  });

  it("takes everything from the environment", async () => {
    const before = { ...process.env };
    Object.assign(process.env, {
      SANDGATE_ADDRESS: `https://localhost:${server.address.split(":")[1]}`,
      SANDGATE_TOKEN: tokens.bob,
      SANDGATE_CA_FILE: at("ca.pem"),
    });
    try {
      const client = new Client();
      clients.push(client);
      expect((await client.serverInfo()).principal.tenant).toBe("sales");
    } finally {
      process.env = before;
    }
  });

  it("C15 S4-9 finds a call again by its request id, and audits who did what", async () => {
    const alice = connect({ token: tokens.alice, metadata: { "x-request-id": "of-the-client" } });
    const byClient = await alice.get("nowhere").catch((e) => e);
    expect(byClient.requestId).toBe("of-the-client");
    const byCall = await alice
      .get("nowhere", { metadata: { "x-request-id": "of-the-call" } })
      .catch((e) => e);
    expect(byCall.requestId).toBe("of-the-call");
    const sandbox = await alice.create();
    await sandbox.write("/workspace/audited", "contents", { metadata: { "x-request-id": "the-write" } });
    const records = () =>
      readFileSync(at("audit.log"), "utf8")
        .trim()
        .split("\n")
        .map((line) => JSON.parse(line));
    await expect.poll(() => JSON.stringify(records())).toContain("the-write");
    const record = JSON.stringify(records().find((r) => JSON.stringify(r).includes("the-write")));
    expect(record).toContain("alice");
    expect(record).toContain("/workspace/audited");
    expect(record).not.toContain("contents");
    await sandbox.delete();
  });
});

withServer("more than one connection", () => {
  it("stripes streams over them, and one that is cut disturbs nobody", async () => {
    const proxy = new CuttingProxy(address.replace("unix://", ""));
    const client = new Client({ address: await proxy.start(), channels: 3 });
    const sandbox = await client.create();
    try {
      const before = proxy.connections;
      const results = await Promise.all(
        Array.from({ length: 12 }, (_, i) => sandbox.execute(`seq 1 20000; echo ${i}`)),
      );
      expect(results.map((r) => r.stdout.trim().split("\n").at(-1))).toEqual(
        Array.from({ length: 12 }, (_, i) => String(i)),
      );
      expect(proxy.connections - before).toBe(2);
      const wait = "until test -e go; do sleep 0.1; done";
      const running = Array.from({ length: 6 }, (_, i) => sandbox.execute(`seq 1 50000; ${wait}; echo ${i}`));
      await expect.poll(async () => (await sandbox.processes()).length).toBe(6);
      proxy.cut();
      await sandbox.execute("touch go");
      for (const [i, result] of (await Promise.all(running)).entries()) {
        expect(result.stdout.endsWith(`50000\n${i}\n`)).toBe(true);
        expect(result.stdoutBytes.length).toBeGreaterThan(288_000);
      }
    } finally {
      await sandbox.delete();
      client.close();
      await proxy.close();
    }
  });
});

withServer("a connection that goes silent", () => {
  it("is noticed by its keep-alive, and what it carried goes on", async () => {
    const proxy = new CuttingProxy(address.replace("unix://", ""));
    const direct = new Client({ address });
    const client = new Client({ address: await proxy.start(), keepaliveMs: 10_000 });
    const sandbox = await client.create();
    try {
      let text = "";
      const waiting = "echo one; until test -e go; do sleep 0.1; done; echo two";
      for await (const event of sandbox.executeStream(waiting)) {
        if (event.type !== "output") continue;
        text += event.text;
        if (text !== "one\n") continue;
        proxy.mute();
        await direct.sandbox(sandbox.id).write("/workspace/go", "");
      }
      expect(text).toBe("one\ntwo\n");
      expect(proxy.connections).toBeGreaterThanOrEqual(2);
    } finally {
      await direct.delete(sandbox.id);
      for (const each of [client, direct]) each.close();
      await proxy.close();
    }
  });
});

describe("options of a connection", () => {
  it.each([
    [{ channels: 0 }, "channels"],
    [{ channels: 1.5 }, "channels"],
    [{ keepaliveMs: 100 }, "keepaliveMs"],
    [{ address: "example.org:1", token: "t" }, "without TLS"],
  ])("refuse %j", (options, text) => {
    expect(() => new Client(options)).toThrow(text);
  });
});
