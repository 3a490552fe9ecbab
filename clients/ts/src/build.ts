/** Building images from Dockerfiles, by the program `sandgate`. */

import { spawn } from "node:child_process";
import { BuildError, InvalidRequestError, type SandgateError } from "./errors.js";
import { milliseconds } from "./numbers.js";
import { cancelledBy, deadlineError, onAbort } from "./sleep.js";

/** How long the program has to end a build that is no longer wanted. */
const STOP_MS = 10_000;
/** How many lines of output an error has. */
const TAIL_LINES = 20;
const INSTALL_PAGE = "https://github.com/sandgate/sandgate/blob/main/docs/install.md";

/** What is left out is the program's choice. */
export interface BuildOptions {
  /** Its path, which must be in the context. Default: `Dockerfile` there. */
  dockerfile?: string;
  /** Stage to build. Default: the last one. */
  target?: string;
  /**
   * Values of ARG instructions. They are no place for secrets: the image and the command
   * line have them.
   */
  buildArgs?: Readonly<Record<string, string>>;
  /** Platform of the image, such as "linux/arm64"; needs a buildkitd. */
  platform?: string;
  /** Write the image to an archive that a server with the provider local on this machine reads. */
  save?: boolean;
  /** Directory for the archive, in place of the program's own; implies `save`. */
  saveDir?: string;
  /**
   * Push the image under this name, for every provider. Without a tag, the tag is the hash
   * of what was built. An image is either saved or pushed.
   */
  push?: string;
  /** Another name for the image in the Docker daemon. */
  tag?: string;
  /** Ask the registries for newer images of the FROM instructions. */
  pull?: boolean;
  /** Run all instructions again. */
  noCache?: boolean;
  /** Network of RUN instructions, such as "none" or "host". */
  network?: string;
  /** Address of the Docker daemon. Default: `DOCKER_HOST`. */
  dockerHost?: string;
  /** Address of a buildkitd that builds instead. Default: `BUILDKIT_HOST`. */
  buildkitHost?: string;
  /** The program to run. Default: `sandgate` in PATH. */
  program?: string;
  /**
   * Called with each line of the build's output. Default: it goes to the standard error of
   * this process.
   */
  onOutput?: (line: string) => void;
  /** Ends the program. The promise rejects with CallCancelledError. */
  signal?: AbortSignal;
  /** Milliseconds after which the program is ended. Default: no limit. */
  timeoutMs?: number;
}

/**
 * Builds an image from a Dockerfile and returns its name, for `image` of `create`. What was
 * built before is not built again. It runs `sandgate build`, which needs a Docker daemon or
 * a buildkitd, and no Sandgate server.
 *
 * A program that cannot be run and a build that fails are {@link BuildError}. `metadata` then
 * has the `exit_code` and the last lines of the `output`.
 *
 * @param context Directory whose files the Dockerfile can copy.
 */
export async function buildImage(context = ".", options: BuildOptions = {}): Promise<string> {
  const args = argumentsOf(context, options);
  const { program = "sandgate", onOutput = toStderr, signal, timeoutMs } = options;
  const timeout = timeoutMs === undefined ? undefined : milliseconds("timeoutMs", timeoutMs);
  if (signal?.aborted) throw cancelledBy(signal);
  const child = spawn(program, args, { stdio: ["ignore", "pipe", "pipe"], windowsHide: true });
  const tail: string[] = [];
  return new Promise<string>((resolve, reject) => {
    /** Why the program was ended. */
    let ended: { cause: unknown } | undefined;
    let killing: NodeJS.Timeout | undefined;
    const stop = (cause: unknown) => {
      if (ended !== undefined) return;
      ended = { cause };
      child.kill("SIGTERM");
      killing = setTimeout(() => child.kill("SIGKILL"), STOP_MS);
    };
    const unlisten = onAbort(signal, () => stop(cancelledBy(signal as AbortSignal)));
    const expiry =
      timeout === undefined ? undefined : setTimeout(() => stop(deadlineError(timeoutMs)), timeout);
    const settled = () => {
      unlisten();
      clearTimeout(expiry);
      clearTimeout(killing);
    };

    const report = (line: string) => {
      tail.push(line);
      if (tail.length > TAIL_LINES) tail.shift();
      if (ended !== undefined) return;
      try {
        onOutput(line);
      } catch (error) {
        stop(error);
      }
    };
    let open = "";
    child.stderr.setEncoding("utf8").on("data", (text: string) => {
      const lines = (open + text).split("\n");
      open = lines.pop() ?? "";
      lines.forEach(report);
    });
    let printed = "";
    child.stdout.setEncoding("utf8").on("data", (text: string) => {
      printed += text;
    });
    child.once("error", (error: NodeJS.ErrnoException) => {
      if (child.pid !== undefined) return; // a signal that could not be sent
      settled();
      reject(cannotRun(program, error));
    });
    child.once("close", (code) => {
      if (open !== "") report(open);
      settled();
      if (ended !== undefined) return reject(ended.cause);
      if (code !== 0) return reject(failure(program, code, tail));
      const name = printed.trim();
      if (name !== "" && !name.includes("\n")) return resolve(name);
      reject(
        new BuildError(`${program} build has printed no name of an image: is it the program of Sandgate?`, {
          code: "UNKNOWN",
        }),
      );
    });
  });
}

function toStderr(line: string): void {
  process.stderr.write(`${line}\n`);
}

function argumentsOf(context: string, options: BuildOptions): string[] {
  const { save = false, saveDir = "", push = "" } = options;
  if ((save || saveDir !== "") && push !== "") {
    throw new InvalidRequestError(
      "an image is either saved or pushed: build it twice, which costs nothing the second time",
      { code: "INVALID_ARGUMENT" },
    );
  }
  const text = (flag: string, value = "") => (value === "" ? [] : [`--${flag}=${value}`]);
  const buildArgs = Object.entries(options.buildArgs ?? {}).sort(([a], [b]) => (a < b ? -1 : 1));
  return [
    "build",
    ...text("file", options.dockerfile),
    ...text("target", options.target),
    ...buildArgs.flatMap(([name, value]) => text("build-arg", `${name}=${value}`)),
    ...text("platform", options.platform),
    ...(save && saveDir === "" ? ["--save"] : []),
    ...text("save", saveDir),
    ...text("push", push),
    ...text("tag", options.tag),
    ...(options.pull ? ["--pull"] : []),
    ...(options.noCache ? ["--no-cache"] : []),
    ...text("network", options.network),
    ...text("docker-host", options.dockerHost),
    ...text("buildkit-host", options.buildkitHost),
    "--",
    context === "" ? "." : context,
  ];
}

function cannotRun(program: string, error: NodeJS.ErrnoException): SandgateError {
  return new BuildError(
    `cannot run "${program}": ${error.message}; install the program (${INSTALL_PAGE}), or set "program" to its path`,
    { code: "NOT_FOUND" },
    { cause: error },
  );
}

function failure(program: string, code: number | null, tail: readonly string[]): SandgateError {
  const how = code === null ? "was killed" : `failed with exit code ${code}`;
  const last = tail.at(-1);
  const output = tail.join("\n");
  return new BuildError(`${program} build ${how}${last === undefined ? "" : `: ${last}`}`, {
    code: "UNKNOWN",
    metadata: code === null ? { output } : { output, exit_code: String(code) },
  });
}
