/** When a broken call is retried, and for how long. */

import { SandgateError } from "./errors.js";

const FIRST_WAIT_MS = 50;
const LONGEST_WAIT_MS = 2_000;
/** Longest wait that a server can ask for. */
const LONGEST_ASKED_MS = 5_000;

/** The retry window and the backoff of one broken call. */
export class Retry {
  readonly #window: () => number;
  #since: number | undefined;
  #wait = FIRST_WAIT_MS;

  /** @param windowMs Returns the retry window, from the first failure; {@link progress} restarts it. */
  constructor(windowMs: () => number) {
    this.#window = windowMs;
  }

  /** Restarts the retry window: data came. */
  progress(): void {
    this.#since = undefined;
    this.#wait = FIRST_WAIT_MS;
  }

  /** How long to wait before the next attempt. Undefined: the retry window is over. */
  next(error: unknown): number | undefined {
    const now = performance.now();
    this.#since ??= now;
    const asked = error instanceof SandgateError ? (error.retryAfterMs ?? 0) : 0;
    const wait = Math.max(this.#wait, Math.min(asked, LONGEST_ASKED_MS)) * (1 + Math.random() / 4);
    this.#wait = Math.min(this.#wait * 2, LONGEST_WAIT_MS);
    return now + wait - this.#since <= this.#window() ? wait : undefined;
  }
}

/** True for an error of the connection, after which the outcome of the call is unknown. */
export function isBreak(error: unknown): error is SandgateError {
  if (!(error instanceof SandgateError)) return false;
  if (error.code === "UNAVAILABLE") return true;
  // A status that the server did not write: the connection broke under the call.
  return error.reason === "" && (error.code === "CANCELLED" || error.code === "INTERNAL");
}
