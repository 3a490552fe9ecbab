/** The bearer token of a client, which may change. */

import { open } from "node:fs/promises";
import { AuthenticationError } from "./errors.js";

/**
 * A bearer token, or a function that returns one, for tokens that change. The function
 * is called before every attempt of a call, and after a rejected one, so it should cache
 * the token until it is about to expire.
 */
export type Token = string | (() => string | Promise<string>);

const MAX_FILE_BYTES = 64 << 10;

/**
 * Returns a function that reads a token from a file. While the file is being replaced,
 * it may be missing or empty: the function then returns the last token.
 */
export function tokenFile(path: string): () => Promise<string> {
  let last = "";
  return async () => {
    let why: string;
    let cause: unknown;
    try {
      const raw = await head(path, MAX_FILE_BYTES + 1);
      const token = raw.toString("latin1").trim();
      if (raw.length > MAX_FILE_BYTES) why = `it has more than ${MAX_FILE_BYTES} bytes`;
      else if (token === "") why = "it is empty";
      else {
        last = token;
        return last;
      }
    } catch (error) {
      why = error instanceof Error ? error.message : String(error);
      cause = error;
    }
    if (last !== "") return last;
    const text = `the token file ${path} cannot be used: ${why}`;
    throw new AuthenticationError(text, { code: "UNAUTHENTICATED" }, { cause });
  };
}

/** Reads the beginning of a file. */
async function head(path: string, bytes: number): Promise<Buffer> {
  const file = await open(path);
  try {
    const { buffer, bytesRead } = await file.read(Buffer.alloc(bytes), 0, bytes, 0);
    return buffer.subarray(0, bytesRead);
  } finally {
    await file.close();
  }
}
