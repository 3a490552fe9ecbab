/** What bounds and accompanies one call. */

import type { SandgateError } from "./errors.js";
import { milliseconds } from "./numbers.js";
import { defined } from "./values.js";

/** What a caller may say about one call. */
export interface CallOptions {
  /** Ends the call. The promise or iteration rejects with CallCancelledError. */
  signal?: AbortSignal;
  /**
   * Deadline of the call in milliseconds, over all its repeats. Default: none. The call
   * rejects with DeadlineExceededError then.
   */
  timeoutMs?: number;
  /** Metadata of this call, such as `x-request-id`; goes before the client's own. */
  metadata?: Readonly<Record<string, string>>;
}

/** @internal A call whose deadline is fixed, over all its repeats. */
export interface CallWithDeadline extends CallOptions {
  /** In milliseconds of the wall clock. */
  deadline?: number;
}

/** @internal Fixes the deadline of a call that begins now, or did before. */
export function withDeadline(options: CallWithDeadline): CallWithDeadline {
  const { timeoutMs, deadline } = options;
  if (timeoutMs === undefined || deadline !== undefined) return options;
  return { ...options, deadline: Date.now() + milliseconds("timeoutMs", timeoutMs) };
}

/** What bounds a call, as grpc-js takes it. */
export interface Limits {
  /** In milliseconds of the wall clock. */
  deadline?: number;
  /** What the caller gave. */
  timeoutMs?: number;
}

/** The limits of a call whose deadline is fixed. */
export function limitsOf({ deadline, timeoutMs }: CallWithDeadline): Limits {
  return deadline === undefined ? {} : { deadline, ...defined({ timeoutMs }) };
}

/** What a call that streams both ways calls back. */
export interface BidiEvents<O> {
  message(reply: O): void;
  /** The call ended, after its last message if it is without an error. */
  end(error: SandgateError | undefined): void;
}

/** A call that streams both ways. */
export interface BidiCall<I> {
  /** Sends a message; calls `done` when the next one may follow. */
  write(message: I, done: () => void): void;
  /** Ends the requests. */
  end(): void;
  pause(): void;
  resume(): void;
  cancel(): void;
}
