/** The file methods of a backend: one call each, none of them a command. */

import { posix } from "node:path";
import type {
  DeleteResult,
  EditResult,
  GlobResult,
  GrepResult,
  LsResult,
  ReadRawResult,
  ReadResult,
  WriteResult,
} from "deepagents";
import { SandgateError } from "../errors.js";
import type { GlobOptions, Lines } from "../files.js";
import type { Sandbox } from "../sandbox.js";
import { isText, mimeType } from "./mime.js";
import {
  backendFile,
  climbs,
  EMPTY_FILE,
  errorText,
  fileContent,
  isDirectory,
  isMissing,
  MAX_BINARY_BYTES,
  outside,
} from "./results.js";
import { notFound, notUnique, readForeign, readWindow, replaceText } from "./text.js";

/** Makes one call in the sandbox that is meant; a download may report a loss later. */
export type Use = <T>(call: (sandbox: Sandbox) => Promise<T>, kind?: "download") => Promise<T>;

/** Above this, content goes through an upload instead of one message, in bytes. */
const SMALL_BYTES = 1 << 20;

/** How many bytes of lines are read at once; a single line may be longer. */
const WINDOW_BYTES = 512_000;

/** The most that the server gives at once. */
const MAX_WINDOW_BYTES = 2 << 20;

/** The file methods of one sandbox, with deepagents' results and messages. */
export class Files {
  readonly #in: Use;
  readonly #directory: () => Promise<string>;
  readonly #virtual: boolean;

  /**
   * @param use Makes each call in the sandbox that is meant.
   * @param directory Asks for the directory that relative paths begin in.
   * @param virtual True: paths that try to leave the root are refused at once.
   */
  constructor(use: Use, directory: () => Promise<string>, virtual = false) {
    this.#in = use;
    this.#directory = directory;
    this.#virtual = virtual;
  }

  async ls(path: string): Promise<LsResult> {
    try {
      const directory = await this.#resolve(path);
      const entries = await this.#in((sandbox) => sandbox.list(directory));
      return { files: entries.map((f) => backendFile(f, isDirectory(f) ? `${f.path}/` : f.path)) };
    } catch (error) {
      if (isMissing(error)) return { files: [] };
      if (error instanceof SandgateError && error.reason === "FILE_NOT_DIRECTORY") {
        return { error: `Path '${path}' is not a directory` };
      }
      return { error: `Path '${path}': ${errorText(error)}` };
    }
  }

  async read(filePath: string, offset: number, limit: number): Promise<ReadResult> {
    const type = mimeType(filePath);
    try {
      const path = await this.#resolve(filePath);
      if (!isText(type)) {
        const content = await this.#in((sandbox) =>
          sandbox.downloadFile(path, { limit: MAX_BINARY_BYTES + 1 }),
        );
        return content.length > MAX_BINARY_BYTES ? tooLarge(filePath) : { content, mimeType: type };
      }
      const [skip, most] = [lineCount(offset), lineCount(limit)];
      if (most === 0) return { content: "", mimeType: type };
      const read = (limit: number, maxBytes: number) =>
        this.#in((sandbox) => sandbox.read(path, { offset: skip, limit, maxBytes }));
      let window = await read(most, WINDOW_BYTES);
      let cut = isCut(window, WINDOW_BYTES);
      if (cut) {
        window = { ...(await read(1, MAX_WINDOW_BYTES)), more: window.more };
        cut = isCut(window, MAX_WINDOW_BYTES);
      }
      if (window.size === 0) return { content: EMPTY_FILE, mimeType: type };
      if (window.text) return readWindow(window, type, cut);
      if (window.size > MAX_BINARY_BYTES) return tooLarge(filePath);
      const whole = await this.#in((sandbox) => sandbox.downloadFile(path));
      const foreign = readForeign(whole, skip, most, type);
      return foreign ?? { error: `File '${filePath}' is not a text file` };
    } catch (error) {
      return {
        error: isMissing(error) ? `File '${filePath}' not found` : `File '${filePath}': ${errorText(error)}`,
      };
    }
  }

  async readRaw(filePath: string): Promise<ReadRawResult> {
    try {
      const path = await this.#resolve(filePath);
      const [result] = await this.#in((sandbox) => sandbox.download([path]), "download");
      if (result === undefined || result.error !== undefined) throw result?.error;
      const type = mimeType(filePath);
      const time = (result.info?.modifyTime ?? new Date()).toISOString();
      const content = isText(type) ? new TextDecoder().decode(result.content) : result.content;
      return { data: { content, mimeType: type, created_at: time, modified_at: time } };
    } catch (error) {
      return {
        error: isMissing(error) ? `File '${filePath}' not found` : `File '${filePath}': ${errorText(error)}`,
      };
    }
  }

  async write(filePath: string, content: string): Promise<WriteResult> {
    const bytes = fileContent(content, !isText(mimeType(filePath)));
    try {
      const path = await this.#resolve(filePath);
      await this.#in<unknown>((sandbox) =>
        bytes.length > SMALL_BYTES ? sandbox.uploadFile(path, bytes) : sandbox.write(path, bytes),
      );
      return { path: filePath, filesUpdate: null };
    } catch (error) {
      return { error: `Failed to write to ${filePath}: ${errorText(error)}` };
    }
  }

  async edit(
    filePath: string,
    oldString: string,
    newString: string,
    replaceAll: boolean,
  ): Promise<EditResult> {
    const same = oldString === newString;
    const unchanged: EditResult = {
      path: filePath,
      filesUpdate: null,
      occurrences: oldString === "" ? 0 : 1,
    };
    try {
      const path = await this.#resolve(filePath);
      const options = { replaceAll, allowEmptyOld: oldString === "" };
      const { occurrences } = await this.#in((sandbox) => sandbox.edit(path, oldString, newString, options));
      return same ? unchanged : { path: filePath, filesUpdate: null, occurrences };
    } catch (error) {
      const reason = error instanceof SandgateError ? error.reason : "";
      if (isMissing(error)) return { error: `Error: File '${filePath}' not found` };
      if (oldString === "" && EMPTY_OLD_REFUSED.has(reason)) {
        return { error: "oldString must not be empty unless the file is empty" };
      }
      if (reason === "EDIT_NOT_UNIQUE") return same ? unchanged : notUnique(filePath);
      if (reason === "EDIT_TEXT_NOT_FOUND") return notFound(filePath);
      if (reason === "FILE_NOT_TEXT") return { error: `Error: File '${filePath}' is not a text file` };
      if (isTooLarge(error)) return this.#editLarge(filePath, oldString, newString, replaceAll);
      return { error: `Error: cannot edit file '${filePath}': ${errorText(error)}` };
    }
  }

  async delete(filePath: string): Promise<DeleteResult> {
    try {
      const path = await this.#resolve(filePath);
      await this.#in((sandbox) => sandbox.remove(path, { recursive: true }));
      return { path: filePath, filesUpdate: null };
    } catch (error) {
      if (isMissing(error)) return { error: `Error: '${filePath}' not found` };
      return { error: `Error deleting file '${filePath}': ${errorText(error)}` };
    }
  }

  async grep(
    pattern: string,
    path: string,
    glob: string | null,
    maxCount: number | null,
  ): Promise<GrepResult> {
    try {
      const root = await this.#resolve(path);
      const options = {
        ...(glob === null ? {} : { glob }),
        // One more than asked for tells whether the result was cut.
        ...(maxCount === null ? {} : { maxMatches: maxCount + 1 }),
      };
      const found = await this.#in((sandbox) => sandbox.search(root, pattern, options));
      const matches = found.matches
        .filter((match) => isText(mimeType(match.path)))
        .map(({ path, line, text }) => ({ path, line, text }));
      const kept = maxCount === null ? matches : matches.slice(0, maxCount);
      const truncated = found.truncated || kept.length < matches.length;
      return truncated ? { matches: kept, truncated } : { matches: kept };
    } catch (error) {
      return isMissing(error) ? { matches: [] } : { error: `Error searching '${path}': ${errorText(error)}` };
    }
  }

  async glob(pattern: string, path: string): Promise<GlobResult> {
    try {
      const base = (await this.#resolve(path)).replace(/\/+$/, "");
      const options: GlobOptions = { shallow: true, includeDirectories: true, includeLinks: true };
      const found = await this.#in((sandbox) => sandbox.glob(base || "/", pattern, options));
      const files = found.files.map((f) => backendFile(f, f.path.slice(base.length).replace(/^\/+/, "")));
      return { files, truncated: found.truncated };
    } catch (error) {
      if (isMissing(error)) return { files: [], truncated: false };
      return { error: `Error finding '${pattern}' in '${path}': ${errorText(error)}` };
    }
  }

  /** A relative path is one below the directory in which commands start. */
  async #resolve(path: string): Promise<string> {
    if (this.#virtual && climbs(path)) throw outside(path);
    return path === "" || path.startsWith("/") ? path : posix.join(await this.#directory(), path);
  }

  /** An edit whose texts do not fit into one message; not safe against a simultaneous one. */
  async #editLarge(
    filePath: string,
    oldString: string,
    newString: string,
    all: boolean,
  ): Promise<EditResult> {
    try {
      const path = await this.#resolve(filePath);
      const before = await this.#in((sandbox) => sandbox.downloadFile(path));
      const edited = replaceText(before, oldString, newString, all);
      if (edited === undefined) return { error: `Error: File '${filePath}' is not a text file` };
      if (edited.occurrences === 0) return notFound(filePath);
      if (edited.occurrences > 1 && !all) return notUnique(filePath);
      const { content } = edited;
      await this.#in((sandbox) => sandbox.uploadFile(path, content));
      return { path: filePath, filesUpdate: null, occurrences: edited.occurrences };
    } catch (error) {
      return { error: `Error: cannot edit file '${filePath}': ${errorText(error)}` };
    }
  }
}

/** Reasons for which the server may refuse an empty old text. */
const EMPTY_OLD_REFUSED = new Set(["REQUEST_INVALID", "EDIT_TEXT_NOT_FOUND", "EDIT_NOT_UNIQUE"]);

/** A message that was larger than the server takes; gRPC itself gives no reason. */
function isTooLarge(error: unknown): boolean {
  if (!(error instanceof SandgateError)) return false;
  return error.reason === "MESSAGE_TOO_LARGE" || (error.reason === "" && error.code === "RESOURCE_EXHAUSTED");
}

function tooLarge(path: string): { error: string } {
  return { error: `File '${path}' is too large: more than ${MAX_BINARY_BYTES} bytes cannot be read at once` };
}

/** True when a window is one line that the limit cut within, or ended with. */
function isCut({ truncated, content, startLine, endLine }: Lines, limit: number): boolean {
  // A character that the limit would cut is left out: at most 3 bytes.
  return truncated && startLine === endLine && Buffer.byteLength(content) > limit - 4;
}

/** Offsets and limits as deepagents takes them: whole, not negative, 0 for what is no number. */
function lineCount(value: number): number {
  return Number.isFinite(value) ? Math.max(0, Math.floor(value)) : 0;
}
