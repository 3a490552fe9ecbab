/** What a backend can be given. */

import type { Client, CreateOptions } from "../client.js";
import type { ExecuteOptions, Output } from "../command.js";
import type { ClientOptions } from "../options.js";

/** Default of {@link BackendOptions.commandTimeoutMs}: half an hour, in milliseconds. */
export const DEFAULT_COMMAND_TIMEOUT_MS = 1_800_000;

/** Default of {@link BackendOptions.maxOutputSize}: 1 MiB, in bytes. */
export const DEFAULT_MAX_OUTPUT_SIZE = 1 << 20;

/** The operations that {@link BackendOptions.auditLog} receives, one per method. */
export type AuditOperation =
  | "execute"
  | "ls"
  | "read"
  | "write"
  | "edit"
  | "delete"
  | "grep"
  | "glob"
  | "upload"
  | "download";

/**
 * What the tools may touch, by short names. The server enforces it for every file
 * call. Where the sandbox's kernel has Landlock, the write prefixes bind commands too;
 * elsewhere `isolation.notEnforced` of the sandbox's info lists that.
 */
export interface PolicyOptions {
  /**
   * Every path of a file tool lies beneath this directory; empty: no such root.
   * Default: `SANDGATE_ROOT_DIR`, if `access` is not given either; with
   * `virtualMode`, "/workspace".
   */
  rootDir?: string;
  /**
   * True: paths are relative to `rootDir`, so "/a" is rootDir/a; "~" and ".." are
   * refused. Default: false.
   */
  virtualMode?: boolean;
  /**
   * Only paths beneath one of these may be written: paths of the sandbox, also with
   * `virtualMode`. Default: all that are not denied.
   */
  allowPrefixes?: string[];
  /**
   * Paths beneath one of these may not be written; they win over allowed ones. With
   * `virtualMode` neither as paths of the sandbox nor as virtual ones.
   */
  denyPrefixes?: string[];
  /** Commands that contain one of these texts are refused; a guardrail, not a boundary. */
  denyCommands?: string[];
}

/** How a backend behaves. */
export interface BackendOptions extends PolicyOptions {
  /** The connection to use; it is left open. Default: one of its own. */
  client?: Client;
  /** How its own connection is made. Default: from the environment. */
  connection?: ClientOptions;
  /**
   * Milliseconds after which a command is killed with all its descendants; the
   * result has exit code 124 and what was printed until then. 0: never, where the
   * server allows that. Default: 1 800 000.
   */
  commandTimeoutMs?: number;
  /** The same in seconds; `commandTimeoutMs` goes before it. */
  commandTimeout?: number;
  /** Milliseconds that making the sandbox may take. Default: the server's. */
  startupTimeoutMs?: number;
  /**
   * Bytes of output that a command's result holds. What is printed beyond is
   * dropped, the command runs on, and `truncated` is true. Default: 1 MiB.
   */
  maxOutputSize?: number;
  /**
   * Gets each piece of a command's output as it comes. It must not throw; what it
   * throws is reported as a process warning.
   */
  onOutput?: (text: string, output: CommandOutput) => void;
  /**
   * Called after every operation: what, on which path or command, with sizes and the
   * `error`, null if there was none; never contents. Of a command also the `exitCode`,
   * null if there is none; one that was refused, timed out or lost has an `error`. The
   * server keeps its own record, whatever happens here.
   */
  auditLog?: (operation: AuditOperation, target: string, metadata: Record<string, unknown>) => void;
}

/** Lifetimes in seconds, as deepagents' own providers have them; they go before those in milliseconds. */
export interface LifetimeSeconds {
  /** Lifetime from creation, in seconds; 0: none. Default: the server's. */
  ttlSeconds?: number;
  /** Lifetime without activity, in seconds; 0: none. Default: the server's. */
  ttlIdleSeconds?: number;
}

/** The sandbox to make, and how the backend behaves. */
export interface SandgateSandboxOptions extends BackendOptions, CreateOptions, LifetimeSeconds {
  /** Another name of `id`. */
  sandboxId?: string;
  /**
   * Files to write before the first command, by path; a relative path is one below
   * the working directory.
   */
  initialFiles?: Record<string, string | Uint8Array>;
  /**
   * True: the first operation makes the sandbox, or takes the one of this id; no
   * `start` is needed, and after `stop` the next operation starts again. False:
   * every `start` makes a sandbox with an id of its own. Default: `start` makes it
   * once, and other methods reject before.
   */
  reuseSandbox?: boolean;
  /**
   * True: `close` and `stop` delete the sandbox. Default: true when this object
   * made it, false when it was there already.
   */
  deleteOnClose?: boolean;
  /** True: `close` and `stop` leave the sandbox, for its lifetime to end it. Default: false. */
  skipCleanup?: boolean;
}

/** A piece of a command's output. */
export interface CommandOutput extends Pick<Output, "data" | "position"> {
  /** The command as it was given. */
  command: string;
}

/** What one call of `execute` can be given; the agent's own tool gives nothing. */
export interface CommandOptions extends Pick<ExecuteOptions, "cwd" | "env" | "signal" | "stdin"> {
  /** Instead of {@link BackendOptions.commandTimeoutMs}. */
  timeoutMs?: number;
}
