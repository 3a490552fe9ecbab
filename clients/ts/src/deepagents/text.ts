/** Text handling for what the server does not do itself: odd encodings and huge edits. */

import { TextDecoder } from "node:util";
import type { EditResult, ReadResult } from "deepagents";
import type { Lines } from "../files.js";

/**
 * A window that the server read, as deepagents has it.
 *
 * @param cut True: it is the beginning of one line that is too long.
 */
export function readWindow(window: Lines, mimeType: string, cut = false): ReadResult {
  if (window.startLine === 0) return { content: "", mimeType };
  const shown = Buffer.byteLength(window.content);
  const notice = `\n\n[Line ${window.startLine} was cut after ${shown} bytes: it is too long to be read at once.]`;
  const result: ReadResult = {
    content: cut ? window.content + notice : window.content,
    mimeType,
    startLine: window.startLine,
    endLine: window.endLine,
  };
  if (window.totalLines !== undefined) result.totalLines = window.totalLines;
  if (window.more) result.nextOffset = window.endLine;
  return result;
}

/**
 * The window of a file that is not UTF-8. A file with NUL bytes is no text at all;
 * of other encodings, what is not ASCII becomes U+FFFD.
 */
export function readForeign(
  bytes: Uint8Array,
  offset: number,
  limit: number,
  mimeType: string,
): ReadResult | undefined {
  if (bytes.includes(0)) return undefined;
  const all = new TextDecoder().decode(bytes).split(/\r\n|\r|\n/);
  if (all.at(-1) === "") all.pop();
  const some = all.slice(offset, offset + limit);
  if (some.length === 0) return { content: "", mimeType };
  const endLine = offset + some.length;
  const result: ReadResult = {
    content: some.join("\n"),
    mimeType,
    totalLines: all.length,
    startLine: offset + 1,
    endLine,
  };
  if (endLine < all.length) result.nextOffset = endLine;
  return result;
}

/** Replaces text in a file that came whole. Undefined: it is not UTF-8. */
export function replaceText(
  bytes: Uint8Array,
  oldText: string,
  newText: string,
  all: boolean,
): { content: string; occurrences: number } | undefined {
  let text: string;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return undefined;
  }
  // As the server does: the text as it is, then with the file's other line end.
  for (const form of [same, crlf, lf]) {
    const parts = text.split(form(oldText));
    const occurrences = parts.length - 1;
    if (occurrences === 1 || (occurrences > 1 && all))
      return { content: parts.join(form(newText)), occurrences };
    if (occurrences > 1) return { content: text, occurrences };
  }
  return { content: text, occurrences: 0 };
}

/** What `edit` says of a text that does not occur. */
export function notFound(path: string): EditResult {
  return { error: `String not found in file '${path}'` };
}

/** What `edit` says of a text that occurs more than once. */
export function notUnique(path: string): EditResult {
  return { error: `Multiple occurrences found in '${path}'. Use replaceAll=true to replace all.` };
}

function same(text: string): string {
  return text;
}

function crlf(text: string): string {
  return text.replace(/\r?\n/g, "\r\n");
}

function lf(text: string): string {
  return text.replaceAll("\r\n", "\n");
}
