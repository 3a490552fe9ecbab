import { createDeepAgent } from "deepagents";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { SandgateSandbox } from "../../src/deepagents.js";
import { Client } from "../../src/index.js";
import { outputs, ScriptedModel, turn } from "../scriptedModel.js";
import { busyboxArchive, whyNoBusybox } from "./busybox.js";
import { withServer } from "./server.js";
import { TestServer } from "./setup.js";

const reason = whyNoBusybox();

withServer("an image without python, bash and GNU tools", () => {
  if (reason !== "") {
    it.skip(reason, () => {});
    return;
  }
  const archive = busyboxArchive();
  const image = `oci-archive:${archive.path}`;
  let server: TestServer;
  let client: Client;
  let sandbox: SandgateSandbox;

  beforeAll(async () => {
    server = new TestServer({
      config: { templates: [{ name: "default", image }] },
    });
    await server.start();
    client = new Client({ address: server.address });
    sandbox = await SandgateSandbox.create({ client });
  });
  afterAll(async () => {
    await sandbox?.close();
    client?.close();
    await server?.close();
    archive.remove();
  });

  it("C24 has indeed none of them", async () => {
    for (const program of ["python3", "python", "bash", "perl"]) {
      expect((await sandbox.execute(`command -v ${program}`)).exitCode, program).not.toBe(0);
    }
    expect((await sandbox.execute("busybox | head -n 1")).output).toContain("BusyBox");
  });

  it("C12 C24 S3-19 does every file method all the same", async () => {
    expect((await sandbox.write("/workspace/d/a.txt", "one\ntwo: ü\nthree")).error).toBeUndefined();
    expect((await sandbox.read("/workspace/d/a.txt", 1, 1)).content).toBe("two: ü");
    expect((await sandbox.edit("/workspace/d/a.txt", "two", "2")).occurrences).toBe(1);
    expect((await sandbox.grep("2: ü", "/workspace")).matches).toEqual([
      { path: "/workspace/d/a.txt", line: 2, text: "2: ü" },
    ]);
    expect((await sandbox.glob("**/*.txt", "/workspace")).files?.map((f) => f.path)).toEqual(["d/a.txt"]);
    expect((await sandbox.ls("/workspace")).files?.map((f) => f.path)).toEqual(["/workspace/d/"]);
    const bytes = Uint8Array.from({ length: 300_000 }, (_, i) => i);
    expect(await sandbox.uploadFiles([["/workspace/bytes", bytes]])).toEqual([
      { path: "/workspace/bytes", error: null },
    ]);
    const [down] = await sandbox.downloadFiles(["/workspace/bytes"]);
    expect(Buffer.from(down?.content ?? []).equals(bytes)).toBe(true);
    expect((await sandbox.delete("/workspace/d")).error).toBeUndefined();
  });

  it("C10 C24 runs commands, and kills all of one in time", async () => {
    expect(await sandbox.execute("echo out; echo err >&2; exit 3")).toEqual({
      output: "out\nerr\n",
      exitCode: 3,
      truncated: false,
    });
    const late = await sandbox.execute("setsid sleep 777 & sleep 777", { timeoutMs: 500 });
    expect(late.exitCode).toBe(124);
    expect((await sandbox.execute("ps | grep -c '[s]leep 777'")).output).toBe("0\n");
  });

  describe("with a deep agent", () => {
    it("S3-20 C24 works as anywhere", async () => {
      const agent = createDeepAgent({
        model: new ScriptedModel([
          { name: "write_file", args: { file_path: "/workspace/p.sh", content: "echo $((6 * 7))" } },
          { name: "execute", args: { command: "sh /workspace/p.sh" } },
          { name: "grep", args: { pattern: "echo", path: "/workspace" } },
        ]),
        backend: sandbox,
      });
      const [, executed, found] = outputs(await agent.invoke(turn("go")));
      expect(executed).toContain("42");
      expect(found).toContain("/workspace/p.sh");
    });
  });
});
