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
  type CallOptions as GrpcCallOptions,
  Client as GrpcClient,
  type ClientOptions as GrpcClientOptions,
  Metadata,
  type ServiceError,
  status,
} from "@grpc/grpc-js";
import { CallCancelledError, errorFromStatus, InternalError, type SandgateError } from "./errors.js";
import type { Connection } from "./options.js";
import { decodeStatusDetails } from "./status.js";

/** What a caller may say about one call. */
export interface CallOptions {
  /** Ends the call. The promise or iteration rejects with CallCancelledError. */
  signal?: AbortSignal;
  /** Deadline of the call in milliseconds. Default: none. */
  timeoutMs?: number;
}

const CHANNEL_OPTIONS: GrpcClientOptions = {
  // A reply may be larger than gRPC's 4 MiB; the server bounds what it sends.
  "grpc.max_receive_message_length": 64 << 20,
  "grpc.max_send_message_length": -1,
  // A peer that vanished is noticed within 40 s while a call is under way.
  "grpc.keepalive_time_ms": 30_000,
  "grpc.keepalive_timeout_ms": 10_000,
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 2_000,
  // Large enough that one stream fills a fast link, small enough to bound what
  // a reader that pauses holds in memory.
  "grpc-node.flow_control_window": 1 << 20,
};

const UNAVAILABLE_RETRIES = 4;

/** One connection to one server, shared by all calls. */
export class Transport {
  readonly patienceMs: number;
  readonly #address: string;
  readonly #client: GrpcClient;
  readonly #token: string;
  readonly #metadata: Readonly<Record<string, string>>;
  #reached = false;
  #closed = false;

  constructor(connection: Connection) {
    this.patienceMs = connection.patienceMs;
    this.#address = connection.address;
    this.#token = connection.token;
    this.#metadata = connection.metadata;
    this.#client = new GrpcClient(connection.target, connection.credentials, CHANNEL_OPTIONS);
  }

  /** True once the server answered anything, an error included. */
  get reached(): boolean {
    return this.#reached;
  }

  /** Ends the connection and the calls on it. May be called again. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#client.close();
  }

  /** Makes a unary call. */
  unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageInitShape<I>,
    options: CallOptions = {},
  ): Promise<MessageShape<O>> {
    return new Promise((resolve, reject) => {
      this.#mayCall(options.signal);
      const call = this.#client.makeUnaryRequest(
        path(method),
        serializer(method.input),
        deserializer(method.output),
        create(method.input, request),
        this.#headers(),
        grpcOptions(options),
        (failure, reply) => {
          unlisten();
          if (failure === null && reply !== undefined) {
            this.#reached = true;
            resolve(reply);
          } else reject(this.#failure(failure, requestId, options.signal));
        },
      );
      let requestId = "";
      call.on("metadata", (headers: Metadata) => {
        requestId = requestIdOf(headers);
      });
      const unlisten = onAbort(options.signal, () => call.cancel());
    });
  }

  /**
   * Makes a unary call that may be repeated: while the server is away for a
   * moment, it is, a few times within about two seconds.
   */
  async repeatable<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageInitShape<I>,
    options: CallOptions = {},
  ): Promise<MessageShape<O>> {
    for (let attempt = 0; ; attempt++) {
      try {
        return await this.unary(method, request, options);
      } catch (error) {
        const again = this.#reached && attempt < UNAVAILABLE_RETRIES && isUnavailable(error);
        if (!again) throw error;
        await sleep(Math.max(100 * 2 ** attempt, Math.min(error.retryAfterMs ?? 0, 2_000)), options.signal);
      }
    }
  }

  /**
   * Makes a call whose reply is a stream. Messages are asked for as the caller
   * takes them; leaving the iteration early cancels the call.
   */
  async *serverStream<I extends DescMessage, O extends DescMessage>(
    method: DescMethodServerStreaming<I, O>,
    request: MessageInitShape<I>,
    options: CallOptions = {},
  ): AsyncGenerator<MessageShape<O>, void, undefined> {
    this.#mayCall(options.signal);
    const call = this.#client.makeServerStreamRequest(
      path(method),
      serializer(method.input),
      deserializer(method.output),
      create(method.input, request),
      this.#headers(),
      grpcOptions(options),
    );
    let requestId = "";
    call.on("metadata", (headers: Metadata) => {
      requestId = requestIdOf(headers);
    });
    // A cancelled call reports an error after nobody iterates any more.
    call.on("error", () => {});
    const unlisten = onAbort(options.signal, () => call.cancel());
    try {
      for await (const reply of call) {
        this.#reached = true;
        yield reply as MessageShape<O>;
      }
      this.#reached = true;
    } catch (failure) {
      throw this.#failure(failure, requestId, options.signal);
    } finally {
      unlisten();
      call.cancel();
    }
  }

  /**
   * Makes a call whose request is a stream. `messages` is asked for the next one
   * when the connection can take it; it is closed when the server ends the call
   * early.
   */
  async clientStream<I extends DescMessage, O extends DescMessage>(
    method: DescMethodClientStreaming<I, O>,
    messages: AsyncIterable<MessageInitShape<I>>,
    options: CallOptions = {},
  ): Promise<MessageShape<O>> {
    this.#mayCall(options.signal);
    let requestId = "";
    let settled = false;
    const wake = new Wake();
    let call!: ClientWritableStream<MessageShape<I>>;
    const reply = new Promise<MessageShape<O>>((resolve, reject) => {
      call = this.#client.makeClientStreamRequest(
        path(method),
        serializer(method.input),
        deserializer(method.output),
        this.#headers(),
        grpcOptions(options),
        (failure, value) => {
          settled = true;
          wake.all();
          if (failure === null && value !== undefined) {
            this.#reached = true;
            resolve(value);
          } else reject(this.#failure(failure, requestId, options.signal));
        },
      );
    });
    reply.catch(() => {});
    call.on("metadata", (headers: Metadata) => {
      requestId = requestIdOf(headers);
    });
    call.on("drain", () => wake.all());
    call.on("error", () => {});
    const unlisten = onAbort(options.signal, () => call.cancel());
    try {
      for await (const message of messages) {
        if (settled) break;
        if (!call.write(create(method.input, message)) && !settled) await wake.next();
        if (settled) break;
      }
      if (!settled) call.end();
      return await reply;
    } catch (error) {
      call.cancel();
      throw error;
    } finally {
      unlisten();
    }
  }

  #mayCall(signal: AbortSignal | undefined): void {
    if (this.#closed) throw new CallCancelledError("the client is closed", { code: "CANCELLED" });
    if (signal?.aborted) throw cancelledBy(signal);
  }

  #headers(): Metadata {
    const headers = new Metadata();
    for (const [key, value] of Object.entries(this.#metadata)) headers.set(key, value);
    if (this.#token !== "") headers.set("authorization", `Bearer ${this.#token}`);
    return headers;
  }

  #failure(failure: unknown, requestId: string, signal: AbortSignal | undefined): SandgateError {
    if (signal?.aborted) return cancelledBy(signal);
    if (!isServiceError(failure)) {
      return new InternalError("the call ended without a reply", { code: "INTERNAL" }, { cause: failure });
    }
    const trailer = failure.metadata?.get("grpc-status-details-bin")[0];
    const details = decodeStatusDetails(trailer instanceof Uint8Array ? trailer : new Uint8Array(0));
    if (details.reason !== "") this.#reached = true;
    const id = requestIdOf(failure.metadata) || requestId;
    const away = failure.code === status.UNAVAILABLE && details.reason === "";
    const message = away
      ? `the server at ${this.#address} cannot be reached: ${failure.details}`
      : failure.details;
    return errorFromStatus(failure.code, message, details, id);
  }
}

/** The error of a call that its caller's signal ended. */
export function cancelledBy(signal: AbortSignal): CallCancelledError {
  return new CallCancelledError("the caller cancelled", { code: "CANCELLED" }, { cause: signal.reason });
}

/** Waits, or rejects with CallCancelledError when the signal comes first. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(cancelledBy(signal));
    const timer = setTimeout(() => {
      unlisten();
      resolve();
    }, ms);
    const unlisten = onAbort(signal, () => {
      clearTimeout(timer);
      reject(cancelledBy(signal as AbortSignal));
    });
  });
}

/** Calls back when the signal comes; returns what takes the listener off. */
export function onAbort(signal: AbortSignal | undefined, act: () => void): () => void {
  if (signal === undefined) return () => {};
  signal.addEventListener("abort", act, { once: true });
  return () => signal.removeEventListener("abort", act);
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

function isUnavailable(error: unknown): error is SandgateError {
  return error instanceof Error && "code" in error && error.code === "UNAVAILABLE";
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

function grpcOptions(options: CallOptions): GrpcCallOptions {
  return options.timeoutMs === undefined ? {} : { deadline: Date.now() + options.timeoutMs };
}

function serializer<M extends DescMessage>(schema: M): (message: MessageShape<M>) => Buffer {
  return (message) => {
    const bytes = toBinary(schema, message);
    return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  };
}

function deserializer<M extends DescMessage>(schema: M): (bytes: Buffer) => MessageShape<M> {
  return (bytes) => fromBinary(schema, bytes);
}
