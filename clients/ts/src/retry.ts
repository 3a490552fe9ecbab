/** When a broken call is made again, and how long that is tried. */

import { SandgateError } from "./errors.js";

const FIRST_WAIT_MS = 50;
const LONGEST_WAIT_MS = 2_000;
/** Longest wait that a server can ask for. */
const LONGEST_ASKED_MS = 5_000;

/** Counts down the patience for one broken call. */
export class Retry {
  readonly #patience: () => number;
  #since: number | undefined;
  #wait = FIRST_WAIT_MS;

  /** @param patience In milliseconds from the first failure; progress begins it anew. */
  constructor(patience: () => number) {
    this.#patience = patience;
  }

  /** Begins the patience anew: something came. */
  progress(): void {
    this.#since = undefined;
    this.#wait = FIRST_WAIT_MS;
  }

  /** How long to wait before the next attempt. Undefined: patience is used up. */
  next(error: unknown): number | undefined {
    const now = performance.now();
    this.#since ??= now;
    const asked = error instanceof SandgateError ? (error.retryAfterMs ?? 0) : 0;
    const wait = Math.max(this.#wait, Math.min(asked, LONGEST_ASKED_MS)) * (1 + Math.random() / 4);
    this.#wait = Math.min(this.#wait * 2, LONGEST_WAIT_MS);
    return now + wait - this.#since <= this.#patience() ? wait : undefined;
  }
}

/** True for what ends a call without saying anything about what it was to do. */
export function isBreak(error: unknown): error is SandgateError {
  if (!(error instanceof SandgateError)) return false;
  if (error.code === "UNAVAILABLE") return true;
  // A status that the server did not write: the connection broke under the call.
  return error.reason === "" && (error.code === "CANCELLED" || error.code === "INTERNAL");
}
