/**
 * Carries protobuf-es messages over grpc-js. Nothing else in this package knows
 * grpc-js, and what leaves here is a {@link SandgateError}.
 */

import {
  create,
  type DescMessage,
  type DescMethodClientStreaming,
  type DescMethodServerStreaming,
  type DescMethodUnary,
  fromBinary,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from "@bufbuild/protobuf";
import {
  type ClientWritableStream,
  connectivityState,
  Client as GrpcClient,
  type ClientOptions as GrpcClientOptions,
  type Metadata,
  type ServiceError,
  status,
} from "@grpc/grpc-js";
import { errorFromStatus, InternalError, InvalidRequestError, type SandgateError } from "./errors.js";
import { type ClientHeaders, headersOf } from "./headers.js";
import { HINTS, hintOf, innermost } from "./hints.js";
import { milliseconds } from "./numbers.js";
import type { Connection } from "./options.js";
import { isBreak, Retry } from "./retry.js";
import { cancelledBy, closedError, deadlineError, onAbort, sleep } from "./sleep.js";
import { decodeStatusDetails } from "./status.js";
import { defined } from "./values.js";

/** What a caller may say about one call. */
export interface CallOptions {
  /** Ends the call. The promise or iteration rejects with CallCancelledError. */
  signal?: AbortSignal;
  /**
   * Deadline of the call in milliseconds, over all its repeats. Default: none. The call
   * rejects with DeadlineExceededError then.
   */
  timeoutMs?: number;
  /** Metadata of this call, such as `x-request-id`; goes before the client's own. */
  metadata?: Readonly<Record<string, string>>;
}

/** @internal A call whose deadline is fixed, over all its repeats. */
export interface BegunCall extends CallOptions {
  /** In milliseconds of the wall clock. */
  deadline?: number;
}

/** @internal Fixes the deadline of a call that begins now, or did before. */
export function begun(options: BegunCall): BegunCall {
  const { timeoutMs, deadline } = options;
  if (timeoutMs === undefined || deadline !== undefined) return options;
  return { ...options, deadline: Date.now() + milliseconds("timeoutMs", timeoutMs) };
}

const CHANNEL_OPTIONS: GrpcClientOptions = {
  // A reply may be larger than gRPC's 4 MiB; the server bounds what it sends.
  "grpc.max_receive_message_length": 64 << 20,
  "grpc.max_send_message_length": -1,
  "grpc.keepalive_timeout_ms": 10_000,
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 2_000,
  // Large enough that one stream fills a fast link, small enough to bound what
  // a reader that pauses holds in memory.
  "grpc-node.flow_control_window": 1 << 20,
};

/** Most of the patience that a unary call gets, in milliseconds. */
const UNARY_PATIENCE_MS = 30_000;
/** How often a connection that is not there is looked for, in milliseconds. */
const CONNECTED_POLL_MS = 10;

/** The connections to one server, shared by all calls. */
export class Transport {
  readonly #patienceMs: number;
  readonly #address: string;
  readonly #clients: readonly GrpcClient[];
  #next = 0;
  readonly #headers: ClientHeaders;
  readonly #tls: boolean;
  #reached = false;
  readonly #closing = new AbortController();

  constructor(connection: Connection) {
    this.#patienceMs = connection.patienceMs;
    this.#address = connection.address;
    this.#headers = connection;
    this.#tls = connection.tls;
    const options = {
      ...CHANNEL_OPTIONS,
      "grpc.keepalive_time_ms": connection.keepaliveMs,
      // Connections of one target are otherwise shared, over all clients.
      "grpc.use_local_subchannel_pool": 1,
      ...(connection.serverName === "" ? {} : { "grpc.ssl_target_name_override": connection.serverName }),
    };
    this.#clients = Array.from(
      { length: connection.channels },
      () => new GrpcClient(connection.target, connection.credentials, options),
    );
  }

  /** True once the server answered anything, an error included. */
  get reached(): boolean {
    return this.#reached;
  }

  /**
   * How long broken calls are mended, in milliseconds. There is no patience with a
   * server that never answered: a wrong address is more likely than a restart. Nor is
   * there more of it than the caller has.
   */
  patience({ timeoutMs = Number.POSITIVE_INFINITY }: CallOptions = {}): number {
    return this.#reached ? Math.min(this.#patienceMs, timeoutMs) : 0;
  }

  /** Ends the calls under way and the connection. May be called again. */
  close(): void {
    // gRPC's own close lets calls under way go on.
    this.#closing.abort();
    for (const client of this.#clients) client.close();
  }

  /** Waits for the next attempt of a call. False: there must be none. */
  async again(retry: Retry, error: unknown, signal: AbortSignal | undefined): Promise<boolean> {
    const wait = retry.next(error);
    if (wait === undefined) return false;
    await this.sleep(wait, signal);
    return true;
  }

  /** Waits, or rejects with CallCancelledError when the signal comes or the client is closed. */
  async sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
    const over = new AbortController();
    const unlisten = this.#onEnd(signal, () => over.abort());
    try {
      await sleep(ms, over.signal);
    } catch (error) {
      this.#mayCall(signal);
      throw error;
    } finally {
      unlisten();
    }
    this.#mayCall(signal);
  }

  /** Makes a unary call, once. */
  async unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageInitShape<I>,
    options: CallOptions = {},
  ): Promise<MessageShape<O>> {
    return this.#unary(method, encoded(method.input, request), begun(options));
  }

  /**
   * Makes a unary call that must not be repeated. While the server is away it waits
   * for a connection, as long as {@link repeatable} does.
   */
  async once<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageInitShape<I>,
    options: CallOptions = {},
  ): Promise<MessageShape<O>> {
    const call = begun(options);
    const message = encoded(method.input, request);
    await this.#connected(Math.min(this.patience(options), UNARY_PATIENCE_MS), options.signal);
    return this.#unary(method, message, call);
  }

  /**
   * Waits for the connection of unary calls, for so many milliseconds. A call that is
   * sent without one fails at once, and says why there is none.
   */
  async #connected(patience: number, signal: AbortSignal | undefined): Promise<void> {
    const until = performance.now() + patience;
    const channel = this.#first.getChannel();
    this.#mayCall(signal);
    while (channel.getConnectivityState(true) !== connectivityState.READY && performance.now() < until) {
      await this.sleep(CONNECTED_POLL_MS, signal);
    }
  }

  async #unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: Buffer,
    options: BegunCall,
  ): Promise<MessageShape<O>> {
    const limits = limitsOf(options);
    const headers = await this.#begin(options);
    return new Promise((resolve, reject) => {
      const call = this.#first.makeUnaryRequest(
        path(method),
        identity,
        deserializer(method.output),
        request,
        headers,
        limits,
        (failure, reply) => {
          unlisten();
          if (failure === null && reply !== undefined) {
            this.#reached = true;
            resolve(reply);
          } else reject(this.#failure(failure, requestId, limits, options.signal));
        },
      );
      let requestId = "";
      call.on("metadata", (headers: Metadata) => {
        requestId = requestIdOf(headers);
      });
      const unlisten = this.#onEnd(options.signal, () => call.cancel());
    });
  }

  /**
   * Makes a unary call that may be repeated: while the server or what is behind it is
   * away, it is, for the patience but at most half a minute.
   */
  async repeatable<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageInitShape<I>,
    options: CallOptions = {},
  ): Promise<MessageShape<O>> {
    const retry = new Retry(() => Math.min(this.patience(options), UNARY_PATIENCE_MS));
    const call = begun(options);
    const message = encoded(method.input, request);
    for (;;) {
      try {
        return await this.#unary(method, message, call);
      } catch (error) {
        if (!isBreak(error) || !(await this.again(retry, error, options.signal))) throw error;
      }
    }
  }

  /**
   * Makes a call whose reply is a stream. Messages are asked for as the caller
   * takes them; leaving the iteration early cancels the call. `sent` is told when the
   * request goes out.
   */
  async *serverStream<I extends DescMessage, O extends DescMessage>(
    method: DescMethodServerStreaming<I, O>,
    request: MessageInitShape<I>,
    options: CallOptions = {},
    sent = () => {},
  ): AsyncGenerator<MessageShape<O>, void, undefined> {
    const bounded = begun(options);
    const limits = limitsOf(bounded);
    const message = encoded(method.input, request);
    const headers = await this.#begin(bounded);
    sent();
    const call = this.#striped.makeServerStreamRequest(
      path(method),
      identity,
      deserializer(method.output),
      message,
      headers,
      limits,
    );
    let requestId = "";
    call.on("metadata", (headers: Metadata) => {
      requestId = requestIdOf(headers);
    });
    // A cancelled call reports an error after nobody iterates any more.
    call.on("error", () => {});
    const unlisten = this.#onEnd(options.signal, () => call.cancel());
    try {
      for await (const reply of call) {
        this.#reached = true;
        yield reply as MessageShape<O>;
      }
      this.#reached = true;
    } catch (failure) {
      throw this.#failure(failure, requestId, limits, options.signal);
    } finally {
      unlisten();
      call.cancel();
    }
  }

  /**
   * Makes a call whose request is a stream. `messages` is asked for the next one
   * when the connection can take it; it is closed when the call ends early, without
   * waiting for a message that is under way.
   */
  async clientStream<I extends DescMessage, O extends DescMessage>(
    method: DescMethodClientStreaming<I, O>,
    messages: AsyncGenerator<MessageInitShape<I>, void, undefined>,
    options: CallOptions = {},
  ): Promise<MessageShape<O>> {
    const bounded = begun(options);
    const limits = limitsOf(bounded);
    const headers = await this.#begin(bounded);
    let requestId = "";
    let settled = false;
    const wake = new Wake();
    let call!: ClientWritableStream<Buffer>;
    const reply = new Promise<MessageShape<O>>((resolve, reject) => {
      call = this.#striped.makeClientStreamRequest(
        path(method),
        identity,
        deserializer(method.output),
        headers,
        limits,
        (failure, value) => {
          settled = true;
          wake.all();
          if (failure === null && value !== undefined) {
            this.#reached = true;
            resolve(value);
          } else reject(this.#failure(failure, requestId, limits, options.signal));
        },
      );
    });
    reply.catch(() => {});
    call.on("metadata", (headers: Metadata) => {
      requestId = requestIdOf(headers);
    });
    call.on("drain", () => wake.all());
    call.on("error", () => {});
    const unlisten = this.#onEnd(options.signal, () => call.cancel());
    let reading = false;
    try {
      while (!settled) {
        reading = true;
        const read = messages.next().finally(() => {
          reading = false;
          wake.all();
        });
        read.catch(() => {});
        while (reading && !settled) await wake.next();
        if (settled) break;
        const next = await read;
        if (next.done) {
          call.end();
          break;
        }
        if (!call.write(encoded(method.input, next.value)) && !settled) await wake.next();
      }
      return await reply;
    } catch (error) {
      call.cancel();
      throw error;
    } finally {
      unlisten();
      const closed = messages.return(undefined).catch(() => {});
      // A source that hangs must not hold the caller.
      if (!reading) await closed;
    }
  }

  get #first(): GrpcClient {
    return this.#clients[0] as GrpcClient;
  }

  /** The connection of the next stream: they take turns. */
  get #striped(): GrpcClient {
    return this.#clients[this.#next++ % this.#clients.length] as GrpcClient;
  }

  #mayCall(signal: AbortSignal | undefined): void {
    if (this.#closing.signal.aborted) throw closedError();
    if (signal?.aborted) throw cancelledBy(signal);
  }

  /** Calls back when the caller's signal comes or the client is closed. */
  #onEnd(signal: AbortSignal | undefined, act: () => void): () => void {
    const unlisten = [onAbort(signal, act), onAbort(this.#closing.signal, act)];
    return () => {
      for (const one of unlisten) one();
    };
  }

  /** Returns the headers of a call that may be made. */
  async #begin(options: BegunCall): Promise<Metadata> {
    this.#mayCall(options.signal);
    const headers = await headersOf(this.#headers, options);
    this.#mayCall(options.signal);
    return headers;
  }

  #failure(
    failure: unknown,
    requestId: string,
    { deadline, timeoutMs }: Limits,
    signal: AbortSignal | undefined,
  ): SandgateError {
    if (signal?.aborted) return cancelledBy(signal);
    if (this.#closing.signal.aborted) return closedError();
    if (!isServiceError(failure)) {
      return new InternalError("the call ended without a reply", { code: "INTERNAL" }, { cause: failure });
    }
    const trailer = failure.metadata?.get("grpc-status-details-bin")[0];
    const details = decodeStatusDetails(trailer instanceof Uint8Array ? trailer : new Uint8Array(0));
    if (details.reason !== "") this.#reached = true;
    const id = requestIdOf(failure.metadata) || requestId;
    // The server, too, ends a call at its deadline, by cancelling the stream, and that
    // may arrive before the timer here goes off.
    const late = failure.code === status.CANCELLED && deadline !== undefined && Date.now() >= deadline;
    const ofCall = details.reason === "" || details.reason === "CALL_DEADLINE_EXCEEDED";
    if (late || (failure.code === status.DEADLINE_EXCEEDED && ofCall)) {
      return deadlineError(timeoutMs, { reason: late ? "" : details.reason, requestId: id });
    }
    const away = failure.code === status.UNAVAILABLE && details.reason === "";
    const message = away ? this.#unreached(failure.details) : failure.details;
    return errorFromStatus(failure.code, message, details, id);
  }

  #unreached(said: string): string {
    const hint = hintOf(said, { tls: this.#tls, reached: this.#reached });
    const message = `the server at ${this.#address} cannot be reached: ${innermost(said)}`;
    return hint === undefined ? message : `${message}; ${HINTS[hint]}`;
  }
}

/** Lets one loop wait for an event that may come many times. */
class Wake {
  #waiting: (() => void)[] = [];

  next(): Promise<void> {
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  all(): void {
    for (const resolve of this.#waiting.splice(0)) resolve();
  }
}

function isServiceError(failure: unknown): failure is ServiceError {
  return (
    failure instanceof Error && "code" in failure && typeof failure.code === "number" && "details" in failure
  );
}

function requestIdOf(metadata: Metadata | undefined): string {
  const value = metadata?.get("x-request-id")[0];
  return typeof value === "string" ? value : "";
}

function path(method: { parent: { typeName: string }; name: string }): string {
  return `/${method.parent.typeName}/${method.name}`;
}

/** What bounds a call, as grpc-js takes it. */
interface Limits {
  /** In milliseconds of the wall clock. */
  deadline?: number;
  /** What the caller gave. */
  timeoutMs?: number;
}

function limitsOf({ deadline, timeoutMs }: BegunCall): Limits {
  return deadline === undefined ? {} : { deadline, ...defined({ timeoutMs }) };
}

/**
 * Encodes a request before its call begins.
 *
 * @throws InvalidRequestError when a field cannot hold its value.
 */
function encoded<M extends DescMessage>(schema: M, message: MessageInitShape<M>): Buffer {
  const field = malformed(message);
  if (field !== undefined) {
    const description = "must be well-formed text, without half of a surrogate pair";
    throw new InvalidRequestError(`${field} ${description}`, {
      code: "INVALID_ARGUMENT",
      reason: "REQUEST_INVALID",
      violations: [{ field, description }],
    });
  }
  try {
    const bytes = toBinary(schema, create(schema, message));
    return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  } catch (cause) {
    const why = cause instanceof Error ? cause.message : String(cause);
    throw new InvalidRequestError(
      `the request cannot be sent: ${why}`,
      { code: "INVALID_ARGUMENT" },
      { cause },
    );
  }
}

/** Half of a surrogate pair. Encoding puts U+FFFD in its place: another path, another text. */
const LONE_SURROGATE = /\p{Surrogate}/u;

/** Returns the first field of a message whose text cannot be encoded as it is. */
function malformed(value: unknown, field = ""): string | undefined {
  if (typeof value === "string") return LONE_SURROGATE.test(value) ? field : undefined;
  if (typeof value !== "object" || value === null || ArrayBuffer.isView(value)) return undefined;
  for (const [key, inner] of Object.entries(value)) {
    const name = field === "" ? key : `${field}.${key}`;
    const found = LONE_SURROGATE.test(key) ? field : malformed(inner, name);
    if (found !== undefined) return found;
  }
  return undefined;
}

function identity(bytes: Buffer): Buffer {
  return bytes;
}

function deserializer<M extends DescMessage>(schema: M): (bytes: Buffer) => MessageShape<M> {
  return (bytes) => fromBinary(schema, bytes);
}
