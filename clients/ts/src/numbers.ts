/** Checks numbers of callers before they are sent. */

import { InvalidRequestError } from "./errors.js";

/**
 * Returns a length of time.
 *
 * @throws InvalidRequestError when it is not a finite number, or negative.
 */
export function milliseconds(field: string, value: number): number {
  if (Number.isFinite(value) && value >= 0) return value;
  throw refused(field, "must be a finite number of milliseconds, 0 or more", value);
}

/**
 * Returns a count, such as of bytes.
 *
 * @throws InvalidRequestError when it is not a whole number, or negative.
 */
export function count(field: string, value: number): bigint {
  if (Number.isSafeInteger(value) && value >= 0) return BigInt(value);
  throw refused(field, "must be a whole number, 0 or more", value);
}

function refused(field: string, rule: string, value: unknown): InvalidRequestError {
  const description = `${rule}, got ${String(value)}`;
  return new InvalidRequestError(`${field} ${description}`, {
    code: "INVALID_ARGUMENT",
    reason: "REQUEST_INVALID",
    violations: [{ field, description }],
  });
}
