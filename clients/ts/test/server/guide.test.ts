import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join, resolve } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { Client } from "../../src/index.js";
import { address, withServer } from "./server.js";

const root = resolve(import.meta.dirname, "../..");

interface Block {
  name: string;
  kind: "run" | "server";
  code: string;
}

/** The code blocks of a page; of a block that shows a change, the new side. */
function blocksOf(page: string): Block[] {
  const text = readFileSync(resolve(root, page), "utf8");
  const name =
    basename(page) === "README.md" ? "readme" : basename(page, ".md").replace("typescript", "guide");
  return [...text.matchAll(/^```(ts|ts server|diff)\n(.*?)^```$/gms)].map(([, kind, code = ""], index) => ({
    name: `${name}-${index + 1}`,
    kind: kind === "ts server" ? "server" : "run",
    code:
      kind === "diff"
        ? code
            .split("\n")
            .filter((line) => !line.startsWith("-"))
            .map((line) => line.slice(1))
            .join("\n")
        : code,
  }));
}

const blocks = [
  ...blocksOf("README.md"),
  ...blocksOf("../../docs/clients/typescript.md"),
  ...blocksOf("../../docs/clients/migration-bitkaio-langchain-kubernetes.md"),
];

/** Stands for a paid model: it runs one command, then answers. */
const MODEL = `
import { ScriptedModel } from ${JSON.stringify(join(root, "test/scriptedModel.ts"))};
export class ChatAnthropic extends ScriptedModel {
  constructor(_options: { model: string }) {
    super([
      { name: "execute", args: { command: "echo from the sandbox; sleep 1" } },
    ]);
  }
}`;

/** Imports one block after the other and says which failed. */
const RUNNER = `
for (const name of process.argv.slice(2)) {
  try {
    await import("./" + name + ".mts");
    console.log("\\nok " + name);
  } catch (error) {
    console.log("\\nfailed " + name + ": " + error?.stack);
  }
}`;

withServer("the pages' code", () => {
  const project = mkdtempSync(join(tmpdir(), "sandgate-guide-"));
  const at = (name: string) => join(project, name);
  // In the process itself: the command line of tsx has an exit code of its own.
  const tsx = ["--import", join(root, "node_modules/tsx/dist/loader.mjs")];
  const env = { ...process.env, SANDGATE_ADDRESS: address, PORT: "0" };
  let text = "";

  beforeAll(() => {
    symlinkSync(join(root, "node_modules"), at("node_modules"));
    writeFileSync(at("model.ts"), MODEL);
    writeFileSync(at("run.mts"), RUNNER);
    writeFileSync(at("package.json"), '{ "type": "module" }');
    const paths = {
      sandgate: [join(root, "src/index.ts")],
      "sandgate/deepagents": [join(root, "src/deepagents.ts")],
      "@langchain/anthropic": [at("model.ts")],
    };
    const { compilerOptions } = JSON.parse(readFileSync(join(root, "tsconfig.json"), "utf8"));
    const options = { ...compilerOptions, paths, allowImportingTsExtensions: true, noUnusedLocals: false };
    const include = blocks.map(({ name }) => `${name}.mts`);
    writeFileSync(at("tsconfig.json"), JSON.stringify({ compilerOptions: options, include }));
    for (const { name, code } of blocks) writeFileSync(at(`${name}.mts`), `${code}\nexport {};\n`);
    const names = blocks.filter((b) => b.kind === "run").map((b) => b.name);
    text = execFileSync(process.execPath, [...tsx, "run.mts", ...names], {
      cwd: project,
      env,
      encoding: "utf8",
      timeout: 240_000,
    });
  }, 300_000);
  afterAll(async () => {
    const client = new Client({ address });
    for await (const { id } of client.list({ labels: { app: "guide" } })) await client.delete(id);
    client.close();
    rmSync(project, { recursive: true, force: true });
  });

  it("is there", () => {
    expect(blocks.filter((b) => b.name.startsWith("readme")).length).toBeGreaterThanOrEqual(3);
    expect(blocks.filter((b) => b.name.startsWith("guide")).length).toBeGreaterThanOrEqual(12);
    expect(blocks.filter((b) => b.name.startsWith("migration")).length).toBe(2);
  });

  it.each(blocks.filter((b) => b.kind === "run").map((b) => b.name))("runs as it stands: %s", (name) => {
    const result = new RegExp(`^(ok|failed) ${name}\\b.*$`, "m").exec(text)?.[0];
    expect(result, text).toBe(`ok ${name}`);
  });

  it("has the types that it needs", () => {
    const tsc = join(root, "node_modules/typescript/bin/tsc");
    let errors = "";
    try {
      execFileSync(process.execPath, [tsc, "--noEmit", "-p", "tsconfig.json"], {
        cwd: project,
        encoding: "utf8",
      });
    } catch (error) {
      errors = (error as { stdout: string }).stdout;
    }
    expect(errors).toBe("");
  }, 240_000);

  it("S3-24 serves conversations over HTTP and leaves nothing behind after SIGTERM", async () => {
    const block = blocks.find((b) => b.kind === "server");
    const child = spawn(process.execPath, [...tsx, `${block?.name}.mts`], { cwd: project, env });
    let log = "";
    child.stdout.on("data", (data: Buffer) => {
      log += data.toString();
    });
    child.stderr.on("data", (data: Buffer) => {
      log += data.toString();
    });
    const ended = new Promise<number | null>((done) => child.once("exit", done));
    const portOf = () => /port: (\d+)/.exec(log)?.[1];
    await expect.poll(portOf, { timeout: 90_000 }).toBeDefined();
    const client = new Client({ address });
    const ids = async () => {
      const { sandboxes } = await client.listPage();
      return sandboxes.map((s) => s.id).filter((id) => /^thread-http-[ab]-/.test(id));
    };
    for (const thread of ["http-a", "http-b"]) {
      const response = await fetch(`http://127.0.0.1:${portOf()}/chat/${thread}`, {
        method: "POST",
        body: "go",
      });
      expect(await response.text()).toBe("done");
    }
    expect(await ids()).toHaveLength(2);
    child.kill("SIGTERM");
    expect(await ended, log).toBe(0);
    expect(await ids()).toEqual([]);
    client.close();
  }, 180_000);
});
