/** Connections to ports of a sandbox, as Node's streams. */

import { Duplex } from "node:stream";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { type BidiCall, type CallOptions, type CallWithDeadline, withDeadline } from "./call.js";
import { InternalError, type SandgateError, UnavailableError } from "./errors.js";
import type { ForwardRequestSchema, ForwardResponse } from "./gen/sandbox/v1/sandbox_forward_pb.js";
import { SandboxService } from "./gen/sandbox/v1/sandbox_service_pb.js";
import { isBreak, Retry } from "./retry.js";
import { cancelledBy, deadlineError, onAbort } from "./sleep.js";
import type { Target } from "./transfer.js";
import type { Transport } from "./transport.js";

const CHUNK_BYTES = 256 << 10;
/** How long a connection waits for the program's end after both directions of the stream ended. */
const LINGER_MS = 30_000;

/** How a connection to a port is opened. `signal` and `timeoutMs` bound the opening alone. */
export interface ConnectOptions extends CallOptions {
  /** "localhost", or a loopback address of the sandbox. Default: "localhost". */
  host?: string;
}

type Call = BidiCall<MessageInitShape<typeof ForwardRequestSchema>>;

/**
 * A connection to a port of a sandbox: a Duplex with half-close, and the methods of
 * `net.Socket` that `http.Agent`, `undici` and `ws` call.
 *
 * `end()` ends one direction; the other one stays open until the program ends it.
 * `destroy()` resets the program's connection. A broken connection emits `error` with
 * a {@link SandgateError}, never a clean `end`.
 */
export class PortSocket extends Duplex {
  #call: Call;
  /** True once the call has ended. */
  #ended = false;
  /** True once the program has ended its direction. */
  #eof = false;
  #linger: NodeJS.Timeout | undefined;
  #timeout: NodeJS.Timeout | undefined;
  #timeoutMs = 0;

  /** @internal */
  constructor(call: Call) {
    super({ allowHalfOpen: true, writableHighWaterMark: CHUNK_BYTES, readableHighWaterMark: CHUNK_BYTES });
    this.#call = call;
  }

  /** @internal Takes a message of the open call. */
  receive({ payload }: ForwardResponse): void {
    this.#active();
    if (payload.case === "data") {
      if (!this.push(payload.value)) this.#call.pause();
    } else if (payload.case === "eof") {
      this.#eof = true;
      this.push(null);
      // What follows is the end of the call.
      this.#call.resume();
    } else if (payload.case !== undefined) {
      this.destroy(protocolError(payload.case));
    }
  }

  /** @internal Takes the end of the call. */
  finish(error: SandgateError | undefined): void {
    this.#ended = true;
    clearTimeout(this.#linger);
    if (error !== undefined) this.destroy(error);
    else if (!this.#eof) this.destroy(lost());
  }

  /** Emits `timeout` after so many milliseconds without data. 0: never. */
  setTimeout(ms: number, callback?: () => void): this {
    this.#timeoutMs = ms;
    this.#active();
    if (callback !== undefined) {
      if (ms === 0) this.off("timeout", callback);
      else this.once("timeout", callback);
    }
    return this;
  }

  /** Does nothing: the client's connection to the server has its own pings. */
  setKeepAlive(): this {
    return this;
  }

  /** Does nothing: data is sent at once. */
  setNoDelay(): this {
    return this;
  }

  /** Does nothing: the client's connection keeps the process alive. */
  ref(): this {
    return this;
  }

  /** Does nothing, as {@link ref}. */
  unref(): this {
    return this;
  }

  override _read(): void {
    this.#call.resume();
  }

  override _write(chunk: Buffer, _: BufferEncoding, done: (error?: Error | null) => void): void {
    this.#active();
    const send = (at: number) => {
      if (at >= chunk.length || this.#ended) {
        done();
        return;
      }
      const data = chunk.subarray(at, at + CHUNK_BYTES);
      this.#call.write({ payload: { case: "data", value: data } }, () => send(at + data.length));
    };
    send(0);
  }

  override _final(done: (error?: Error | null) => void): void {
    if (!this.#ended) {
      this.#call.write({ payload: { case: "eof", value: {} } }, () => {});
      this.#call.end();
    }
    done();
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    clearTimeout(this.#timeout);
    if (!this.#ended) {
      // After both ends the call ends by itself; to cancel it could lose data on its way.
      if (error === null && this.writableFinished && this.readableEnded) {
        this.#linger = setTimeout(() => this.#call.cancel(), LINGER_MS).unref();
      } else this.#call.cancel();
    }
    done(error);
  }

  /** Restarts the time that {@link setTimeout} sets. */
  #active(): void {
    clearTimeout(this.#timeout);
    if (this.#timeoutMs > 0 && !this.destroyed) {
      this.#timeout = setTimeout(() => this.emit("timeout"), this.#timeoutMs).unref();
    }
  }
}

/**
 * Opens a connection. Opening is retried, since nothing was sent yet; an open connection
 * cannot be resumed.
 *
 * @throws PortClosedError when no program accepts connections on the port.
 */
export async function connect(
  transport: Transport,
  { sandboxId, expectedIncarnation }: Target,
  port: number,
  { host = "localhost", ...options }: ConnectOptions,
): Promise<PortSocket> {
  const start = { sandboxId, expectedIncarnation, host, port };
  const call = withDeadline(options);
  const retry = new Retry(() => transport.retryWindow(options));
  for (;;) {
    try {
      return await open(transport, start, call);
    } catch (error) {
      if (!isBreak(error) || !(await transport.again(retry, error, options.signal))) throw error;
    }
  }
}

/** Makes one attempt: it is open when the program has accepted the connection. */
async function open(
  transport: Transport,
  start: { sandboxId: string; expectedIncarnation: string; host: string; port: number },
  options: CallWithDeadline,
): Promise<PortSocket> {
  const { signal, timeoutMs, deadline } = options;
  let socket: PortSocket | undefined;
  let settle!: (error: SandgateError | undefined) => void;
  const opened = new Promise<void>((resolve, reject) => {
    settle = (error) => (error === undefined ? resolve() : reject(error));
  });
  opened.catch(() => {});
  const call = await transport.bidiStream(
    SandboxService.method.forward,
    {
      message: (reply) => {
        if (socket !== undefined) return socket.receive(reply);
        if (reply.payload.case !== "opened") return settle(protocolError(reply.payload.case));
        socket = new PortSocket(call);
        call.pause();
        settle(undefined);
      },
      end: (error) => (socket === undefined ? settle(error ?? lost()) : socket.finish(error)),
    },
    options,
  );
  const late = () => settle(deadlineError(timeoutMs));
  const timer = deadline === undefined ? undefined : setTimeout(late, deadline - Date.now());
  const unlisten = onAbort(signal, () => settle(cancelledBy(signal as AbortSignal)));
  try {
    call.write({ payload: { case: "start", value: start } }, () => {});
    call.resume();
    await opened;
    return socket as unknown as PortSocket;
  } catch (error) {
    call.cancel();
    throw error;
  } finally {
    clearTimeout(timer);
    unlisten();
  }
}

function lost(): UnavailableError {
  return new UnavailableError("the connection to the port was lost: the stream ended early", {
    code: "UNAVAILABLE",
  });
}

function protocolError(what: string | undefined): InternalError {
  return new InternalError(`the server broke the protocol: ${what} came in the wrong place`, {
    code: "DATA_LOSS",
  });
}
