/**
 * Sandgate sandboxes as backends of deep agents.
 *
 * @packageDocumentation
 */

export { SandgateSandbox } from "./deepagents/backend.js";
export { createSandboxBackendFactory, type SandboxBackendFactory } from "./deepagents/factory.js";
export {
  type Agent,
  type AgentOptions,
  type ManagerOptions,
  MissingDependencyError,
  type Model,
  type Node,
  type NodeState,
  SANDBOX_KEY,
  SandgateManager,
} from "./deepagents/manager.js";
export type { NativeBackend } from "./deepagents/native.js";
export * from "./deepagents/options.js";
export {
  type CleanedUp,
  type GetOrCreateOptions,
  type LifetimeOptions,
  type ListedPage,
  type ListedSandbox,
  type ListSandboxesOptions,
  type ProviderOptions,
  type ProviderStats,
  SandgateProvider,
  type Status,
} from "./deepagents/provider.js";
export {
  createExecutePythonTool,
  type ExecutePythonOptions,
  TOOL_MODE_PROMPT_SUFFIX,
} from "./deepagents/python.js";
export { sandgateStreaming } from "./deepagents/streaming.js";
export {
  currentThread,
  RECREATED,
  SandgateThreadBackend,
  THREAD_LABEL,
  type ThreadOptions,
  threadSandboxId,
} from "./deepagents/threads.js";
