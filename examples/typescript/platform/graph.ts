/**
 * A deep agent for `langgraph dev` and LangGraph Platform: one sandbox per thread.
 *
 * The platform keeps the threads, and with them the id of each one's sandbox.
 */

import { SandgateManager } from "sandgate/deepagents";
import { chosenModel } from "../commands.js";

const manager = new SandgateManager({
  ttlIdleSeconds: 1800,
  defaultLabels: { app: "platform-js" },
  skipCleanup: true,
  recreate: true,
});

export const graph = await manager.createAgent(chosenModel());
