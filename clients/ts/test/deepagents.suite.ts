/**
 * What deepagents expects of a sandbox backend, as a suite: the contract of its
 * TypeScript interface and the behaviour that its own backends share. A backend
 * passes it whole or does not conform.
 */

import { afterAll, beforeAll, describe } from "vitest";
import type { SandgateSandbox, SandgateSandboxOptions } from "../src/deepagents.js";
import { editCases } from "./suite/edit.js";
import { executeCases } from "./suite/execute.js";
import { integrationCases } from "./suite/integration.js";
import { initialFilesCases, lifecycleCases } from "./suite/lifecycle.js";
import { lsCases } from "./suite/ls.js";
import { readCases } from "./suite/read.js";
import { globCases, grepCases } from "./suite/search.js";
import { transferCases } from "./suite/transfer.js";
import { writeCases } from "./suite/write.js";

/** How the suite gets its backends. */
export interface Harness {
  /** Makes a backend without making its sandbox. */
  make(options?: SandgateSandboxOptions): SandgateSandbox;
  /** A directory of the sandbox that the suite may write to. */
  root: string;
}

/** What a group of cases works with: one shared backend, one directory per case. */
export interface Bench extends Harness {
  readonly sandbox: SandgateSandbox;
  /** A new directory's path; nothing makes the directory. */
  directory(): string;
  /** Uploads files below a new directory and returns its path. */
  tree(files: Record<string, string | Uint8Array>): Promise<string>;
  /** What a file holds, read by a command. */
  cat(path: string): Promise<string>;
}

/** Registers the suite. */
export function deepagentsSuite(harness: Harness): void {
  let sandbox: SandgateSandbox | undefined;
  let count = 0;
  const bench: Bench = {
    ...harness,
    get sandbox() {
      if (sandbox === undefined) throw new Error("the shared sandbox is not there yet");
      return sandbox;
    },
    directory: () => `${harness.root}/case-${++count}`,
    tree: async (files) => {
      const directory = bench.directory();
      const entries = Object.entries(files).map(([name, content]): [string, Uint8Array] => [
        `${directory}/${name}`,
        typeof content === "string" ? new TextEncoder().encode(content) : content,
      ]);
      for (const { path, error } of await bench.sandbox.uploadFiles(entries)) {
        if (error !== null) throw new Error(`${path}: ${error}`);
      }
      return directory;
    },
    cat: async (path) => (await bench.sandbox.execute(`cat '${path}'`)).output,
  };

  beforeAll(async () => {
    sandbox = harness.make();
    await sandbox.initialize();
  });
  afterAll(() => sandbox?.close());

  describe("lifecycle", () => lifecycleCases(bench));
  describe("execute", () => executeCases(bench));
  describe("upload and download", () => transferCases(bench));
  describe("write", () => writeCases(bench));
  describe("read", () => readCases(bench));
  describe("edit", () => editCases(bench));
  describe("ls", () => lsCases(bench));
  describe("grep", () => grepCases(bench));
  describe("glob", () => globCases(bench));
  describe("initial files", () => initialFilesCases(bench));
  describe("integration", () => integrationCases(bench));
}
