/** `createExecutePythonTool`: Python as a tool, for an agent whose files are virtual. */

import { posix } from "node:path";
import { ToolMessage } from "@langchain/core/messages";
import { type DynamicStructuredTool, type ToolRuntime, tool } from "@langchain/core/tools";
import { Command } from "@langchain/langgraph";
import type { FileData } from "deepagents";
import type { Sandbox } from "../sandbox.js";
import { isText, mimeType } from "./mime.js";
import type { NativeBackend } from "./native.js";
import { SandgateThreadBackend, type ThreadOptions } from "./threads.js";

/** For a system prompt: tells the model what the tool does with its files. */
export const TOOL_MODE_PROMPT_SUFFIX =
  "\n\nYou can run Python with the tool `execute_python`. Your files are in its working " +
  "directory, under the same names without the leading slash. Files that your program " +
  "creates, changes or deletes there are so in your own files afterwards. Print what you want to see.";

/** Default of {@link ExecutePythonOptions.directory}. */
const DIRECTORY = "/workspace/files";
const MAX_FILE_BYTES = 1 << 20;
const MAX_FILES = 1_000;

/** How the tool behaves. */
export interface ExecutePythonOptions {
  /** Where it runs. Default: a backend of its own with a sandbox per thread, of `sandbox`. */
  backend?: NativeBackend;
  /** What describes the sandboxes of its own backend. */
  sandbox?: ThreadOptions;
  /**
   * Directory in the sandbox that stands for "/" of the virtual files; it is the
   * tool's own. Default: "/workspace/files".
   */
  directory?: string;
  /** The program that runs the code, given on its standard input. Default: ["python3", "-u", "-"]. */
  interpreter?: readonly [string, ...string[]];
  /** The tool's name. Default: "execute_python". */
  name?: string;
}

/**
 * Returns a tool that runs Python code in a sandbox. Before each call the virtual
 * files of the agent's state are written to the sandbox; after it, what the program
 * created, changed or deleted there is so in the state. Files over 1 MiB and names
 * that begin with a dot stay in the sandbox. The result is `exit=N` and the output.
 */
export function createExecutePythonTool(options: ExecutePythonOptions = {}): DynamicStructuredTool {
  const {
    backend = new SandgateThreadBackend(options.sandbox),
    directory = DIRECTORY,
    interpreter = ["python3", "-u", "-"],
    name = "execute_python",
  } = options;
  const run = async ({ code }: { code: string }, runtime: ToolRuntime) => {
    const state = (runtime.state ?? {}) as { files?: Record<string, FileData> };
    const before = seeds(state.files ?? {});
    await backend.use((sandbox) => seed(sandbox, directory, before));
    const command = `cd ${quoted(directory)} && exec ${interpreter.map(quoted).join(" ")}`;
    const { output, exitCode } = await backend.execute(command, { stdin: code });
    const { files, skipped } = await backend.use((sandbox) => changes(sandbox, directory, before));
    const notes = skipped.map((path) => `[${path} is too large to be copied back]`);
    const content = [`exit=${exitCode ?? "unknown"}`, output, ...notes].join("\n");
    const message = new ToolMessage({ content, tool_call_id: runtime.toolCallId, name });
    return new Command({ update: { files, messages: [message] } });
  };
  return tool(run as never, {
    name,
    description:
      "Runs Python code in a sandbox, in a directory that holds your files; returns what it printed.",
    schema: {
      type: "object",
      properties: { code: { type: "string", description: "The program." } },
      required: ["code"],
    },
  }) as unknown as DynamicStructuredTool;
}

/** The virtual files as bytes, by their virtual path. */
function seeds(files: Record<string, FileData>): Map<string, Uint8Array> {
  return new Map(Object.entries(files).map(([path, file]) => [path, contentOf(file)]));
}

function contentOf({ content }: FileData): Uint8Array {
  if (Array.isArray(content)) return Buffer.from(content.join("\n"));
  return typeof content === "string" ? Buffer.from(content) : content;
}

/** Makes the directory hold these files; what the agent deleted goes there too. */
async function seed(sandbox: Sandbox, directory: string, files: Map<string, Uint8Array>): Promise<void> {
  await sandbox.makeDirectory(directory);
  const { files: found } = await sandbox.glob(directory, "**/*", { maxResults: MAX_FILES });
  const kept = new Set([...files.keys()].map((path) => inSandbox(directory, path)));
  for (const { path, size } of found) {
    if (size <= MAX_FILE_BYTES && !kept.has(path)) await sandbox.remove(path, { allowMissing: true });
  }
  const wanted = [...files].map(([path, source]) => ({ path: inSandbox(directory, path), source }));
  for (const { error } of await sandbox.upload(wanted)) if (error !== undefined) throw error;
}

/** What the program did to the files, as an update of the state. */
async function changes(
  sandbox: Sandbox,
  directory: string,
  before: Map<string, Uint8Array>,
): Promise<{ files: Record<string, FileData | null>; skipped: string[] }> {
  const found = await sandbox.glob(directory, "**/*", { maxResults: MAX_FILES });
  const small = found.files.filter((file) => file.size <= MAX_FILE_BYTES);
  const skipped = found.files.filter((file) => file.size > MAX_FILE_BYTES).map((file) => file.path);
  const files: Record<string, FileData | null> = {};
  const time = new Date().toISOString();
  for (const { path, content, error } of await sandbox.download(small.map((file) => file.path))) {
    const virtual = path.slice(directory.length);
    const known = before.get(virtual);
    // A file may vanish under a program that runs on; then it counts as deleted.
    if (error !== undefined || (known !== undefined && Buffer.from(known).equals(content))) continue;
    const type = mimeType(virtual);
    const body = isText(type) ? new TextDecoder().decode(content) : content;
    files[virtual] = { content: body, mimeType: type, created_at: time, modified_at: time };
  }
  const present = new Set(found.files.map((file) => file.path.slice(directory.length)));
  if (!found.truncated) {
    for (const path of before.keys()) {
      const hidden = path.split("/").some((segment) => segment.startsWith("."));
      if (!hidden && !present.has(path)) files[path] = null;
    }
  }
  return { files, skipped };
}

function inSandbox(directory: string, path: string): string {
  return posix.join(directory, posix.normalize(`/${path}`));
}

function quoted(word: string): string {
  return `'${word.replaceAll("'", `'\\''`)}'`;
}
