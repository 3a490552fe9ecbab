import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    projects: [
      {
        test: {
          name: "unit",
          include: ["test/*.test.ts"],
          testTimeout: 20_000,
        },
      },
      {
        test: {
          name: "server",
          include: ["test/server/*.test.ts"],
          globalSetup: ["test/server/setup.ts"],
          testTimeout: 60_000,
          hookTimeout: 60_000,
          // Waiting ends with what is waited for; a busy machine takes longer.
          expect: { poll: { timeout: 30_000 } },
        },
      },
      {
        // The oldest supported deepagents, in the place of the newest.
        resolve: { alias: { deepagents: "deepagents-1-13" } },
        test: {
          name: "deepagents 1.13",
          include: ["deepagents", "manager", "streaming", "python"].map((f) => `test/server/${f}.test.ts`),
          globalSetup: ["test/server/setup.ts"],
          testTimeout: 60_000,
          hookTimeout: 60_000,
          // Waiting ends with what is waited for; a busy machine takes longer.
          expect: { poll: { timeout: 30_000 } },
        },
      },
    ],
  },
});
