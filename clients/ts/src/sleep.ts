/** Waiting that a caller's signal ends. */

import { CallCancelledError } from "./errors.js";

/** The error of a call that its caller's signal ended. */
export function cancelledBy(signal: AbortSignal): CallCancelledError {
  return new CallCancelledError("the caller cancelled", { code: "CANCELLED" }, { cause: signal.reason });
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

/** Calls back when the signal comes; returns what takes the listener off. */
export function onAbort(signal: AbortSignal | undefined, act: () => void): () => void {
  if (signal === undefined) return () => {};
  signal.addEventListener("abort", act, { once: true });
  return () => signal.removeEventListener("abort", act);
}
