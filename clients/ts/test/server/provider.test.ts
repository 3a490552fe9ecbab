import { createHash } from "node:crypto";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { type ListedSandbox, SandgateProvider, SandgateSandbox } from "../../src/deepagents.js";
import { AuthenticationError, Client, SandboxNotFoundError, SandboxStartError } from "../../src/index.js";
import { address, withServer } from "./server.js";
import { TestServer } from "./setup.js";

withServer("SandgateProvider", () => {
  const connection = { address };
  let client: Client;
  let provider: SandgateProvider;

  beforeAll(() => {
    client = new Client({ address });
    provider = new SandgateProvider({
      connection,
      defaultLabels: { of: "ts-provider" },
      ttlSeconds: 3_600,
      ttlIdleSeconds: 600,
    });
  });
  afterAll(async () => {
    await provider?.cleanup(0);
    provider?.close();
    client?.close();
  });

  it("writes initialFiles into a sandbox that it makes, and takes lifetimes in both units", async () => {
    const initialFiles = { "a/relative": "1", "/workspace/absolute": new Uint8Array([50]) };
    const made = await provider.getOrCreate({ initialFiles, ttlMs: 1_800_000 });
    expect((await made.execute("cat a/relative absolute")).output).toBe("12");
    expect(await made.sandbox.info()).toMatchObject({ ttlMs: 1_800_000, idleTtlMs: 600_000 });
    const again = { sandboxId: made.id, initialFiles: { "a/relative": "other" } };
    expect((await (await provider.getOrCreate(again)).execute("cat a/relative")).output).toBe("1");
    await provider.delete(made.id);
    await using sandbox = await SandgateSandbox.create({ client, ttlSeconds: 60 });
    expect(await sandbox.sandbox.info()).toMatchObject({ ttlMs: 60_000 });
    const late = SandgateSandbox.create({ client, startupTimeoutMs: 1 });
    await expect(late).rejects.toThrow("the sandbox was not ready within startupTimeoutMs, 1 ms");
  });

  it("S3-10 C5 takes the sandbox of an id, or makes it", async () => {
    const made = await provider.getOrCreate();
    await made.write("/workspace/kept", "here");
    const again = await provider.getOrCreate({ sandboxId: made.id });
    expect(again.id).toBe(made.id);
    expect((await again.execute("cat kept")).output).toBe("here");
    // Made with another spec: it is the sandbox of that id all the same.
    const other = await provider.getOrCreate({ sandboxId: made.id, env: { A: "1" } });
    expect((await other.read("/workspace/kept")).content).toBe("here");
    await made.close();
    expect((await again.execute("cat kept")).output).toBe("here");
    await provider.delete(made.id);
  });

  it("S3-10 gives callers that race for one id the same sandbox", async () => {
    const all = await Promise.all(
      Array.from({ length: 8 }, () => provider.getOrCreate({ sandboxId: "ts-race" })),
    );
    await all[0]?.write("/workspace/one", "1");
    for (const sandbox of all) expect((await sandbox.execute("cat one")).output).toBe("1");
    await provider.delete("ts-race");
  });

  it("S3-11 deletes what is there, and what is not is no error", async () => {
    const { id } = await provider.getOrCreate();
    await provider.delete(id);
    await provider.delete(id);
    await expect(provider.reconnect(id)).rejects.toMatchObject({ name: "SandboxNotFoundError" });
  });

  it("S3-12 C8 lists by status and labels, page by page", async () => {
    const made = await Promise.all(
      [1, 2, 3].map((n) => provider.getOrCreate({ labels: { page: "yes", n: String(n) } })),
    );
    const found: ListedSandbox[] = [];
    let cursor: string | undefined;
    do {
      const page = await provider.list({
        status: "running",
        labels: { page: "yes" },
        ...(cursor === undefined ? {} : { cursor }),
      });
      found.push(...page.sandboxes);
      cursor = page.cursor;
    } while (cursor !== undefined);
    expect(found.map((s) => s.id).sort()).toEqual(made.map((s) => s.id).sort());
    expect(found[0]).toMatchObject({ status: "running", phase: "ACTIVE", labels: { of: "ts-provider" } });
    expect(Date.parse(found[0]?.createdAt ?? "")).toBeGreaterThan(Date.now() - 600_000);
    expect((await provider.list({ status: "terminated", labels: { page: "yes" } })).sandboxes).toEqual([]);
    await expect(provider.list({ status: "hot" as "running" })).rejects.toMatchObject({
      name: "InvalidRequestError",
    });
    await expect(provider.list({ cursor: "nonsense" })).rejects.toMatchObject({
      name: "InvalidRequestError",
    });
    await Promise.all(made.map((s) => provider.delete(s.id)));
  });

  it("S3-12 follows the cursor over pages that are full", async () => {
    const ids = await Promise.all(
      [1, 2, 3].map(async () => (await provider.getOrCreate({ labels: { cursor: "yes" } })).id),
    );
    const seen: string[] = [];
    let pageToken = "";
    do {
      const page = await client.listPage({ labels: { cursor: "yes" }, pageSize: 1, pageToken });
      expect(page.sandboxes.length).toBeLessThanOrEqual(1);
      seen.push(...page.sandboxes.map((s) => s.id));
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
    expect(seen.sort()).toEqual(ids.sort());
    const labels = { of: "ts-provider", cursor: "yes" };
    const first = await client.listPage({ labels, states: ["ACTIVE"], pageSize: 1 });
    const rest = await provider.list({ status: "running", labels, cursor: first.nextPageToken });
    expect([...first.sandboxes, ...rest.sandboxes].map((s) => s.id).sort()).toEqual(ids);
    expect(rest.cursor).toBeUndefined();
    await Promise.all(ids.map((id) => provider.delete(id)));
  });

  it("S3-13 C7 cleans up what is idle, and only its own", async () => {
    const [mine, other] = await Promise.all([
      provider.getOrCreate(),
      client.create({ labels: { of: "somebody-else" } }),
    ]);
    const kept = await provider.cleanup(3_600);
    expect(kept.deleted).toEqual([]);
    expect(kept.kept).toBeGreaterThanOrEqual(1);
    // A running command is no idleness.
    const running = mine.execute("until test -e go; do sleep 0.1; done");
    await expect.poll(async () => (await mine.sandbox.processes()).length).toBe(1);
    expect((await provider.cleanup(0)).deleted).toEqual([]);
    await mine.write("/workspace/go", "");
    await running;
    await expect.poll(async () => (await provider.cleanup(0)).deleted).toEqual([mine.id]);
    expect((await client.get(other.id)).id).toBe(other.id);
    await other.delete();
  });

  it("S3-15 S3-16 C7 gives labels and lifetimes, its own and a call's", async () => {
    const sandbox = await provider.getOrCreate({ labels: { customer: "acme" }, ttlIdleSeconds: 60 });
    expect(await sandbox.sandbox.info()).toMatchObject({
      labels: { of: "ts-provider", customer: "acme" },
      ttlMs: 3_600_000,
      idleTtlMs: 60_000,
    });
    await provider.delete(sandbox.id);
  });

  it("S3-16 ends a sandbox with its lifetime, and reports it", async () => {
    const sandbox = await provider.getOrCreate({ ttlSeconds: 600 });
    // However slow its creation was, it lives until it is here.
    await client.update(sandbox.id, { ttlMs: 1_000 });
    await expect
      .poll(async () => (await sandbox.execute("true")).output, { timeout: 90_000, interval: 200 })
      .toMatch(/^Error: .*(expired|lifetime|ended)/i);
    const reconnected = () =>
      provider.reconnect(sandbox.id).then(
        () => "there",
        (error) => error.name,
      );
    await expect.poll(reconnected, { timeout: 90_000, interval: 200 }).toBe("SandboxNotFoundError");
  }, 240_000);

  it("counts its sandboxes", async () => {
    const sandbox = await provider.getOrCreate({ labels: { stats: "yes" } });
    const some = new SandgateProvider({ connection, defaultLabels: { stats: "yes" } });
    expect(await some.stats()).toEqual({ total: 1, running: 1, warm: 0, idle: 0, threadIds: 0 });
    await expect.poll(async () => (await some.stats(0)).idle).toBe(1);
    some.close();
    await provider.delete(sandbox.id);
  });

  it("S3-25 C21 says what went wrong by its type", async () => {
    const nowhere = new SandgateProvider({ connection: { address: "unix:///no/such.sock" } });
    await expect(nowhere.getOrCreate()).rejects.toMatchObject({ name: "UnavailableError" });
    nowhere.close();
    const unknown = new SandgateProvider({ connection, template: "no-such-template" });
    await expect(unknown.getOrCreate()).rejects.toMatchObject({ name: "TemplateNotFoundError" });
    unknown.close();
    await expect(provider.reconnect("no-such-sandbox")).rejects.toBeInstanceOf(SandboxNotFoundError);
  });

  it("S3-25 C21 has a type for a wrong token and for a start that takes too long", async () => {
    const directory = mkdtempSync(join(tmpdir(), "sandgate-ts-"));
    const tokens = join(directory, "tokens.yaml");
    const hash = createHash("sha256").update("sgt_right").digest("hex");
    writeFileSync(tokens, `tokens:\n  - { name: alice, tenant: research, sha256: ${hash} }\n`);
    const server = new TestServer({
      config: { limits: { create_timeout: "1ms" } },
      flags: ["--tokens-file", tokens],
    });
    await server.start();
    const as = (token: string) => new SandgateProvider({ connection: { address: server.address, token } });
    const [right, wrong] = [as("sgt_right"), as("sgt_wrong")];
    try {
      await expect(wrong.getOrCreate()).rejects.toMatchObject({
        constructor: AuthenticationError,
        reason: "CREDENTIALS_INVALID",
      });
      await expect(right.getOrCreate()).rejects.toMatchObject({
        constructor: SandboxStartError,
        reason: "SANDBOX_START_TIMEOUT",
      });
      expect((await right.list()).sandboxes).toEqual([]);
    } finally {
      right.close();
      wrong.close();
      await server.close({ token: "sgt_right" });
      rmSync(directory, { recursive: true });
    }
  });

  it("S3-23 ends its connection with `await using`, and leaves sandboxes", async () => {
    let id = "";
    let left: SandgateProvider;
    {
      await using scoped = new SandgateProvider({ connection });
      id = (await scoped.getOrCreate()).id;
      left = scoped;
    }
    await expect(left.reconnect(id)).rejects.toMatchObject({ code: "CANCELLED" });
    expect(await client.delete(id)).toBe(true);
  });

  it("says that there is no pool where there is none", async () => {
    await expect(provider.poolStatus()).rejects.toMatchObject({
      name: "TemplateNotFoundError",
      message: 'the template "default" has no pool',
    });
  });
});

withServer("a provider whose server is new", () => {
  it("S3-10 C5 finds its sandbox after the server was killed and started", async () => {
    const server = new TestServer();
    await server.start();
    const provider = new SandgateProvider({ connection: { address: server.address } });
    try {
      const made = await provider.getOrCreate({ sandboxId: "outlives" });
      await made.write("/workspace/kept", "here");
      await server.stop("SIGKILL");
      await server.start();
      const again = await provider.getOrCreate({ sandboxId: "outlives" });
      expect((await again.execute("cat kept")).output).toBe("here");
      expect((await made.read("/workspace/kept")).content).toBe("here");
    } finally {
      provider.close();
      await server.close();
    }
  });
});
