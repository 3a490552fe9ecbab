import { defineConfig } from "vitest/config";

const withServer = {
  globalSetup: ["test/server/setup.ts"],
  testTimeout: 120_000,
  hookTimeout: 120_000,
  // Waiting ends with what is waited for; a busy machine takes longer.
  expect: { poll: { timeout: 60_000 } },
};

/** `make test-docker` runs it, with a daemon and a server. */
const docker = {
  test: {
    name: "docker",
    include: ["test/docker/*.test.ts"],
    testTimeout: 120_000,
  },
};

export default defineConfig({
  test: {
    projects: [
      {
        test: {
          name: "unit",
          include: ["test/*.test.ts"],
          testTimeout: 60_000,
          hookTimeout: 60_000,
        },
      },
      {
        test: {
          name: "server",
          include: ["test/server/*.test.ts"],
          ...withServer,
        },
      },
      {
        // The oldest supported deepagents, in the place of the newest.
        resolve: { alias: { deepagents: "deepagents-1-13" } },
        test: {
          name: "deepagents 1.13",
          include: ["deepagents", "manager", "streaming", "python"].map((f) => `test/server/${f}.test.ts`),
          ...withServer,
        },
      },
      {
        test: {
          name: "examples",
          include: ["test/examples/*.test.ts"],
          // They use the package as it is built in dist, which the test of the package makes anew.
          sequence: { groupOrder: 1 },
          ...withServer,
        },
      },
      ...(process.env["SANDGATE_DOCKER_IMAGE"] ? [docker] : []),
    ],
  },
});
