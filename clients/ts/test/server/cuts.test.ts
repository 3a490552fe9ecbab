import { createHash } from "node:crypto";
import { MemorySaver } from "@langchain/langgraph";
import { createDeepAgent } from "deepagents";
import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from "vitest";
import { SandgateSandbox } from "../../src/deepagents.js";
import { Client, type Sandbox } from "../../src/index.js";
import { CommandModel, outputs, turn } from "../scriptedModel.js";
import { CuttingProxy } from "./proxy.js";
import { address, withServer } from "./server.js";

const MIB = 1 << 20;
const big = Buffer.from(Uint8Array.from({ length: 24 * MIB }, (_, i) => (i * 31) ^ (i >> 11)));
const sumOf = (bytes: Uint8Array) => createHash("sha256").update(bytes).digest("hex");

withServer("connections that are cut", () => {
  let direct: Client;
  let sandbox: Sandbox;
  let proxy: CuttingProxy;
  let client: Client;
  let cut: Sandbox;

  beforeAll(async () => {
    direct = new Client({ address });
    sandbox = await direct.create({ labels: { of: "ts-cuts" } });
  });
  afterAll(async () => {
    await sandbox?.delete();
    direct?.close();
  });
  beforeEach(async () => {
    proxy = new CuttingProxy(address.replace("unix://", ""));
    client = new Client({ address: await proxy.start(), reconnectTimeoutMs: 20_000 });
    await client.serverInfo();
    cut = client.sandbox(sandbox.id);
  });
  afterEach(async () => {
    client.close();
    await proxy.close();
  });

  /** The live connection ends now; the next ones after so many bytes. */
  const cutting = (...bytes: number[]) => {
    proxy.cutAfter(...bytes);
    proxy.cut();
  };

  it("S3-18 C10 lose no byte of a command's output, at whatever byte they are cut", async () => {
    const wanted = await sandbox.execute("seq 1 200000");
    for (const sizes of [
      [400, 900, 5_000, 70_000, 300_000],
      [777, 777, 777, 777],
      [0, 0, 100_000],
    ]) {
      const begun = proxy.cuts;
      cutting(...sizes);
      const result = await cut.execute("seq 1 200000");
      expect(sumOf(result.stdoutBytes)).toBe(sumOf(wanted.stdoutBytes));
      expect(result.exitCode).toBe(0);
      expect(result.missedBytes).toBe(0);
      expect(proxy.cuts - begun).toBeGreaterThanOrEqual(1);
    }
  });

  it("C10 are resumed without the agent noticing", async () => {
    const connection = { client };
    const backend = await SandgateSandbox.connect(sandbox.id, connection);
    const agent = createDeepAgent({ model: new CommandModel(), backend, checkpointer: new MemorySaver() });
    cutting(700, 1_000, 1_300);
    const state = await agent.invoke(
      turn("for i in $(seq 1 30); do echo line $i; sleep 0.02; done; exit 3", "echo after"),
      { configurable: { thread_id: "cut" } },
    );
    const [first, second] = outputs(state);
    const lines = Array.from({ length: 30 }, (_, i) => `line ${i + 1}\n`).join("");
    expect(first).toContain(lines);
    expect(first).toContain("exit code 3");
    expect(second).toContain("after");
    expect(proxy.cuts).toBeGreaterThanOrEqual(1);
  });

  it("C11 resume an upload after what arrived", async () => {
    const before = proxy.connections;
    cutting(5 * MIB, 7 * MIB, 6 * MIB);
    const { size, sha256 } = await cut.uploadFile("/workspace/big", big);
    expect(size).toBe(big.length);
    expect(Buffer.from(sha256).toString("hex")).toBe(sumOf(big));
    expect((await sandbox.execute("sha256sum < big")).stdout).toContain(sumOf(big));
    expect(proxy.cuts).toBe(3);
    expect(proxy.connections - before).toBeGreaterThanOrEqual(4);
  });

  it("C11 resume an upload whose source can be opened again, and no other", async () => {
    let opened = 0;
    const open = () => {
      opened++;
      return (async function* () {
        for (let at = 0; at < big.length; at += 100_000) yield big.subarray(at, at + 100_000);
      })();
    };
    cutting(9 * MIB);
    await cut.uploadFile("/workspace/streamed", open);
    expect(opened).toBeGreaterThanOrEqual(2);
    expect((await sandbox.execute("sha256sum < streamed")).stdout).toContain(sumOf(big));
    cutting(9 * MIB);
    await expect(cut.uploadFile("/workspace/once", open())).rejects.toMatchObject({
      name: "UnavailableError",
    });
    await expect(sandbox.stat("/workspace/once")).rejects.toMatchObject({ reason: "FILE_NOT_FOUND" });
  });

  it("C11 resume downloads, one file and several", async () => {
    await sandbox.uploadFile("/workspace/big", big);
    await sandbox.uploadFile("/workspace/small", "small");
    cutting(4 * MIB, 8 * MIB);
    expect(sumOf(await cut.downloadFile("/workspace/big"))).toBe(sumOf(big));
    expect(proxy.cuts).toBe(2);
    cutting(9 * MIB);
    const part = await cut.downloadFile("/workspace/big", { offset: 100, limit: 20 * MIB });
    expect(sumOf(part)).toBe(sumOf(big.subarray(100, 100 + 20 * MIB)));
    cutting(3 * MIB);
    const files = await cut.download(["/workspace/small", "/workspace/missing", "/workspace/big"]);
    expect(files.map((f) => f.error?.reason)).toEqual([undefined, "FILE_NOT_FOUND", undefined]);
    expect(sumOf(files[2]?.content ?? new Uint8Array())).toBe(sumOf(big));
    expect(proxy.cuts).toBe(4);
  });

  it("do not keep a kill from arriving", async () => {
    const controller = new AbortController();
    const mark = "sleep 1234.5";
    const running = cut.execute(`${mark} & ${mark}`, { signal: controller.signal, execId: "to-be-killed" });
    running.catch(() => {});
    await expect.poll(async () => (await sandbox.processes()).map((p) => p.execId)).toContain("to-be-killed");
    proxy.hold();
    controller.abort("enough");
    // The first attempts meet a server that is away.
    await new Promise((resolve) => setTimeout(resolve, 600));
    proxy.cutAfter(0, 10, 200);
    proxy.release();
    await expect(running).rejects.toMatchObject({ name: "CallCancelledError", cause: "enough" });
    const alive = async () => (await sandbox.execute("ps -ef 2>/dev/null | grep -c '[s]leep 1234.5'")).stdout;
    await expect.poll(alive).toBe("0\n");
    const commands = async () => (await sandbox.processes()).map((p) => p.execId);
    await expect.poll(commands).not.toContain("to-be-killed");
  });

  it("are no reason to repeat what is not safe to repeat", async () => {
    await sandbox.write("/workspace/list", "a\n");
    proxy.hold();
    await expect(cut.edit("/workspace/list", "a", "a\na", { replaceAll: true })).rejects.toMatchObject({
      name: "UnavailableError",
    });
    proxy.release();
    // A read is repeated until the server is there again.
    proxy.hold();
    const reading = cut.read("/workspace/list");
    setTimeout(() => proxy.release(), 500);
    expect((await reading).content).toBe("a");
  });
});
