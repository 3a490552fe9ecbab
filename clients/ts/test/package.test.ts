import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";

const here = resolve(import.meta.dirname, "..");

describe("the package", () => {
  const project = mkdtempSync(join(tmpdir(), "sandgate-package-"));
  const run = (program: string, args: string[], cwd = project) =>
    execFileSync(program, args, { cwd, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
  let files: string[] = [];

  beforeAll(() => {
    const [packed] = JSON.parse(
      run("npm", ["pack", "--json", "--silent", "--pack-destination", project], here),
    );
    files = packed.files.map((file: { path: string }) => file.path);
    run("tar", ["-xzf", packed.filename]);
    mkdirSync(join(project, "node_modules"));
    const dependencies = [
      "@bufbuild",
      "@grpc",
      "@langchain",
      "@types",
      "deepagents",
      "typescript",
      "undici-types",
    ];
    for (const name of dependencies) {
      symlinkSync(join(here, "node_modules", name), join(project, "node_modules", name));
    }
    run("mv", ["package", "node_modules/sandgate"]);
  }, 120_000);
  afterAll(() => rmSync(project, { recursive: true, force: true }));

  it("holds what was built and nothing else", () => {
    expect(files).toEqual(
      expect.arrayContaining(["LICENSE", "README.md", "package.json", "dist/index.d.cts"]),
    );
    const others = files.filter((path) => !/^(dist\/.*|LICENSE|README\.md|package\.json)$/.test(path));
    expect(others).toEqual([]);
  });

  it("is imported and required, with one set of classes", () => {
    const script = (load: string) => `${load}
      if (new SandgateSandbox({ id: "a" }).id !== "a") throw new Error("id");
      new Client({ address: "127.0.0.1:1" }).get("a").catch((error) => {
        if (!(error instanceof UnavailableError)) throw error;
        console.log(error.name);
      });`;
    writeFileSync(
      join(project, "a.mjs"),
      script(
        `import { Client, UnavailableError } from "sandgate"; import { SandgateSandbox } from "sandgate/deepagents";`,
      ),
    );
    writeFileSync(
      join(project, "a.cjs"),
      script(
        `const { Client, UnavailableError } = require("sandgate"); const { SandgateSandbox } = require("sandgate/deepagents");`,
      ),
    );
    expect(run("node", ["a.mjs"])).toBe("UnavailableError\n");
    expect(run("node", ["a.cjs"])).toBe("UnavailableError\n");
  });

  it("works without deepagents", () => {
    rmSync(join(project, "node_modules/deepagents"));
    writeFileSync(join(project, "b.mjs"), `import { Client } from "sandgate"; console.log(typeof Client);`);
    expect(run("node", ["b.mjs"])).toBe("function\n");
    symlinkSync(join(here, "node_modules/deepagents"), join(project, "node_modules/deepagents"));
  });

  it.each(["mts", "cts"])(
    "has types for .%s, and no type of a stub or of gRPC",
    (extension) => {
      writeFileSync(
        join(project, `c.${extension}`),
        `import { Client, type ProcessEvent, Result } from "sandgate";
       import { SandgateSandbox } from "sandgate/deepagents";
       export async function f(): Promise<number> {
         const client = new Client();
         const result: Result = await (await client.create({ ttlMs: 1 })).execute(["true"]);
         const backend = await SandgateSandbox.create({ client, onOutput: (text: string) => text.length });
         const events: AsyncIterable<ProcessEvent> = backend.executeStream("true");
         return result.exitCode + (events ? 1 : 0);
       }
       // @ts-expect-error There is no such option.
       export const g = new Client({ adress: "x" });`,
      );
      const options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--types", "node"];
      run("node", ["node_modules/typescript/bin/tsc", ...options, "--target", "es2022", `c.${extension}`]);
      for (const name of ["index.d.ts", "index.d.cts", "deepagents.d.ts"]) {
        const types = readFileSync(join(project, "node_modules/sandgate/dist", name), "utf8");
        expect(types).not.toMatch(/@grpc\/grpc-js|\/gen\/|Schema\b/);
      }
    },
    60_000,
  );
});
