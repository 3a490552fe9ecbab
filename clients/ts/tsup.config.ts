import { defineConfig } from "tsup";

export default defineConfig({
  entry: ["src/index.ts", "src/deepagents.ts"],
  format: ["esm", "cjs"],
  target: "node20",
  platform: "node",
  dts: true,
  clean: true,
  sourcemap: true,
  // One copy of every class for both entries: `instanceof` must hold whichever
  // of them an error came through.
  splitting: true,
});
