/** Images from Dockerfiles, on the Docker daemon and the server of `make test-docker`. */

import { execFileSync } from "node:child_process";
import { randomUUID } from "node:crypto";
import {
  appendFileSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { BuildError, buildImage, CallCancelledError } from "../../src/index.js";

const root = resolve(import.meta.dirname, "../..");

describe("buildImage", () => {
  let project: string;
  let context: string;

  beforeEach(() => {
    project = mkdtempSync(join(tmpdir(), "sandgate-build-"));
    context = join(project, "tools");
    mkdirSync(context);
    // Another image in every run.
    const dockerfile = [
      `FROM ${process.env["SANDGATE_DOCKER_IMAGE"]}`,
      `ENV RUN_ID=${randomUUID()}`,
      "RUN printf '#!/bin/sh\\necho hello from a tool\\n' >/usr/bin/tool && chmod 755 /usr/bin/tool",
    ];
    writeFileSync(join(context, "Dockerfile"), `${dockerfile.join("\n")}\n`);
  });
  afterEach(() => rmSync(project, { recursive: true, force: true }));

  it("runs as the guide has it", () => {
    const page = readFileSync(resolve(root, "../../docs/clients/typescript.md"), "utf8");
    const blocks = [...page.matchAll(/^```ts docker\n(.*?)^```$/gms)].map(([, code = ""]) => code);
    expect(blocks.length).toBe(1);
    const code = blocks[0]?.replace('buildImage("tools")', 'buildImage("tools", { network: "none" })');
    writeFileSync(join(project, "guide.mts"), `${code}\nexport {};\n`);
    writeFileSync(join(project, "package.json"), '{ "type": "module" }');
    const paths = { sandgate: [join(root, "src/index.ts")] };
    const { compilerOptions } = JSON.parse(readFileSync(join(root, "tsconfig.json"), "utf8"));
    const options = { ...compilerOptions, paths, allowImportingTsExtensions: true };
    writeFileSync(
      join(project, "tsconfig.json"),
      JSON.stringify({ compilerOptions: options, include: ["guide.mts"] }),
    );
    symlinkSync(join(root, "node_modules"), join(project, "node_modules"));
    const run = (...args: string[]) =>
      execFileSync(process.execPath, args, { cwd: project, encoding: "utf8", timeout: 100_000 });
    expect(run(join(root, "node_modules/typescript/bin/tsc"), "--noEmit")).toBe("");
    // In the process itself: the command line of tsx has an exit code of its own.
    expect(run("--import", join(root, "node_modules/tsx/dist/loader.mjs"), "guide.mts")).toBe(
      "hello from a tool\n\n",
    );
  });

  it("builds once", async () => {
    const lines: string[] = [];
    const options = { network: "none", onOutput: (line: string) => lines.push(line) };
    const image = await buildImage(context, options);
    expect(lines[0]).toMatch(/^Step 1\/3/);
    lines.length = 0;
    expect(await buildImage(context, options)).toBe(image);
    expect(lines).toEqual([]);
  });

  it("says what failed", async () => {
    appendFileSync(join(context, "Dockerfile"), "RUN echo before; exit 7\n");
    const error = await buildImage(context, { network: "none", onOutput: () => {} }).catch((e: unknown) => e);
    expect(error).toBeInstanceOf(BuildError);
    expect((error as BuildError).message).toContain("returned a non-zero code: 7");
    expect((error as BuildError).metadata["exit_code"]).toBe("125");
    expect((error as BuildError).metadata["output"]).toContain("\nbefore\n");
  });

  it("ends with its signal", async () => {
    appendFileSync(join(context, "Dockerfile"), "RUN echo running; sleep 600\n");
    const abort = new AbortController();
    const onOutput = (line: string) => {
      if (line === "running") abort.abort();
    };
    const build = buildImage(context, { network: "none", onOutput, signal: abort.signal });
    await expect(build).rejects.toBeInstanceOf(CallCancelledError);
  });
});
