/**
 * Every error of this package. The classes and the reasons that lead to them are
 * the same in the Go, Python and TypeScript clients: `clients/errors.json` and
 * `clients/error_codes.json`.
 */

import type { StatusDetails } from "./status.js";

/** A canonical gRPC code, by name. */
export type Code =
  | "CANCELLED"
  | "UNKNOWN"
  | "INVALID_ARGUMENT"
  | "DEADLINE_EXCEEDED"
  | "NOT_FOUND"
  | "ALREADY_EXISTS"
  | "PERMISSION_DENIED"
  | "RESOURCE_EXHAUSTED"
  | "FAILED_PRECONDITION"
  | "ABORTED"
  | "OUT_OF_RANGE"
  | "UNIMPLEMENTED"
  | "INTERNAL"
  | "UNAVAILABLE"
  | "DATA_LOSS"
  | "UNAUTHENTICATED";

/** One field of a request that was refused. */
export interface Violation {
  field: string;
  description: string;
}

/** The facts of an error; all but `code` may be left out. */
export interface ErrorFacts {
  code: Code;
  reason?: string;
  metadata?: Record<string, string>;
  violations?: Violation[];
  requestId?: string;
  retryAfterMs?: number;
}

/** The base of every error that this package throws. */
export class SandgateError extends Error {
  /** The canonical gRPC code, such as "NOT_FOUND". */
  readonly code: Code;
  /**
   * The exact reason, such as "FILE_NOT_FOUND". Empty when the server did not
   * answer, or is not Sandgate.
   */
  readonly reason: string;
  /** The facts behind the message, such as `sandbox_id`. */
  readonly metadata: Readonly<Record<string, string>>;
  /** The refused fields of a malformed request. */
  readonly violations: readonly Violation[];
  /** Finds the call in the server's logs and audit records. May be empty. */
  readonly requestId: string;
  /** Milliseconds after which it may be worth trying again. Undefined: unknown. */
  readonly retryAfterMs: number | undefined;

  constructor(message: string, facts: ErrorFacts, options?: ErrorOptions) {
    super(message, options);
    this.code = facts.code;
    this.reason = facts.reason ?? "";
    this.metadata = facts.metadata ?? {};
    this.violations = facts.violations ?? [];
    this.requestId = facts.requestId ?? "";
    this.retryAfterMs = facts.retryAfterMs;
  }
}

/** No credentials, or none that the server accepts. */
export class AuthenticationError extends SandgateError {}
/** A policy or the template forbids it. */
export class PermissionDeniedError extends SandgateError {}
/** A field is missing or malformed; see `violations`. */
export class InvalidRequestError extends SandgateError {}
/** There is no such sandbox, or its lifetime ended. */
export class SandboxNotFoundError extends SandgateError {}
/** The id exists with another spec. */
export class SandboxExistsError extends SandgateError {}
/** The sandbox lost its disk and processes since the incarnation that was expected. */
export class SandboxReplacedError extends SandgateError {}
/** The sandbox is not in a state in which this can be done. */
export class SandboxNotActiveError extends SandgateError {}
/** The sandbox could not be started. */
export class SandboxStartError extends SandgateError {}
/** There is no such template. */
export class TemplateNotFoundError extends SandgateError {}
/** There is no such command, or its end is no longer kept. */
export class ExecNotFoundError extends SandgateError {}
/** The command is there, but not in a state for this. */
export class ExecStateError extends SandgateError {}
/** The command could not be started. */
export class CommandStartError extends SandgateError {}
/** A file operation failed; `reason` says why. */
export class FileError extends SandgateError {}
/** No program in the sandbox accepts connections on the port. */
export class PortClosedError extends SandgateError {}
/** The server or this sandbox cannot do that. */
export class UnsupportedError extends SandgateError {}
/** A quota or limit is used up. */
export class QuotaExceededError extends SandgateError {}
/**
 * The server, substrate or agent cannot be reached now: a call got no result. The client
 * has retried it for its retry window if that is safe. A call that is not safe to repeat
 * may have had its effect.
 */
export class UnavailableError extends SandgateError {}
/**
 * A stream broke after it had begun, and could not be resumed within the retry window. A
 * command runs on for its disconnect grace: attach to `metadata.exec_id` at
 * `metadata.position`.
 */
export class ConnectionLostError extends SandgateError {}
/**
 * `buildImage` could not run the program, or the build failed. `metadata` then has the
 * `exit_code` and the last lines of the `output`.
 */
export class BuildError extends SandgateError {}
/** The caller cancelled, and `cause` is the reason of its AbortSignal, or closed the client. */
export class CallCancelledError extends SandgateError {}
/** The call's deadline ended. */
export class DeadlineExceededError extends SandgateError {}
/** A fault of Sandgate; `requestId` finds it in its logs. */
export class InternalError extends SandgateError {}

/** The class of an error of this package, by name, whichever copy of the package made it. */
const CLASS = Symbol.for("sandgate.errorClass");

// A minifier may rename a class; `name` is for people and must stay. `instanceof` goes
// by it too: a program may load this package twice, by `import` and by `require`.
for (const [name, of] of Object.entries({
  SandgateError,
  AuthenticationError,
  PermissionDeniedError,
  InvalidRequestError,
  SandboxNotFoundError,
  SandboxExistsError,
  SandboxReplacedError,
  SandboxNotActiveError,
  SandboxStartError,
  TemplateNotFoundError,
  ExecNotFoundError,
  ExecStateError,
  CommandStartError,
  FileError,
  PortClosedError,
  UnsupportedError,
  QuotaExceededError,
  UnavailableError,
  ConnectionLostError,
  BuildError,
  CallCancelledError,
  DeadlineExceededError,
  InternalError,
})) {
  Object.defineProperty(of.prototype, "name", { value: name, configurable: true });
  Object.defineProperty(of.prototype, CLASS, { value: name });
}
Object.defineProperty(SandgateError, Symbol.hasInstance, {
  value(this: { prototype: object }, error: unknown): boolean {
    if (Function.prototype[Symbol.hasInstance].call(this, error)) return true;
    const known = Object.hasOwn(this.prototype, CLASS) ? Reflect.get(this.prototype, CLASS) : undefined;
    const actual = typeof error === "object" && error !== null ? Reflect.get(error, CLASS) : undefined;
    return known !== undefined && actual !== undefined && (known === "SandgateError" || known === actual);
  },
});

/** A class of error. */
export type ErrorClass = new (message: string, facts: ErrorFacts, options?: ErrorOptions) => SandgateError;

/** Which class a reason is; the same table as `clients/errors.json`. */
export const CLASS_BY_REASON: Readonly<Record<string, ErrorClass>> = {
  AGENT_CANNOT_START: SandboxStartError,
  AGENT_MISBEHAVED: InternalError,
  AGENT_UNAVAILABLE: UnavailableError,
  AGENT_VERSION_UNSUPPORTED: UnsupportedError,
  AUTHENTICATION_UNAVAILABLE: UnavailableError,
  CALL_CANCELLED: CallCancelledError,
  CALL_DEADLINE_EXCEEDED: DeadlineExceededError,
  CALL_FORBIDDEN: PermissionDeniedError,
  COMMAND_NOT_EXECUTABLE: CommandStartError,
  COMMAND_NOT_FOUND: CommandStartError,
  CONNECTION_RESET: ConnectionLostError,
  CREDENTIALS_INVALID: AuthenticationError,
  DIRECTORY_NOT_EMPTY: FileError,
  DISK_FULL: FileError,
  EDIT_NOT_UNIQUE: FileError,
  EDIT_TEXT_NOT_FOUND: FileError,
  EXEC_ENDED: ExecStateError,
  EXEC_ID_REUSED: ExecStateError,
  EXEC_NOT_FOUND: ExecNotFoundError,
  FEATURE_UNSUPPORTED: UnsupportedError,
  FILE_ALREADY_EXISTS: FileError,
  FILE_CHECKSUM_MISMATCH: FileError,
  FILE_CROSS_DEVICE: FileError,
  FILE_IO: FileError,
  FILE_IS_DIRECTORY: FileError,
  FILE_NOT_DIRECTORY: FileError,
  FILE_NOT_FOUND: FileError,
  FILE_NOT_REGULAR: FileError,
  FILE_NOT_TEXT: FileError,
  FILE_PERMISSION_DENIED: FileError,
  FILE_READ_ONLY: FileError,
  FILE_TOO_LARGE: FileError,
  INTERNAL: InternalError,
  MESSAGE_TOO_LARGE: InvalidRequestError,
  NO_TERMINAL: ExecStateError,
  PAGE_TOKEN_EXPIRED: InvalidRequestError,
  PAGE_TOKEN_INVALID: InvalidRequestError,
  PATH_INVALID: InvalidRequestError,
  PATTERN_INVALID: InvalidRequestError,
  POLICY_DENIED: PermissionDeniedError,
  PORT_CLOSED: PortClosedError,
  POSITION_INVALID: ExecStateError,
  PROVIDER_UNAVAILABLE: UnavailableError,
  QUOTA_EXCEEDED: QuotaExceededError,
  READER_TOO_SLOW: ConnectionLostError,
  REQUEST_INVALID: InvalidRequestError,
  SANDBOX_EXPIRED: SandboxNotFoundError,
  SANDBOX_NOT_ACTIVE: SandboxNotActiveError,
  SANDBOX_NOT_FOUND: SandboxNotFoundError,
  SANDBOX_REPLACED: SandboxReplacedError,
  SANDBOX_RESOURCES_EXHAUSTED: CommandStartError,
  SANDBOX_SPEC_DIFFERS: SandboxExistsError,
  SANDBOX_START_FAILED: SandboxStartError,
  SANDBOX_START_TIMEOUT: SandboxStartError,
  SERVER_SHUTTING_DOWN: UnavailableError,
  STDIN_CLOSED: ExecStateError,
  STDIN_OFFSET_MISMATCH: ExecStateError,
  TEMPLATE_FORBIDS: PermissionDeniedError,
  TEMPLATE_NOT_FOUND: TemplateNotFoundError,
  TOO_MANY_CONNECTIONS: QuotaExceededError,
  UPLOAD_BUSY: FileError,
  UPLOAD_NOT_FOUND: FileError,
  UPLOAD_OFFSET_MISMATCH: FileError,
  UPLOAD_OUT_OF_ORDER: FileError,
  WORKING_DIRECTORY_INVALID: CommandStartError,
};

/**
 * Which class a code is when no known reason came with it; the same table as
 * `clients/error_codes.json`. A code that is missing here is a plain
 * {@link SandgateError}.
 */
export const CLASS_BY_CODE: Readonly<Partial<Record<Code, ErrorClass>>> = {
  CANCELLED: CallCancelledError,
  DATA_LOSS: InternalError,
  DEADLINE_EXCEEDED: DeadlineExceededError,
  INTERNAL: InternalError,
  INVALID_ARGUMENT: InvalidRequestError,
  OUT_OF_RANGE: InvalidRequestError,
  PERMISSION_DENIED: PermissionDeniedError,
  RESOURCE_EXHAUSTED: QuotaExceededError,
  UNAUTHENTICATED: AuthenticationError,
  UNAVAILABLE: UnavailableError,
  UNIMPLEMENTED: UnsupportedError,
  UNKNOWN: InternalError,
};

/** The codes by number, as gRPC sends them. */
const CODES: readonly (Code | "OK")[] = [
  "OK",
  "CANCELLED",
  "UNKNOWN",
  "INVALID_ARGUMENT",
  "DEADLINE_EXCEEDED",
  "NOT_FOUND",
  "ALREADY_EXISTS",
  "PERMISSION_DENIED",
  "RESOURCE_EXHAUSTED",
  "FAILED_PRECONDITION",
  "ABORTED",
  "OUT_OF_RANGE",
  "UNIMPLEMENTED",
  "INTERNAL",
  "UNAVAILABLE",
  "DATA_LOSS",
  "UNAUTHENTICATED",
];

/** Makes the error for a status that a server, or the connection, ended with. */
export function errorFromStatus(
  codeNumber: number,
  message: string,
  details: StatusDetails,
  requestId: string,
): SandgateError {
  const named = CODES[codeNumber];
  const code = named === undefined || named === "OK" ? "UNKNOWN" : named;
  const facts: ErrorFacts = {
    code,
    reason: details.reason,
    metadata: details.metadata,
    violations: details.violations,
    requestId,
  };
  if (details.retryAfterMs !== undefined) facts.retryAfterMs = details.retryAfterMs;
  return new (classOf(details.reason, code))(withViolations(message, details.violations), facts);
}

/** Codes of the reasons that a single file can fail with; the others are FAILED_PRECONDITION. */
const FILE_CODES: Readonly<Record<string, Code>> = {
  FILE_NOT_FOUND: "NOT_FOUND",
  FILE_PERMISSION_DENIED: "PERMISSION_DENIED",
  POLICY_DENIED: "PERMISSION_DENIED",
  FILE_ALREADY_EXISTS: "ALREADY_EXISTS",
  PATH_INVALID: "INVALID_ARGUMENT",
  REQUEST_INVALID: "INVALID_ARGUMENT",
  FILE_TOO_LARGE: "RESOURCE_EXHAUSTED",
  DISK_FULL: "RESOURCE_EXHAUSTED",
  FILE_CHECKSUM_MISMATCH: "DATA_LOSS",
  UPLOAD_OFFSET_MISMATCH: "OUT_OF_RANGE",
  UPLOAD_BUSY: "ABORTED",
  FILE_IO: "INTERNAL",
  INTERNAL: "INTERNAL",
};

/** Makes the error for one file of several. */
export function errorFromFile(path: string, reason: string, message: string): SandgateError {
  const code = FILE_CODES[reason] ?? "FAILED_PRECONDITION";
  return new (CLASS_BY_REASON[reason] ?? FileError)(message, { code, reason, metadata: { path } });
}

function classOf(reason: string, code: Code): ErrorClass {
  // Of gRPC itself: a message is larger than its limit.
  if (reason === "" && code === "RESOURCE_EXHAUSTED") return InvalidRequestError;
  return CLASS_BY_REASON[reason] ?? CLASS_BY_CODE[code] ?? SandgateError;
}

function withViolations(message: string, violations: readonly Violation[]): string {
  const more = violations.filter((v) => !message.includes(v.description));
  return [message, ...more.map((v) => `${v.field}: ${v.description}`)].join("; ");
}
