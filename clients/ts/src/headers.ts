/** The metadata that every call carries. */

import { Metadata } from "@grpc/grpc-js";
import { AuthenticationError, InvalidRequestError, SandgateError } from "./errors.js";
import { cancelledBy, deadlineError, onAbort } from "./sleep.js";
import type { Token } from "./token.js";

/** The metadata of all calls of a client. */
export interface ClientHeaders {
  token: Token;
  metadata: Readonly<Record<string, string>>;
}

/** The metadata and limits of one call. */
export interface CallHeaders {
  signal?: AbortSignal;
  timeoutMs?: number;
  /** In milliseconds of the wall clock. */
  deadline?: number;
  metadata?: Readonly<Record<string, string>>;
}

/**
 * Returns the metadata of a call; its own goes before the client's.
 *
 * @throws AuthenticationError when the token's source failed.
 * @throws InvalidRequestError when the token cannot be sent in a header.
 */
export async function headersOf(client: ClientHeaders, call: CallHeaders): Promise<Metadata> {
  const headers = new Metadata();
  for (const [key, value] of Object.entries({ ...client.metadata, ...call.metadata })) {
    headers.set(key, value);
  }
  const { token } = client;
  const now = (typeof token === "string" ? token : await within(call, fromSource(token))).trim();
  // The error of gRPC would have the token in its text.
  if (!/^[!-~]*$/.test(now)) {
    const text = "the token cannot be sent: it must be printable ASCII without spaces (SANDGATE_TOKEN)";
    throw new InvalidRequestError(text, { code: "INVALID_ARGUMENT" });
  }
  if (now !== "") headers.set("authorization", `Bearer ${now}`);
  return headers;
}

async function fromSource(source: () => string | Promise<string>): Promise<string> {
  try {
    return await source();
  } catch (cause) {
    if (cause instanceof SandgateError) throw cause;
    const why = cause instanceof Error ? cause.message : String(cause);
    throw new AuthenticationError(`the token source failed: ${why}`, { code: "UNAUTHENTICATED" }, { cause });
  }
}

/** Waits for no longer than the call may take. */
function within<T>({ signal, timeoutMs, deadline }: CallHeaders, work: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const late = () => reject(deadlineError(timeoutMs));
    const timer = deadline === undefined ? undefined : setTimeout(late, deadline - Date.now());
    const unlisten = onAbort(signal, () => reject(cancelledBy(signal as AbortSignal)));
    const done = () => {
      clearTimeout(timer);
      unlisten();
    };
    work.then(resolve, reject).finally(done);
  });
}
