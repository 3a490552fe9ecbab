import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";

const here = resolve(import.meta.dirname, "..");
const { devDependencies } = JSON.parse(readFileSync(join(here, "package.json"), "utf8"));

/** What a project of a user has beside the package, in the versions that are tested here. */
const PEERS = [
  "@langchain/core",
  "@langchain/langgraph",
  "@langchain/langgraph-checkpoint",
  "@langchain/langgraph-sdk",
  "@types/node",
  "deepagents",
  "langchain",
  "langsmith",
  "typescript",
  "zod",
];

describe("the package, installed into an empty project", () => {
  const project = mkdtempSync(join(tmpdir(), "sandgate-package-"));
  const run = (program: string, args: string[], cwd = project) =>
    execFileSync(program, args, { cwd, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
  let files: string[] = [];

  beforeAll(() => {
    const [packed] = JSON.parse(
      run("npm", ["pack", "--json", "--silent", "--pack-destination", project], here),
    );
    files = packed.files.map((file: { path: string }) => file.path);
    const dependencies = Object.fromEntries(PEERS.map((name) => [name, devDependencies[name]]));
    dependencies["sandgate"] = `file:${packed.filename}`;
    writeFileSync(join(project, "package.json"), JSON.stringify({ private: true, dependencies }));
    run("npm", ["install", "--prefer-offline", "--no-audit", "--no-fund", "--loglevel=error"]);
  }, 240_000);
  afterAll(() => rmSync(project, { recursive: true, force: true }), 120_000);

  it("holds what was built and nothing else", () => {
    expect(files).toEqual(
      expect.arrayContaining(["LICENSE", "README.md", "package.json", "dist/index.d.cts"]),
    );
    const others = files.filter((path) => !/^(dist\/.*|LICENSE|README\.md|package\.json)$/.test(path));
    expect(others).toEqual([]);
    // What names the building machine would make each build another.
    const maps = files.filter((path) => path.endsWith(".map"));
    for (const path of maps) {
      const { sources } = JSON.parse(readFileSync(join(project, "node_modules/sandgate", path), "utf8"));
      expect(sources.filter((source: string) => source.startsWith("/"))).toEqual([]);
    }
    expect(maps).toContain("dist/index.js.map");
  });

  it("has types where `exports` is not read", () => {
    const { types, typesVersions } = JSON.parse(
      readFileSync(join(project, "node_modules/sandgate/package.json"), "utf8"),
    );
    const named = [types, ...typesVersions["*"].deepagents].map((path: string) => path.replace("./", ""));
    expect(files).toEqual(expect.arrayContaining(named));
    writeFileSync(
      join(project, "old.ts"),
      `import { Client } from "sandgate"; import { SandgateSandbox } from "sandgate/deepagents";
       export const client: Client = new Client();
       export const id: string = new SandgateSandbox({ client }).id;`,
    );
    const how = ["--module", "commonjs", "--moduleResolution", "node10", "--types", "node"];
    const options = ["--noEmit", "--strict", "--skipLibCheck", "--target", "es2022", ...how];
    run("node", ["node_modules/typescript/bin/tsc", ...options, "old.ts"]);
  }, 60_000);

  it("is imported and required, with one set of classes", () => {
    const script = (load: string) => `${load}
      if (new SandgateSandbox({ id: "a" }).id !== "a") throw new Error("id");
      if (new SandgateThreadBackend().id === "") throw new Error("thread id");
      new SandgateProvider({ connection: { address: "127.0.0.1:1" } }).reconnect("a").catch((error) => {
        if (!(error instanceof UnavailableError)) throw error;
        console.log(error.name);
      });`;
    const names = "SandgateProvider, SandgateSandbox, SandgateThreadBackend";
    writeFileSync(
      join(project, "a.mjs"),
      script(`import { UnavailableError } from "sandgate"; import { ${names} } from "sandgate/deepagents";`),
    );
    writeFileSync(
      join(project, "a.cjs"),
      script(
        `const { UnavailableError } = require("sandgate"); const { ${names} } = require("sandgate/deepagents");`,
      ),
    );
    expect(run("node", ["a.mjs"])).toBe("UnavailableError\n");
    expect(run("node", ["a.cjs"])).toBe("UnavailableError\n");
  }, 60_000);

  it("S3-26 needs no peer for the client, and says which one is missing for the rest", () => {
    const away = ["deepagents", "langchain", "@langchain", "zod"].map((name) =>
      join(project, "node_modules", name),
    );
    for (const path of away) renameSync(path, `${path}.away`);
    writeFileSync(join(project, "b.mjs"), `import { Client } from "sandgate"; console.log(typeof Client);`);
    writeFileSync(
      join(project, "c.mjs"),
      `import("sandgate/deepagents").catch((error) => console.log(error.code, error.message));`,
    );
    expect(run("node", ["b.mjs"])).toBe("function\n");
    expect(run("node", ["c.mjs"])).toMatch(
      /^ERR_MODULE_NOT_FOUND .*Cannot find package '(deepagents|langchain|@langchain\/\w+)'/,
    );
    for (const path of away) renameSync(`${path}.away`, path);
  }, 60_000);

  it.each([
    ["node16", "node16", ["mts", "cts"]],
    ["esnext", "bundler", ["ts"]],
  ])(
    "has types under module %s, resolution %s, and no type of a stub or of gRPC",
    (module, resolution, extensions) => {
      const code = `import { Client, type ProcessEvent, Result } from "sandgate";
       import { SandgateManager, SandgateProvider, SandgateSandbox } from "sandgate/deepagents";
       export async function f(): Promise<number> {
         const client = new Client({ channels: 2 });
         const result: Result = await (await client.create({ ttlMs: 1 })).execute(["true"]);
         const backend = await SandgateSandbox.create({ client, onOutput: (text: string) => text.length });
         const events: AsyncIterable<ProcessEvent> = backend.executeStream("true");
         const { deleted } = await new SandgateProvider({ client }).cleanup(1);
         const agent = await new SandgateManager({ client }).createAgent("openai:gpt-5");
         const state = await agent.invoke({ messages: [] }, { configurable: { thread_id: "t" } });
         return result.exitCode + (events ? 1 : 0) + deleted.length + state.messages.length;
       }
       // @ts-expect-error There is no such option.
       export const g = new Client({ adress: "x" });`;
      const names = extensions.map((extension) => `types.${extension}`);
      for (const name of names) writeFileSync(join(project, name), code);
      const options = ["--noEmit", "--strict", "--skipLibCheck", "--target", "es2022", "--types", "node"];
      const how = ["--module", module, "--moduleResolution", resolution];
      run("node", ["node_modules/typescript/bin/tsc", ...options, ...how, ...names]);
      for (const name of ["index.d.ts", "index.d.cts", "deepagents.d.ts"]) {
        const path = join(project, "node_modules/sandgate/dist", name);
        expect(existsSync(path)).toBe(true);
        expect(readFileSync(path, "utf8")).not.toMatch(/@grpc\/grpc-js|\/gen\/|Schema\b/);
      }
    },
    120_000,
  );
});
