/** Waiting that a caller's signal ends. */

import { CallCancelledError, DeadlineExceededError, type ErrorFacts } from "./errors.js";

/** The error of a call that did not end in its time. */
export function deadlineError(
  timeoutMs: number | undefined,
  facts: Partial<ErrorFacts> = {},
): DeadlineExceededError {
  const within = timeoutMs === undefined ? "before its deadline" : `within its timeout of ${timeoutMs} ms`;
  return new DeadlineExceededError(`the call did not end ${within}`, {
    ...facts,
    code: "DEADLINE_EXCEEDED",
  });
}

/** The error of a call on a client that was closed. */
export function closedError(): CallCancelledError {
  return new CallCancelledError("the client is closed", { code: "CANCELLED", reason: "CALL_CANCELLED" });
}

/** The error of a call that its caller's signal ended. */
export function cancelledBy(signal: AbortSignal): CallCancelledError {
  return new CallCancelledError("the caller cancelled", { code: "CANCELLED" }, { cause: signal.reason });
}

/** Settles as `work`, or rejects when the signal of a closed client comes first. */
export function unlessClosed<T>(closing: AbortSignal, work: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const unlisten = onAbort(closing, () => reject(closedError()));
    work.then(resolve, reject).finally(unlisten);
  });
}

/** Waits, or rejects with CallCancelledError when the signal comes first. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(cancelledBy(signal));
    const timer = setTimeout(() => {
      unlisten();
      resolve();
    }, ms);
    const unlisten = onAbort(signal, () => {
      clearTimeout(timer);
      reject(cancelledBy(signal as AbortSignal));
    });
  });
}

/**
 * What each signal calls. One listener per signal serves any number of calls: Node
 * warns of a leak where there are more than ten.
 */
const callbacks = new WeakMap<AbortSignal, Set<() => void>>();

/** Calls back when the signal comes; returns what takes the callback off. */
export function onAbort(signal: AbortSignal | undefined, act: () => void): () => void {
  if (signal === undefined) return () => {};
  let all = callbacks.get(signal);
  if (all === undefined) {
    const created = new Set<() => void>();
    const tell = () => {
      for (const one of created) one();
    };
    signal.addEventListener("abort", tell, { once: true });
    callbacks.set(signal, created);
    all = created;
  }
  const own = () => act();
  all.add(own);
  return () => all.delete(own);
}
