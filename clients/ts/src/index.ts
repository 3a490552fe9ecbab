/**
 * Client of Sandgate: sandboxes for AI agents behind one endpoint.
 *
 * @packageDocumentation
 */

export {
  type CleanupOptions,
  type CleanupResult,
  Client,
  type CreateOptions,
  type ListOptions,
  type PoolStatus,
  type SandboxPage,
  type UpdateOptions,
} from "./client.js";
export {
  type AttachOptions,
  type Command,
  DEFAULT_GRACE_MS,
  type ExecuteOptions,
  type Exited,
  type ExitReason,
  exitCodeOf,
  type Gap,
  type Output,
  type ProcessEvent,
  type ProcessInfo,
  type SignalScope,
  type Started,
} from "./command.js";
export {
  AuthenticationError,
  CallCancelledError,
  type Code,
  CommandStartError,
  ConnectionLostError,
  DeadlineExceededError,
  type ErrorFacts,
  ExecNotFoundError,
  ExecStateError,
  FileError,
  InternalError,
  InvalidRequestError,
  PermissionDeniedError,
  QuotaExceededError,
  SandboxExistsError,
  SandboxNotActiveError,
  SandboxNotFoundError,
  SandboxReplacedError,
  SandboxStartError,
  SandgateError,
  TemplateNotFoundError,
  UnavailableError,
  UnsupportedError,
  type Violation,
} from "./errors.js";
export type {
  DownloadOptions,
  DownloadResult,
  EditOptions,
  EditResult,
  FileInfo,
  FileType,
  GlobOptions,
  GlobResult,
  Lines,
  ReadOptions,
  SearchMatch,
  SearchOptions,
  SearchResult,
  Source,
  TruncationReason,
  UploadFile,
  UploadOptions,
  UploadResult,
  WriteOptions,
  WriteResult,
} from "./files.js";
export type { Token } from "./headers.js";
export { type ClientOptions, DEFAULT_ADDRESS, DEFAULT_PATIENCE_MS } from "./options.js";
export { Result } from "./result.js";
export { Sandbox } from "./sandbox.js";
export type { CallOptions } from "./transport.js";
export type {
  AccessPolicy,
  EgressRule,
  Isolation,
  NetworkModeName,
  Resources,
  SandboxInfo,
  SandboxSpec,
  ServerInfo,
  ServerLimits,
  State,
} from "./values.js";
