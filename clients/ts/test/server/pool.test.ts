import { afterAll, beforeAll, expect, it } from "vitest";
import { SandgateProvider } from "../../src/deepagents.js";
import { Client } from "../../src/index.js";
import { withServer } from "./server.js";
import { TestServer } from "./setup.js";

withServer("a server that keeps a pool", () => {
  const TARGET = 2;
  const server = new TestServer({
    config: { templates: [{ name: "default", pool: TARGET }, { name: "cold" }] },
  });
  const defaultLabels = { of: "ts-pool" };
  let client: Client;
  let provider: SandgateProvider;

  const full = () => expect.poll(async () => (await provider.poolStatus()).available).toBe(TARGET);
  const fromPool = async (id: string) => (await client.sandbox(id).info()).fromPool;

  beforeAll(async () => {
    await server.start();
    client = new Client({ address: server.address });
    provider = new SandgateProvider({ client, defaultLabels });
  });
  afterAll(async () => {
    client?.close();
    await server.close();
  });

  it("S3-14 C9 poolStatus gives available, active, total and target", async () => {
    expect((await client.serverInfo()).capabilities).toContain("pool");
    await full();
    expect(await provider.poolStatus()).toEqual({
      available: TARGET,
      active: 0,
      total: TARGET,
      target: TARGET,
    });
    expect(await client.poolStatus("default")).toEqual(await client.poolStatus());
  });

  it("S3-17 C9 keeps as many as the template's size, and fills up what was claimed and deleted", async () => {
    await full();
    const { id } = await provider.getOrCreate();
    await full();
    const claimed = { available: TARGET, active: 1, total: TARGET + 1, target: TARGET };
    expect(await provider.poolStatus()).toEqual(claimed);
    await provider.delete(id);
    await expect.poll(() => provider.poolStatus()).toEqual({ ...claimed, active: 0, total: TARGET });
  });

  it("C9 fromPool is true: a sandbox that is claimed, and those that are made", async () => {
    await full();
    const claimed = await provider.getOrCreate({ labels: { a: "b" }, ttlSeconds: 600 });
    expect((await claimed.execute("echo works > x; cat x")).output).toBe("works\n");
    const other = await provider.getOrCreate({ env: { OF: "its own" } });
    const cold = await provider.getOrCreate({ template: "cold" });
    expect(await fromPool(claimed.id)).toBe(true);
    expect(await fromPool(other.id)).toBe(false);
    expect(await fromPool(cold.id)).toBe(false);
    expect((await other.execute("echo $OF")).output).toBe("its own\n");
    expect((await claimed.execute("echo $OF")).output).toBe("\n");
    for (const { id } of [claimed, other, cold]) await provider.delete(id);
  });

  it("C9 more than it holds: the others are made, and each says where it came from", async () => {
    await full();
    const made = await Promise.all(Array.from({ length: 2 * TARGET }, () => provider.getOrCreate()));
    const claims = await Promise.all(made.map(({ id }) => fromPool(id)));
    expect(claims.filter(Boolean).length).toBeGreaterThanOrEqual(TARGET);
    expect((await provider.poolStatus()).active).toBe(claims.filter(Boolean).length);
    await Promise.all(made.map(({ id }) => provider.delete(id)));
  });

  it("S3-12 what is warm belongs to no caller, so that a list has none of it", async () => {
    await full();
    expect(await provider.list({ status: "warm" })).toEqual({ sandboxes: [] });
    const { id } = await provider.getOrCreate();
    await full();
    expect(await provider.list({ status: "warm" })).toEqual({ sandboxes: [] });
    expect((await provider.list({ status: "running" })).sandboxes.map((s) => s.id)).toEqual([id]);
    await provider.delete(id);
  });

  it("counts what is ready in the pool as warm, and as nobody's", async () => {
    await full();
    const { id } = await provider.getOrCreate();
    await full();
    expect(await provider.stats()).toEqual({ total: 1, running: 1, warm: TARGET, idle: 0, threadIds: 0 });
    expect((await provider.list()).sandboxes.map((s) => s.id)).toEqual([id]);
    await provider.delete(id);
  });

  it("a template without a pool has none beside one that has", async () => {
    const cold = new SandgateProvider({ client, defaultLabels, template: "cold" });
    await expect(cold.poolStatus()).rejects.toMatchObject({
      name: "TemplateNotFoundError",
      message: 'the template "cold" has no pool',
    });
    expect(await cold.stats()).toMatchObject({ total: 0, warm: 0 });
  });
});
