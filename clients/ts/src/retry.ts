/** When a broken call is retried, and for how long. */

import { SandgateError } from "./errors.js";

const FIRST_WAIT_MS = 50;
const LONGEST_WAIT_MS = 2_000;
/** Longest wait that a server can request. */
const LONGEST_REQUESTED_MS = 5_000;

/** The retry window and the backoff of one broken call. */
export class Retry {
  readonly #window: () => number;
  #since: number | undefined;
  #wait = FIRST_WAIT_MS;
  #renewed = false;

  /** @param windowMs Returns the retry window, from the first failure; {@link progress} restarts it. */
  constructor(windowMs: () => number) {
    this.#window = windowMs;
  }

  /** Restarts the retry window: data came. */
  progress(): void {
    this.#since = undefined;
    this.#wait = FIRST_WAIT_MS;
    this.#renewed = false;
  }

  /**
   * How long to wait before the next attempt. Undefined: the retry window is over. A
   * rejected token that has changed since allows one attempt, at once.
   */
  next(error: unknown): number | undefined {
    if (isRenewable(error)) {
      const first = !this.#renewed;
      this.#renewed = true;
      return first ? 0 : undefined;
    }
    const now = performance.now();
    this.#since ??= now;
    const requested = error instanceof SandgateError ? (error.retryAfterMs ?? 0) : 0;
    const wait = Math.max(this.#wait, Math.min(requested, LONGEST_REQUESTED_MS)) * (1 + Math.random() / 4);
    this.#wait = Math.min(this.#wait * 2, LONGEST_WAIT_MS);
    return now + wait - this.#since <= this.#window() ? wait : undefined;
  }
}

const renewable = new WeakSet<SandgateError>();

/** Notes that the server rejected a token that has changed since it was sent. */
export function markRenewable(error: SandgateError): void {
  renewable.add(error);
}

/** True if the server rejected a token that has changed since: another attempt may succeed. */
export function isRenewable(error: unknown): boolean {
  return error instanceof SandgateError && renewable.has(error);
}

/** True if the server rejected the token, which has changed since, before it began the call. */
export function isNotBegun(error: unknown): boolean {
  return error instanceof SandgateError && renewable.has(error) && error.metadata["outcome"] !== "unknown";
}

/** True for an error after which the call may be repeated, if it is safe to repeat. */
export function isBreak(error: unknown): error is SandgateError {
  if (!(error instanceof SandgateError)) return false;
  if (renewable.has(error)) return true;
  if (error.code === "UNAVAILABLE") return true;
  // A status that the server did not write: a proxy that gives up on a silent stream
  // resets it so. clients/retries.json has the cases of all clients.
  return error.reason === "" && (error.code === "CANCELLED" || error.code === "INTERNAL");
}
