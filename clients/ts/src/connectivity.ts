/** Whether the server was reached, and the error of a call that failed. */

import { type Metadata, type ServiceError, status } from "@grpc/grpc-js";
import type { Limits } from "./call.js";
import { errorFromStatus, InternalError, type SandgateError } from "./errors.js";
import { HINTS, hintOf, innermost } from "./hints.js";
import { deadlineError } from "./sleep.js";
import { decodeStatusDetails } from "./status.js";

/** State of the connection to a server. */
export class Connectivity {
  /** True once the server answered a call, be it with an error. */
  reached = false;
  readonly #address: string;
  readonly #tls: boolean;

  constructor(address: string, tls: boolean) {
    this.#address = address;
    this.#tls = tls;
  }

  /** Converts a failure of grpc-js. `requestId` is that of the headers, if they came. */
  error(failure: unknown, requestId: string, { deadline, timeoutMs }: Limits): SandgateError {
    if (!isServiceError(failure)) {
      return new InternalError("the call ended without a reply", { code: "INTERNAL" }, { cause: failure });
    }
    const trailer = failure.metadata?.get("grpc-status-details-bin")[0];
    const details = decodeStatusDetails(trailer instanceof Uint8Array ? trailer : new Uint8Array(0));
    if (details.reason !== "") this.reached = true;
    const id = requestIdOf(failure.metadata) || requestId;
    // The server, too, ends a call at its deadline, by cancelling the stream, and that
    // may arrive before the timer here goes off.
    const late = failure.code === status.CANCELLED && deadline !== undefined && Date.now() >= deadline;
    const ofCall = details.reason === "" || details.reason === "CALL_DEADLINE_EXCEEDED";
    if (late || (failure.code === status.DEADLINE_EXCEEDED && ofCall)) {
      return deadlineError(timeoutMs, { reason: late ? "" : details.reason, requestId: id });
    }
    const unreachable = failure.code === status.UNAVAILABLE && details.reason === "";
    const message = unreachable ? this.#unreachable(failure.details) : failure.details;
    return errorFromStatus(failure.code, message, details, id);
  }

  #unreachable(message: string): string {
    const hint = hintOf(message, { tls: this.#tls, reached: this.reached });
    const text = `the server at ${this.#address} cannot be reached: ${innermost(message)}`;
    return hint === undefined ? text : `${text}; ${HINTS[hint]}`;
  }
}

/** The request id in a call's headers or trailers; empty: none. */
export function requestIdOf(metadata: Metadata | undefined): string {
  const value = metadata?.get("x-request-id")[0];
  return typeof value === "string" ? value : "";
}

function isServiceError(failure: unknown): failure is ServiceError {
  return (
    failure instanceof Error && "code" in failure && typeof failure.code === "number" && "details" in failure
  );
}
