/** Converts the client's results to those of deepagents. */

import type { FileInfo as BackendFileInfo, ExecuteResponse, FileOperationError } from "deepagents";
import { InvalidRequestError, SandboxNotFoundError, SandgateError } from "../errors.js";
import type { FileInfo } from "../files.js";
import type { Result } from "../result.js";

/** What deepagents shows in place of an empty file. */
export const EMPTY_FILE = "System reminder: File exists but has empty contents";

/** Most bytes of a binary file that a deepagents tool takes. */
export const MAX_BINARY_BYTES = 10 << 20;

const LITERALS: Readonly<Record<string, FileOperationError>> = {
  FILE_NOT_FOUND: "file_not_found",
  FILE_PERMISSION_DENIED: "permission_denied",
  FILE_READ_ONLY: "permission_denied",
  POLICY_DENIED: "permission_denied",
  FILE_IS_DIRECTORY: "is_directory",
};

/** The closest of the four literals that deepagents defines. */
export function literal(error: SandgateError): FileOperationError {
  return LITERALS[error.reason] ?? "invalid_path";
}

/**
 * True when a path cannot be one of a sandbox: empty, relative, or with NUL; with a
 * virtual root, also one that tries to leave it.
 */
export function isInvalidPath(path: string, virtual = false): boolean {
  return !path.startsWith("/") || path.includes("\0") || (virtual && climbs(path));
}

/** True for a path with a ".." in it, or one that begins in somebody's home. */
export function climbs(path: string): boolean {
  return path.split("/").includes("..") || /^\/*~/.test(path);
}

/** What a path is refused with that tries to leave a virtual root. */
export function outside(path: string): InvalidRequestError {
  return new InvalidRequestError(`the path ${path} leads out of the root: "~" and ".." are not allowed`, {
    code: "INVALID_ARGUMENT",
    reason: "PATH_INVALID",
    metadata: { path },
  });
}

/** True when the file, and not the sandbox or the connection, is what is missing. */
export function isMissing(error: unknown): boolean {
  return error instanceof SandgateError && error.reason === "FILE_NOT_FOUND";
}

/**
 * Tells what an upload has in a file's result from what ends all of it. The latter may
 * name a path too, such as that of a root that is missing. Of a path that is too long,
 * the server names the beginning.
 */
export function isOfFile(error: unknown, path: string): error is SandgateError {
  if (!(error instanceof SandgateError)) return false;
  const named = error.metadata["path"] ?? "";
  return error.reason === "POLICY_DENIED" || (named !== "" && path.startsWith(named));
}

/**
 * The message of what a call failed with, for a model to read; what is no failure of a
 * call is thrown on. The path is left out: what is around the message names it.
 */
export function errorText(error: unknown): string {
  if (!(error instanceof SandgateError)) throw error;
  // A model can neither create a sandbox nor list them, as the server proposes.
  if (error instanceof SandboxNotFoundError) {
    const named = ["the sandbox", error.metadata["sandbox_id"]].filter(Boolean).join(" ");
    const why =
      error.reason === "SANDBOX_EXPIRED" ? "its lifetime ended" : "it was deleted or its lifetime ended";
    return `${named} no longer exists: ${why}; its files and processes are lost`;
  }
  const path = error.metadata["path"];
  const named = path === undefined ? "" : `${JSON.stringify(path)}: `;
  return error.message.startsWith(named) ? error.message.slice(named.length) : error.message;
}

/** A command's end as deepagents has it. */
export function executeResponse(result: Result, timeoutMs: number): ExecuteResponse {
  const { exited, truncated } = result;
  switch (exited.reason) {
    case "EXITED":
    case "SIGNALED":
      return { output: result.output, exitCode: result.exitCode, truncated };
    case "TIMED_OUT": {
      const after = timeoutMs > 0 ? timeoutMs : exited.wallTimeMs;
      const notice = `Command timed out after ${Math.round(after / 100) / 10} seconds`;
      return { output: appended(result.output, notice), exitCode: result.exitCode, truncated };
    }
    case "OUT_OF_MEMORY":
      return {
        output: appended(result.output, "Command ran out of memory"),
        exitCode: result.exitCode,
        truncated,
      };
    case "KILLED":
      return { output: appended(result.output, "Command was killed"), exitCode: result.exitCode, truncated };
    default: {
      const why = exited.message || `the command's end is unknown (${exited.reason})`;
      return { output: appended(result.output, `Error: ${why}`), exitCode: null, truncated };
    }
  }
}

/** Adds a line to output that may not end in one. */
export function appended(output: string, line: string): string {
  return output === "" || output.endsWith("\n") ? output + line : `${output}\n${line}`;
}

/** A file as deepagents has it; a link counts as what it points to. */
export function backendFile(file: FileInfo, path: string): BackendFileInfo {
  const info: BackendFileInfo = { path, is_dir: isDirectory(file) };
  if (file.type !== "SYMLINK") info.size = file.size;
  if (file.modifyTime !== undefined) info.modified_at = file.modifyTime.toISOString();
  return info;
}

/** True for a directory and for a link to one. */
export function isDirectory(file: FileInfo): boolean {
  return (file.type === "SYMLINK" ? file.targetType : file.type) === "DIRECTORY";
}

/**
 * What `write` puts into a file: for a binary type deepagents hands over base64,
 * plain or as a data URL; what is not base64 is written as it stands.
 */
export function fileContent(content: string, binary: boolean): Uint8Array {
  if (binary) {
    const payload = content
      .trim()
      .replace(/^data:[^,]*,/, "")
      .replace(/\s/g, "");
    if (payload.length % 4 === 0 && /^[A-Za-z0-9+/]*={0,2}$/.test(payload))
      return Buffer.from(payload, "base64");
  }
  return new TextEncoder().encode(content);
}
