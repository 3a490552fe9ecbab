/** Follows a command: one ordered stream of events, resumed when a connection breaks. */

import { TextDecoder } from "node:util";
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { CallOptions } from "./call.js";
import { exitedEvent, type ProcessEvent, scopeValue } from "./command.js";
import { ConnectionLostError, InternalError, SandgateError } from "./errors.js";
import type {
  AttachRequestSchema,
  AttachResponse,
  ExecuteRequestSchema,
  ExecuteResponse,
} from "./gen/sandbox/v1/sandbox_process_pb.js";
import { Stream } from "./gen/sandbox/v1/sandbox_process_pb.js";
import { SandboxService } from "./gen/sandbox/v1/sandbox_service_pb.js";
import { isBreak, isRenewable, Retry } from "./retry.js";
import { cancelledBy, onAbort, sleep } from "./sleep.js";
import type { Transport } from "./transport.js";
import { date, defined } from "./values.js";

/** How long a kill on the caller's behalf is tried. */
const KILL_WINDOW_MS = 10_000;
/** How long one attempt of it may take: the connection may be dead without an error. */
const KILL_ATTEMPT_MS = 2_000;
const KILL_WAIT_MS = 50;

/** What is followed: a new command, or one that is there. */
export type Followed =
  | { execute: MessageInitShape<typeof ExecuteRequestSchema> & { execId: string } }
  | { attach: MessageInitShape<typeof AttachRequestSchema> & { execId: string } };

/**
 * Yields a command's events: started, output and gaps, exited. When the
 * connection breaks it attaches again at the first byte that is missing, for the
 * retry window; the caller sees a pause and nothing else.
 *
 * A command that this call started and did not detach is killed, with all its
 * descendants, when the signal aborts or the iteration is left early.
 *
 * @throws SandgateError as the call failed; ConnectionLostError when the
 * connection did not come back; CallCancelledError when the signal aborted.
 */
export async function* follow(
  transport: Transport,
  what: Followed,
  { signal, metadata = {} }: Omit<CallOptions, "timeoutMs">,
): AsyncGenerator<ProcessEvent, void, undefined> {
  const follower = new Follower(transport, what, { metadata, ...defined({ signal }) });
  // Sent before the call is cancelled, and waited for before the caller goes on.
  const unlisten = onAbort(signal, () => void follower.kill());
  try {
    if (signal?.aborted) throw cancelledBy(signal);
    for (;;) {
      try {
        yield* follower.events();
        return;
      } catch (error) {
        if (signal?.aborted) throw cancelledBy(signal);
        await transport.sleep(follower.broken(error), signal);
      }
    }
  } finally {
    unlisten();
    await follower.kill();
  }
}

/** Where one command's stream stands. */
class Follower {
  readonly #transport: Transport;
  readonly #what: Followed;
  readonly #call: CallOptions;
  #incarnation: string;
  #position: number;
  #started = false;
  #sent = false;
  #done = false;
  readonly #retry: Retry;
  #killing: Promise<void> | undefined;
  readonly #text = { stdout: decoder(), stderr: decoder() };

  constructor(transport: Transport, what: Followed, call: CallOptions) {
    this.#transport = transport;
    this.#what = what;
    this.#call = call;
    this.#retry = new Retry(() => transport.retryWindow());
    const request = "execute" in what ? what.execute : what.attach;
    this.#incarnation = request.expectedIncarnation ?? "";
    this.#position = "attach" in what ? Number(what.attach.position ?? 0n) : 0;
  }

  /** Makes one call and yields what is new in it; throws when it ends early. */
  async *events(): AsyncGenerator<ProcessEvent, void, undefined> {
    let first = true;
    for await (const message of this.#open()) {
      const { event } = message;
      if (event.case === undefined) continue;
      if (first !== (event.case === "started")) throw protocolError(`${event.case} came in the wrong place`);
      first = false;
      this.#retry.progress();
      yield* this.#take(event);
      if (this.#done) return;
    }
    throw new ConnectionLostError("the stream ended early", { code: "UNAVAILABLE" });
  }

  /**
   * Takes what ended a call and returns how long to wait before the next.
   *
   * @throws the error itself when going on makes no sense, ConnectionLostError
   * when it was tried for too long.
   */
  broken(error: unknown): number {
    if (error instanceof SandgateError && error.reason === "READER_TOO_SLOW") return 0;
    if (!isBreak(error)) {
      // What the server refuses does not run, or not any more.
      if (error instanceof SandgateError && error.reason !== "") this.#done = true;
      throw error;
    }
    // A server that never answered is more likely a wrong address than a restart.
    if (!this.#transport.reached) {
      this.#done = true;
      throw error;
    }
    const wait = this.#retry.next(error);
    if (wait !== undefined) return wait;
    // Another caller may attach to it: its grace period decides, not this client.
    this.#done = true;
    if (!this.#started || isRenewable(error)) throw error;
    throw new ConnectionLostError(
      `the connection was lost and did not come back; the command ${this.#execId} may still run, ` +
        `its output goes on at position ${this.#position}: ${error.message}`,
      { code: "UNAVAILABLE", metadata: { exec_id: this.#execId, position: String(this.#position) } },
    );
  }

  /**
   * Kills the command with all its descendants, if it is this caller's and may
   * run. Never rejects; a second call waits for the first.
   */
  kill(): Promise<void> {
    this.#killing ??= this.#kill();
    return this.#killing;
  }

  async #kill(): Promise<void> {
    if (!("execute" in this.#what) || this.#what.execute.detach || this.#done || !this.#sent) return;
    const { sandboxId = "", execId } = this.#what.execute;
    const end = performance.now() + KILL_WINDOW_MS;
    while (performance.now() < end) {
      try {
        await this.#transport.unary(
          SandboxService.method.signalProcess,
          { sandboxId, execId, signal: "SIGKILL", scope: scopeValue("TREE") },
          { timeoutMs: KILL_ATTEMPT_MS, ...defined({ metadata: this.#call.metadata }) },
        );
        return;
      } catch (error) {
        if (!(error instanceof SandgateError)) return;
        // The request to start it may still be under way, the connection may have
        // broken just now. To kill twice does no harm.
        const early = error.reason === "EXEC_NOT_FOUND" && !this.#started;
        const slow = error.code === "DEADLINE_EXCEEDED";
        if (!early && !slow && !isBreak(error)) return;
        await sleep(KILL_WAIT_MS);
      }
    }
  }

  get #execId(): string {
    return "execute" in this.#what ? this.#what.execute.execId : this.#what.attach.execId;
  }

  #open(): AsyncIterable<ExecuteResponse | AttachResponse> {
    const { attach, execute } = SandboxService.method;
    if ("execute" in this.#what && !this.#started) {
      return this.#transport.serverStream(execute, this.#what.execute, this.#call, () => {
        this.#sent = true;
      });
    }
    const {
      sandboxId = "",
      execId,
      followUntil,
    } = "execute" in this.#what ? this.#what.execute : this.#what.attach;
    return this.#transport.serverStream(
      attach,
      {
        sandboxId,
        execId,
        expectedIncarnation: this.#incarnation,
        position: BigInt(this.#position),
        ...defined({ followUntil }),
      },
      this.#call,
    );
  }

  *#take(event: (ExecuteResponse | AttachResponse)["event"]): Generator<ProcessEvent> {
    switch (event.case) {
      case "started": {
        const { execId, incarnation, pid, startTime, position, joined } = event.value;
        const begins = Number(position);
        if (!this.#started) {
          this.#started = true;
          this.#incarnation = incarnation;
          yield defined({
            type: "started" as const,
            execId,
            incarnation,
            pid,
            startTime: date(startTime),
            joined,
          }) as ProcessEvent;
        }
        if (begins > this.#position) yield this.#skipTo(begins);
        return;
      }
      case "output": {
        const known = this.#position - Number(event.value.position);
        if (known < 0) {
          throw protocolError(`output at ${event.value.position} follows ${this.#position} without a gap`);
        }
        // A replay may begin before what is known already.
        const data = event.value.data.subarray(known);
        if (data.length === 0) return;
        const stream = event.value.stream === Stream.STDERR ? "stderr" : "stdout";
        const position = this.#position;
        this.#position += data.length;
        const text = this.#text[stream].decode(data, { stream: true });
        yield { type: "output", stream, position, data, text };
        return;
      }
      case "gap": {
        const end = Number(event.value.end);
        if (end > this.#position) yield this.#skipTo(end);
        return;
      }
      case "exited":
        this.#done = true;
        yield* this.#rest();
        yield exitedEvent(event.value);
    }
  }

  #skipTo(end: number): ProcessEvent {
    const start = this.#position;
    this.#position = end;
    this.#text.stdout = decoder();
    this.#text.stderr = decoder();
    return { type: "gap", start, end };
  }

  /** A character that was cut by the end of the output. */
  *#rest(): Generator<ProcessEvent> {
    for (const stream of ["stdout", "stderr"] as const) {
      const text = this.#text[stream].decode();
      if (text !== "") {
        yield { type: "output", stream, position: this.#position, data: new Uint8Array(0), text };
      }
    }
  }
}

function protocolError(what: string): InternalError {
  return new InternalError(`the server broke the protocol: ${what}`, { code: "DATA_LOSS" });
}

function decoder(): TextDecoder {
  return new TextDecoder("utf-8", { ignoreBOM: true });
}
