/**
 * Client of Sandgate: sandboxes for AI agents behind one endpoint.
 *
 * @packageDocumentation
 */

export { type BuildOptions, buildImage } from "./build.js";
export type { CallOptions } from "./call.js";
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
  type TerminalSize,
} from "./command.js";
export { type ConnectOptions, PortSocket } from "./connect.js";
export {
  AuthenticationError,
  BuildError,
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
  PortClosedError,
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
export { type ClientOptions, DEFAULT_ADDRESS, DEFAULT_RECONNECT_TIMEOUT_MS } from "./options.js";
export { Result } from "./result.js";
export { Sandbox } from "./sandbox.js";
export type { Token } from "./token.js";
export type { SandboxUrl, UrlOptions } from "./url.js";
export type {
  AccessPolicy,
  EgressRule,
  EgressSecret,
  Isolation,
  NetworkModeName,
  Quota,
  Resources,
  SandboxInfo,
  SandboxSpec,
  ServerInfo,
  ServerLimits,
  State,
} from "./values.js";
export type { EventReasonName, EventType, SandboxEvent, WatchOptions } from "./watch.js";
