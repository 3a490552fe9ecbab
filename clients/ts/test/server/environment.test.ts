import { afterAll, afterEach, beforeAll, expect, it, vi } from "vitest";
import { SandgateSandbox } from "../../src/deepagents.js";
import { Client } from "../../src/index.js";
import { withServer } from "./server.js";
import { TestServer } from "./setup.js";

withServer("settings from the environment", () => {
  const server = new TestServer({ config: { templates: [{ name: "default" }, { name: "small" }] } });

  beforeAll(() => server.start());
  afterEach(() => {
    vi.unstubAllEnvs();
  });
  afterAll(() => server.close());

  it("S4-16 S5-32 address and template", async () => {
    vi.stubEnv("SANDGATE_ADDRESS", server.address);
    vi.stubEnv("SANDGATE_TEMPLATE", "small");
    using client = new Client();
    await using sandbox = await client.create();
    await using other = await client.create({ template: "default" });
    await using backend = await SandgateSandbox.create();
    const infos = [sandbox, other, backend.sandbox].map((one) => one.info());
    expect((await Promise.all(infos)).map((info) => info.template)).toEqual(["small", "default", "small"]);
  });

  it("S4-16 a root directory", async () => {
    vi.stubEnv("SANDGATE_ADDRESS", server.address);
    vi.stubEnv("SANDGATE_ROOT_DIR", "/workspace");
    await using backend = await SandgateSandbox.create();
    expect((await backend.write("/workspace/x", "inside")).error).toBeUndefined();
    expect((await backend.write("/tmp/x", "outside")).error).toBeDefined();
    await using again = await SandgateSandbox.connect(backend.id);
    expect((await again.read("/workspace/x")).error).toBeUndefined();
    expect((await again.read("/etc/passwd")).error).toBeDefined();
    await using free = await SandgateSandbox.create({ rootDir: "" });
    expect((await free.write("/tmp/x", "anywhere")).error).toBeUndefined();
  });
});
