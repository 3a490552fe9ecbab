import { describe, inject, it } from "vitest";

/** Where the server of these tests is. */
export const address = inject("address");

/** Registers tests that need a server; without one they are skipped, and say why. */
export function withServer(name: string, tests: () => void): void {
  const reason = inject("reason");
  describe(name, () => (reason === "" ? tests() : it.skip(reason, () => {})));
}
