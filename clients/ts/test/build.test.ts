/** `buildImage`, with programs that stand for `sandgate`. */

import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it, vi } from "vitest";
import {
  BuildError,
  type BuildOptions,
  buildImage,
  CallCancelledError,
  DeadlineExceededError,
  InvalidRequestError,
} from "../src/index.js";

interface Case {
  context: string;
  options: Record<string, unknown>;
  /** Undefined: the options contradict one another. */
  arguments?: string[];
}

const cases: Record<string, Case> = JSON.parse(
  readFileSync(new URL("../../build.json", import.meta.url), "utf8"),
);

const directory = mkdtempSync(join(tmpdir(), "sandgate-build-"));
afterAll(() => rmSync(directory, { recursive: true, force: true }));
let count = 0;

/** Writes a program that stands for sandgate, of any version. */
function stub(script: string): string {
  const path = join(directory, `sandgate-${++count}`);
  writeFileSync(path, `#!/bin/sh\n${script}\n`, { mode: 0o755 });
  return path;
}

/** A program that says when it runs, and that it was stopped. */
function stopping(): { program: string; stopped: () => boolean } {
  const done = join(directory, `done-${++count}`);
  const script = `trap 'echo stopped >"${done}"; exit 143' TERM; echo running >&2; while :; do sleep 0.01; done`;
  return { program: stub(script), stopped: () => existsSync(done) };
}

const quiet = () => {};

describe("the program's arguments", () => {
  it.each(Object.entries(cases))("%s", async (_, { context, options, arguments: wanted }) => {
    const lines: string[] = [];
    const build = buildImage(context, {
      ...camel(options),
      program: stub(`printf '%s\\n' "$@" >&2; echo name`),
      onOutput: (line) => lines.push(line),
    });
    if (wanted === undefined) return expect(build).rejects.toBeInstanceOf(InvalidRequestError);
    expect(await build).toBe("name");
    expect(lines).toEqual(wanted);
  });
});

function camel(options: Record<string, unknown>): BuildOptions {
  const name = (key: string) => key.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
  return Object.fromEntries(Object.entries(options).map(([key, value]) => [name(key), value]));
}

describe("buildImage", () => {
  it("sends the output to standard error", async () => {
    const written = vi.spyOn(process.stderr, "write").mockReturnValue(true);
    try {
      expect(await buildImage(".", { program: stub("echo one >&2; printf two >&2; echo name") })).toBe(
        "name",
      );
      expect(written.mock.calls.map(([text]) => text).join("")).toBe("one\ntwo\n");
    } finally {
      written.mockRestore();
    }
  });

  it.each([
    ["for i in $(seq 30); do echo line $i >&2; done; exit 125", "exit code 125: line 30", "125"],
    [`echo 'sandgate: unknown command "build"' >&2; exit 125`, 'unknown command "build"', "125"],
    ["kill -9 $$", "was killed", undefined],
    [":", "no name", undefined],
    ["echo some; echo text", "no name", undefined],
  ])("fails with %s", async (script, message, code) => {
    const program = stub(script);
    const error = await buildImage(".", { program, onOutput: quiet }).catch((e: unknown) => e);
    expect(error).toBeInstanceOf(BuildError);
    const { message: text, metadata } = error as BuildError;
    expect(text).toContain(program);
    expect(text).toContain(message);
    expect(metadata["exit_code"]).toBe(code);
    if (!script.includes("seq")) return;
    expect(metadata["output"]?.split("\n")).toEqual(Array.from({ length: 20 }, (_, i) => `line ${i + 11}`));
  });

  it("says how to install a program that is not there", async () => {
    const error = await buildImage(".", { program: join(directory, "absent") }).catch((e: unknown) => e);
    expect(error).toBeInstanceOf(BuildError);
    expect((error as BuildError).message).toMatch(/cannot run .*install/);
  });

  it("ends the program when its signal comes", async () => {
    const { program, stopped } = stopping();
    const abort = new AbortController();
    const build = buildImage(".", { program, signal: abort.signal, onOutput: () => abort.abort("enough") });
    const error = await build.catch((e: unknown) => e);
    expect(error).toBeInstanceOf(CallCancelledError);
    expect((error as Error).cause).toBe("enough");
    expect(stopped()).toBe(true);
    await expect(buildImage(".", { program, signal: abort.signal })).rejects.toBeInstanceOf(
      CallCancelledError,
    );
  });

  it("ends the program when its time is over", async () => {
    const build = buildImage(".", { program: stub("exec sleep 600"), timeoutMs: 100, onOutput: quiet });
    await expect(build).rejects.toBeInstanceOf(DeadlineExceededError);
  });

  it("ends the program when the callback throws", async () => {
    const { program, stopped } = stopping();
    const error = new Error("of the callback");
    const build = buildImage(".", {
      program,
      onOutput: () => {
        throw error;
      },
    });
    await expect(build).rejects.toBe(error);
    expect(stopped()).toBe(true);
  });
});
