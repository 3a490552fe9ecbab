/** Options that nothing reads are a mistake of the caller, such as another unit's name. */

import { InvalidRequestError } from "./errors.js";

/** One entry for every option of T. */
export type Names<T> = Readonly<Record<keyof Required<T>, true>>;

/**
 * Refuses options that are not known.
 *
 * @throws InvalidRequestError when there is one.
 */
export function refuseUnknown(given: object, known: Readonly<Record<string, true>>): void {
  const unknown = Object.keys(given).filter((name) => !Object.hasOwn(known, name));
  if (unknown.length === 0) return;
  const names = Object.keys(known).join(", ");
  throw new InvalidRequestError(`there is no option ${unknown.join(", ")}; there are ${names}`, {
    code: "INVALID_ARGUMENT",
    reason: "REQUEST_INVALID",
    violations: unknown.map((field) => ({ field, description: "there is no such option" })),
  });
}
