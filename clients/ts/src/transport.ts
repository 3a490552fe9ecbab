/** Makes calls over grpc-js. Every error that leaves here is a {@link SandgateError}. */

import type {
  DescMessage,
  DescMethodBiDiStreaming,
  DescMethodClientStreaming,
  DescMethodServerStreaming,
  DescMethodUnary,
  MessageInitShape,
  MessageShape,
} from "@bufbuild/protobuf";
import {
  type ClientWritableStream,
  connectivityState,
  type Client as GrpcClient,
  type Metadata,
} from "@grpc/grpc-js";
import {
  type BidiCall,
  type BidiEvents,
  type CallOptions,
  type CallWithDeadline,
  type Limits,
  limitsOf,
  withDeadline,
} from "./call.js";
import { channels } from "./channels.js";
import { Connectivity, requestIdOf } from "./connectivity.js";
import { deserializer, encoded, identity, path } from "./encoding.js";
import type { SandgateError } from "./errors.js";
import { type ClientHeaders, headersOf } from "./headers.js";
import { MessageSender } from "./messageSender.js";
import type { Connection } from "./options.js";
import { isBreak, isNotBegun, markRenewable, Retry } from "./retry.js";
import { cancelledBy, closedError, onAbort, sleep, unlessClosed } from "./sleep.js";

/** Bounds the retries of a unary call, in milliseconds. */
const UNARY_RETRY_WINDOW_MS = 30_000;
/** How often the state of a connection that is not ready is read, in milliseconds. */
const CONNECTED_POLL_MS = 10;

/** The connections to one server, shared by all calls. */
export class Transport {
  readonly #reconnectTimeoutMs: number;
  readonly #connectivity: Connectivity;
  readonly #clients: readonly GrpcClient[];
  #next = 0;
  readonly #headers: ClientHeaders;
  readonly #closing = new AbortController();

  constructor(connection: Connection) {
    this.#reconnectTimeoutMs = connection.reconnectTimeoutMs;
    this.#connectivity = new Connectivity(connection.address, connection.tls);
    this.#headers = connection;
    this.#clients = channels(connection);
  }

  /** True once the server answered anything, an error included. */
  get reached(): boolean {
    return this.#connectivity.reached;
  }

  /**
   * How long a broken call is retried, in milliseconds, and no longer than its own
   * timeout. 0 until the server has answered: a wrong address is more likely than a
   * restart.
   */
  retryWindow({ timeoutMs = Number.POSITIVE_INFINITY }: CallOptions = {}): number {
    return this.#connectivity.reached ? Math.min(this.#reconnectTimeoutMs, timeoutMs) : 0;
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

  /** Makes a unary call, once; again only if the server rejected it for an old token. */
  async unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageInitShape<I>,
    options: CallOptions = {},
  ): Promise<MessageShape<O>> {
    return this.#attempts(method, encoded(method.input, request), withDeadline(options), isNotBegun);
  }

  /**
   * Makes a unary call that must not be repeated. Without a connection it waits for
   * one, as long as {@link repeatable} retries.
   */
  async once<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageInitShape<I>,
    options: CallOptions = {},
  ): Promise<MessageShape<O>> {
    const call = withDeadline(options);
    const message = encoded(method.input, request);
    await this.#connected(Math.min(this.retryWindow(options), UNARY_RETRY_WINDOW_MS), options.signal);
    return this.#attempts(method, message, call, isNotBegun);
  }

  /**
   * Waits for the connection of unary calls, for at most `windowMs`. A call without a
   * connection then fails at once, with the reason.
   */
  async #connected(windowMs: number, signal: AbortSignal | undefined): Promise<void> {
    const until = performance.now() + windowMs;
    const channel = this.#first.getChannel();
    this.#mayCall(signal);
    while (channel.getConnectivityState(true) !== connectivityState.READY && performance.now() < until) {
      await this.sleep(CONNECTED_POLL_MS, signal);
    }
  }

  async #unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: Buffer,
    options: CallWithDeadline,
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
            this.#connectivity.reached = true;
            resolve(reply);
          } else {
            const error = this.#failure(failure, requestId, limits, options.signal);
            void this.#rejected(error, headers, options).then(reject);
          }
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
   * Makes a unary call that may be repeated. Retries it while the server or its
   * substrate is unavailable, for the retry window but at most half a minute.
   */
  async repeatable<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageInitShape<I>,
    options: CallOptions = {},
  ): Promise<MessageShape<O>> {
    return this.#attempts(method, encoded(method.input, request), withDeadline(options), isBreak);
  }

  /** Makes a unary call, and again after an error that `repeats` accepts. */
  async #attempts<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    message: Buffer,
    call: CallWithDeadline,
    repeats: (error: unknown) => boolean,
  ): Promise<MessageShape<O>> {
    const retry = new Retry(() => Math.min(this.retryWindow(call), UNARY_RETRY_WINDOW_MS));
    for (;;) {
      try {
        return await this.#unary(method, message, call);
      } catch (error) {
        if (!repeats(error) || !(await this.again(retry, error, call.signal))) throw error;
      }
    }
  }

  /**
   * Makes a call whose reply is a stream. Reads messages as the caller takes them;
   * leaving the iteration early cancels the call. `sent` is called when the request
   * goes out.
   */
  async *serverStream<I extends DescMessage, O extends DescMessage>(
    method: DescMethodServerStreaming<I, O>,
    request: MessageInitShape<I>,
    options: CallOptions = {},
    sent = () => {},
  ): AsyncGenerator<MessageShape<O>, void, undefined> {
    const bounded = withDeadline(options);
    const limits = limitsOf(bounded);
    const message = encoded(method.input, request);
    const headers = await this.#begin(bounded);
    sent();
    const call = this.#nextClient.makeServerStreamRequest(
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
    // A cancelled call reports an error after the iteration has ended.
    call.on("error", () => {});
    const unlisten = this.#onEnd(options.signal, () => call.cancel());
    try {
      for await (const reply of call) {
        this.#connectivity.reached = true;
        yield reply as MessageShape<O>;
      }
      this.#connectivity.reached = true;
    } catch (failure) {
      const error = this.#failure(failure, requestId, limits, options.signal);
      throw await this.#rejected(error, headers, bounded);
    } finally {
      unlisten();
      call.cancel();
    }
  }

  /**
   * Makes a call whose request is a stream. Takes the next one of `messages` when the
   * connection can send it, and closes `messages` when the call ends early, without
   * waiting for a pending one.
   */
  async clientStream<I extends DescMessage, O extends DescMessage>(
    method: DescMethodClientStreaming<I, O>,
    messages: AsyncGenerator<MessageInitShape<I>, void, undefined>,
    options: CallOptions = {},
  ): Promise<MessageShape<O>> {
    const bounded = withDeadline(options);
    const limits = limitsOf(bounded);
    const headers = await this.#begin(bounded);
    let requestId = "";
    const sender = new MessageSender();
    let call!: ClientWritableStream<Buffer>;
    const reply = new Promise<MessageShape<O>>((resolve, reject) => {
      call = this.#nextClient.makeClientStreamRequest(
        path(method),
        identity,
        deserializer(method.output),
        headers,
        limits,
        (failure, value) => {
          sender.stop();
          if (failure === null && value !== undefined) {
            this.#connectivity.reached = true;
            resolve(value);
          } else {
            const error = this.#failure(failure, requestId, limits, options.signal);
            void this.#rejected(error, headers, bounded).then(reject);
          }
        },
      );
    });
    reply.catch(() => {});
    call.on("metadata", (headers: Metadata) => {
      requestId = requestIdOf(headers);
    });
    call.on("error", () => {});
    const unlisten = this.#onEnd(options.signal, () => call.cancel());
    try {
      await sender.all(call, messages, (message) => encoded(method.input, message));
      return await reply;
    } catch (error) {
      call.cancel();
      throw error;
    } finally {
      unlisten();
    }
  }

  /**
   * Opens a call that streams both ways, paused. It has no deadline; closing the client
   * ends it.
   */
  async bidiStream<I extends DescMessage, O extends DescMessage>(
    method: DescMethodBiDiStreaming<I, O>,
    events: BidiEvents<MessageShape<O>>,
    options: CallOptions,
  ): Promise<BidiCall<MessageInitShape<I>>> {
    const headers = await this.#begin(options);
    const call = this.#nextClient.makeBidiStreamRequest(
      path(method),
      identity,
      deserializer(method.output),
      headers,
    );
    let requestId = "";
    const unlisten = this.#onEnd(undefined, () => call.cancel());
    const end = (error?: SandgateError) => {
      unlisten();
      events.end(error);
    };
    call.on("metadata", (headers: Metadata) => {
      requestId = requestIdOf(headers);
    });
    call.on("data", (reply: MessageShape<O>) => {
      this.#connectivity.reached = true;
      events.message(reply);
    });
    let failed = false;
    call.on("error", (failure) => {
      failed = true;
      void this.#rejected(this.#failure(failure, requestId, {}, undefined), headers, options).then(end);
    });
    // Of a failed call it comes too, after what was received.
    call.on("end", () => failed || end());
    call.pause();
    return {
      write: (message, done) =>
        call.write(encoded(method.input, message)) ? done() : call.once("drain", done),
      end: () => call.end(),
      pause: () => call.pause(),
      resume: () => call.resume(),
      cancel: () => call.cancel(),
    };
  }

  get #first(): GrpcClient {
    return this.#clients[0] as GrpcClient;
  }

  /** The connection of the next stream: they take turns. */
  get #nextClient(): GrpcClient {
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
  async #begin(options: CallWithDeadline): Promise<Metadata> {
    this.#mayCall(options.signal);
    const headers = await unlessClosed(this.#closing.signal, headersOf(this.#headers, options));
    this.#mayCall(options.signal);
    return headers;
  }

  /** Notes in an error whether the server rejected a token that has changed since it was sent. */
  async #rejected(error: SandgateError, sent: Metadata, call: CallWithDeadline): Promise<SandgateError> {
    if (error.code !== "UNAUTHENTICATED") return error;
    const now = await unlessClosed(this.#closing.signal, headersOf(this.#headers, call)).catch(() => sent);
    const [before, after] = [sent, now].map((headers) => headers.get("authorization")[0]);
    if (before !== after) markRenewable(error);
    return error;
  }

  #failure(
    failure: unknown,
    requestId: string,
    limits: Limits,
    signal: AbortSignal | undefined,
  ): SandgateError {
    if (signal?.aborted) return cancelledBy(signal);
    if (this.#closing.signal.aborted) return closedError();
    return this.#connectivity.error(failure, requestId, limits);
  }
}
