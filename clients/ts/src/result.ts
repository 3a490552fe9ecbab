/** A command's output and end, collected. */

import { TextDecoder } from "node:util";
import { type Exited, exitCodeOf, type Output, type ProcessEvent } from "./command.js";

type StreamName = Output["stream"];

/** A command's output and end. */
export class Result {
  /** The command's id. */
  readonly execId: string;
  /** How it ended, whole. */
  readonly exited: Exited;
  /** Bytes that were dropped before they could be read. */
  readonly missedBytes: number;
  readonly #pieces: readonly Piece[];

  /** @internal */
  constructor(execId: string, exited: Exited, pieces: readonly Piece[], missedBytes: number) {
    this.execId = execId;
    this.exited = exited;
    this.missedBytes = missedBytes;
    this.#pieces = pieces;
  }

  /** What the command wrote to standard output, decoded as UTF-8. */
  get stdout(): string {
    return text(this.#of("stdout"));
  }

  /** What the command wrote to standard error, decoded as UTF-8. */
  get stderr(): string {
    return text(this.#of("stderr"));
  }

  /** Both streams in the order in which they were written, as far as it is known. */
  get output(): string {
    return text(this.#pieces);
  }

  /** What the command wrote to standard output, as it was written. */
  get stdoutBytes(): Uint8Array {
    return Buffer.concat(this.#of("stdout").map((piece) => piece.data));
  }

  /** What the command wrote to standard error, as it was written. */
  get stderrBytes(): Uint8Array {
    return Buffer.concat(this.#of("stderr").map((piece) => piece.data));
  }

  /** The exit code as a shell gives it; see {@link exitCodeOf}. */
  get exitCode(): number {
    return exitCodeOf(this.exited);
  }

  /** Why the command ended. */
  get reason(): Exited["reason"] {
    return this.exited.reason;
  }

  /** Name of the signal that ended it, such as "SIGSEGV". Empty: none. */
  get signal(): string {
    return this.exited.signal;
  }

  /** True when its timeout ended it. */
  get timedOut(): boolean {
    return this.exited.reason === "TIMED_OUT";
  }

  /** True when some of the output is missing. */
  get truncated(): boolean {
    return this.exited.stdoutTruncated || this.exited.stderrTruncated || this.missedBytes > 0;
  }

  #of(stream: StreamName): Piece[] {
    return this.#pieces.filter((piece) => piece.stream === stream);
  }
}

/** A piece of output without its decoded text. */
export interface Piece {
  stream: StreamName;
  data: Uint8Array;
}

/** Gathers events until the last one. */
export class Collector {
  readonly #pieces: Piece[] = [];
  #execId = "";
  #missed = 0;
  #exited: Exited | undefined;

  /** Takes the next event. */
  add(event: ProcessEvent): void {
    if (event.type === "started") this.#execId = event.execId;
    if (event.type === "output") this.#pieces.push({ stream: event.stream, data: event.data });
    if (event.type === "gap") this.#missed += event.end - event.start;
    if (event.type === "exited") this.#exited = event;
  }

  /** What was printed so far. */
  get output(): string {
    return text(this.#pieces);
  }

  /** The result; undefined while the command has not ended. */
  get result(): Result | undefined {
    if (this.#exited === undefined) return undefined;
    return new Result(this.#execId, this.#exited, this.#pieces, this.#missed);
  }
}

/** Decodes each stream by itself: a character may be cut by a piece of the other. */
function text(pieces: readonly Piece[]): string {
  const decoders = {
    stdout: new TextDecoder("utf-8", { ignoreBOM: true }),
    stderr: new TextDecoder("utf-8", { ignoreBOM: true }),
  };
  const decoded = pieces.map(({ stream, data }) => decoders[stream].decode(data, { stream: true }));
  return decoded.join("") + decoders.stdout.decode() + decoders.stderr.decode();
}
