/** What a backend can be given. */

import type { Client, CreateOptions } from "../client.js";
import type { ExecuteOptions, Output } from "../command.js";
import type { ClientOptions } from "../options.js";

/** Default of {@link BackendOptions.commandTimeoutMs}: half an hour, in milliseconds. */
export const DEFAULT_COMMAND_TIMEOUT_MS = 1_800_000;

/** Default of {@link BackendOptions.maxOutputSize}: 1 MiB, in bytes. */
export const DEFAULT_MAX_OUTPUT_SIZE = 1 << 20;

/** How a backend behaves. */
export interface BackendOptions {
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
   * True: `close` deletes the sandbox. Default: true when this object made it,
   * false when it was there already.
   */
  deleteOnClose?: boolean;
}

/** The sandbox to make, and how the backend behaves. */
export interface SandgateSandboxOptions extends BackendOptions, CreateOptions {
  /**
   * Files to write before the first command, by path; a relative path is one below
   * the working directory.
   */
  initialFiles?: Record<string, string | Uint8Array>;
}

/** A piece of a command's output. */
export interface CommandOutput extends Pick<Output, "data" | "position"> {
  /** The command as it was given. */
  command: string;
}

/** What one call of `execute` can be given; the agent's own tool gives nothing. */
export interface CommandOptions extends Pick<ExecuteOptions, "cwd" | "env" | "signal"> {
  /** Instead of {@link BackendOptions.commandTimeoutMs}. */
  timeoutMs?: number;
}
