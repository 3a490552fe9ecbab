/** Commands: their options, events and results. */

import type { MessageInitShape } from "@bufbuild/protobuf";
import {
  type ExecuteRequestSchema,
  type Exited as ExitedMessage,
  ExitReason as ExitReasonValue,
  FollowUntil,
  MemoryScope,
  OnFull,
  OutputMode,
  type Process as ProcessMessage,
  SignalScope as SignalScopeValue,
} from "./gen/sandbox/v1/sandbox_process_pb.js";
import { count } from "./numbers.js";
import { type AccessPolicy, date, defined, duration, milliseconds } from "./values.js";

/** How long a command keeps running after its caller has disconnected, in milliseconds. */
export const DEFAULT_GRACE_MS = 60_000;

/** Why a command ended. */
export type ExitReason =
  | "UNSPECIFIED"
  | "EXITED"
  | "SIGNALED"
  | "TIMED_OUT"
  | "OUT_OF_MEMORY"
  | "KILLED"
  | "SANDBOX_STOPPED"
  | "LOST";

/** Who gets a signal: the started process, its group, or every descendant. */
export type SignalScope = "LEADER" | "GROUP" | "TREE";

/** A shell script, or a program and its arguments. */
export type Command = string | readonly string[];

/** The size of a terminal, in characters. */
export interface TerminalSize {
  rows: number;
  columns: number;
}

/** What a command can be given beside itself. */
export interface ExecuteOptions {
  /** Absolute path to start in. Default: the sandbox's working directory. */
  cwd?: string;
  /** Added to the sandbox's environment, for this command only. Never logged. */
  env?: Record<string, string>;
  /** Standard input, given at once. Default: /dev/null, unless `stdinOpen`. */
  stdin?: Uint8Array | string;
  /** True: standard input stays open for `writeStdin`. Default: false. */
  stdinOpen?: boolean;
  /**
   * Milliseconds of wall time; then every descendant is killed and the reason is
   * TIMED_OUT. Default: the server's. 0: none, where the server allows that.
   */
  timeoutMs?: number;
  /**
   * Output beyond this many bytes, of both streams together, is counted and
   * dropped. Default: the server's limit, if any.
   */
  maxOutputBytes?: number;
  /** True: one pipe for both streams; their order is exact, all is stdout. Default: false. */
  merged?: boolean;
  /** Gives the command a terminal of this size. */
  terminal?: TerminalSize;
  /** The shell of a command given as a string: an absolute path. Default: "/bin/sh". */
  shellPath?: string;
  /** The command's id within the sandbox. Default: made up. */
  execId?: string;
  /** True: the command keeps running without a caller. Default: false. */
  detach?: boolean;
  /** True: when the kept output is full, the oldest is dropped. Default: the command waits. */
  evict?: boolean;
  /**
   * True: follow until no process has the output open. Default: until the
   * started process ended.
   */
  untilStreamsEnd?: boolean;
  /**
   * How long the command keeps running after its caller has disconnected, in
   * milliseconds. Default: 60 000.
   */
  disconnectGraceMs?: number;
  /** Narrows the sandbox's access policy for this command. */
  access?: AccessPolicy;
  /** Aborting it kills the command and all its descendants. */
  signal?: AbortSignal;
  /** Metadata of this call, such as `x-request-id`; goes before the client's own. */
  metadata?: Readonly<Record<string, string>>;
}

/** How a command is followed from a position. */
export interface AttachOptions {
  /** Bytes of both streams that the caller has. Default: 0, the first byte that is kept. */
  position?: number;
  /** True: follow until no process has the output open. Default: false. */
  untilStreamsEnd?: boolean;
  /** Ends the following; the command runs on. */
  signal?: AbortSignal;
  /** Metadata of this call; goes before the client's own. */
  metadata?: Readonly<Record<string, string>>;
}

/** The command runs. Always the first event. */
export interface Started {
  type: "started";
  execId: string;
  incarnation: string;
  /** The started process's id inside the sandbox. */
  pid: number;
  /** By the sandbox's clock. */
  startTime?: Date;
  /** True when the command was there already and this call joined it. */
  joined: boolean;
}

/** A piece of output. */
export interface Output {
  type: "output";
  stream: "stdout" | "stderr";
  /** Bytes of both streams before this piece: the cursor to resume from. */
  position: number;
  data: Uint8Array;
  /**
   * The piece as text. A character that is cut by the piece's end comes with the
   * next one; the bytes of a broken one become U+FFFD.
   */
  text: string;
}

/** Output was dropped before it could be read. */
export interface Gap {
  type: "gap";
  /** First missing position. */
  start: number;
  /** First position that follows. */
  end: number;
}

/** How the command ended. Always the last event. */
export interface Exited {
  type: "exited";
  reason: ExitReason;
  /** Set only when `reason` is EXITED; see {@link exitCodeOf} for a shell's view. */
  exitCode?: number;
  /** Name of the signal that ended it, such as "SIGSEGV". May be empty. */
  signal: string;
  /** True when `reason` was concluded from signs, not known for certain. */
  inferred: boolean;
  endTime?: Date;
  wallTimeMs: number;
  userTimeMs: number;
  systemTimeMs: number;
  /** 0: unknown. */
  peakMemoryBytes: number;
  memoryScope: "UNSPECIFIED" | "COMMAND" | "LARGEST_PROCESS" | "SANDBOX";
  /** Bytes written to standard output, dropped ones included. */
  stdoutBytes: number;
  stderrBytes: number;
  /** True when the stream was cut by `maxOutputBytes`. */
  stdoutTruncated: boolean;
  stderrTruncated: boolean;
  /** The position after the last byte of output so far. */
  position: number;
  /** True if a background child still has the output open. */
  outputOpen: boolean;
  /** One line for people, where there is more to say. */
  message: string;
}

/** One event of a command. */
export type ProcessEvent = Started | Output | Gap | Exited;

/** One command of a sandbox, as `processes` lists it. */
export interface ProcessInfo {
  execId: string;
  /** 0 once it ended. */
  pid: number;
  /** The first 256 bytes of the script, or the argv joined by spaces. */
  command: string;
  startTime?: Date;
  /** Set once the started process ended. */
  exited?: Exited;
  detached: boolean;
  /** Callers that follow its output now. */
  attached: number;
  /** Processes of its tree that are alive, as far as is known. */
  liveProcesses: number;
  /** Position after the last byte of output so far. */
  position: number;
  /** Oldest position that can still be read. */
  firstPosition: number;
  terminal: boolean;
}

const UNKNOWN_CODE = 125;

/**
 * Signals by their numbers on Linux, amd64 and arm64: a sandbox is always Linux,
 * whatever this client runs on.
 */
const LINUX_SIGNALS: Readonly<Record<string, number>> = Object.fromEntries(
  (
    "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT " +
    "CHLD CONT STOP TSTP TTIN TTOU URG XCPU XFSZ VTALRM PROF WINCH IO PWR SYS"
  )
    .split(" ")
    .map((name, index) => [`SIG${name}`, index + 1]),
);

/**
 * Turns a command's end into an exit code, as a shell and the timeout program do:
 * its own code, 124 when its timeout ended, 128 + n after signal n (137 when
 * memory ran out), and 125 when no code is known because the sandbox stopped or
 * its agent died.
 */
export function exitCodeOf(exited: Exited): number {
  switch (exited.reason) {
    case "EXITED":
      return exited.exitCode ?? UNKNOWN_CODE;
    case "TIMED_OUT":
      return 124;
    case "OUT_OF_MEMORY":
      return 137;
    case "SIGNALED":
    case "KILLED":
      return 128 + (LINUX_SIGNALS[exited.signal] ?? 9);
    default:
      return UNKNOWN_CODE;
  }
}

/** Returns a unique id. */
export function newId(prefix: string): string {
  return `${prefix}-${crypto.randomUUID().replaceAll("-", "")}`;
}

/** The wire form of a command. */
export function executeRequest(
  sandboxId: string,
  incarnation: string,
  command: Command,
  options: ExecuteOptions,
): MessageInitShape<typeof ExecuteRequestSchema> & { execId: string } {
  const detach = options.detach ?? false;
  const request: MessageInitShape<typeof ExecuteRequestSchema> & { execId: string } = {
    sandboxId,
    expectedIncarnation: incarnation,
    execId: options.execId ?? newId("ex"),
    command:
      typeof command === "string"
        ? { case: "shell", value: command }
        : { case: "argv", value: { args: [...command] } },
    shellPath: options.shellPath ?? "",
    cwd: options.cwd ?? "",
    env: options.env ?? {},
    stdin: bytes(options.stdin ?? ""),
    stdinOpen: options.stdinOpen ?? false,
    outputMode: options.merged ? OutputMode.MERGED : OutputMode.SEPARATE,
    onFull: options.evict ? OnFull.EVICT : OnFull.BLOCK,
    detach,
    followUntil: followUntil(options.untilStreamsEnd),
  };
  const timeout = duration("timeoutMs", options.timeoutMs);
  if (timeout !== undefined) request.timeout = timeout;
  if (options.maxOutputBytes !== undefined)
    request.maxOutputBytes = count("maxOutputBytes", options.maxOutputBytes);
  if (options.terminal !== undefined) request.terminal = options.terminal;
  if (options.access !== undefined) request.access = options.access;
  const grace = duration(
    "disconnectGraceMs",
    detach ? undefined : (options.disconnectGraceMs ?? DEFAULT_GRACE_MS),
  );
  if (grace !== undefined) request.disconnectGrace = grace;
  return request;
}

/** The wire form of when a stream ends. */
export function followUntil(streamsEnd: boolean | undefined): FollowUntil {
  return streamsEnd ? FollowUntil.STREAMS_END : FollowUntil.LEADER_EXIT;
}

/** The wire form of a scope. */
export function scopeValue(scope: SignalScope): SignalScopeValue {
  return SignalScopeValue[scope];
}

/** Text as UTF-8; bytes as they are. */
export function bytes(content: Uint8Array | string): Uint8Array {
  return typeof content === "string" ? new TextEncoder().encode(content) : content;
}

/** The plain form of a command's end. */
export function exitedEvent(message: ExitedMessage): Exited {
  return defined({
    type: "exited",
    reason: (ExitReasonValue[message.reason] ?? "UNSPECIFIED") as ExitReason,
    exitCode: message.exitCode,
    signal: message.signal,
    inferred: message.inferred,
    endTime: date(message.endTime),
    wallTimeMs: milliseconds(message.wallTime) ?? 0,
    userTimeMs: milliseconds(message.userTime) ?? 0,
    systemTimeMs: milliseconds(message.systemTime) ?? 0,
    peakMemoryBytes: Number(message.peakMemoryBytes),
    memoryScope: (MemoryScope[message.memoryScope] ?? "UNSPECIFIED") as Exited["memoryScope"],
    stdoutBytes: Number(message.stdoutBytes),
    stderrBytes: Number(message.stderrBytes),
    stdoutTruncated: message.stdoutTruncated,
    stderrTruncated: message.stderrTruncated,
    position: Number(message.position),
    outputOpen: message.outputOpen,
    message: message.message,
  }) as Exited;
}

/** The plain form of a listed command. */
export function processInfo(message: ProcessMessage): ProcessInfo {
  return defined({
    execId: message.execId,
    pid: message.pid,
    command: message.command,
    startTime: date(message.startTime),
    exited: message.exited && exitedEvent(message.exited),
    detached: message.detached,
    attached: message.attached,
    liveProcesses: message.liveProcesses,
    position: Number(message.position),
    firstPosition: Number(message.firstPosition),
    terminal: message.terminal,
  }) as ProcessInfo;
}
