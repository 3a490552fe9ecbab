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
        },
      },
    ],
  },
});
