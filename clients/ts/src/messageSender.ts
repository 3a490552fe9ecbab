/** Sends the messages of a call whose request is a stream. */

/** What a call takes: a writable of grpc-js. */
interface Sink {
  write(message: Buffer): boolean;
  end(): unknown;
  on(event: "drain", act: () => void): unknown;
}

/**
 * Sends messages as the connection takes them. Returns when all are sent or the call
 * has ended, and closes `messages` then, without waiting for a pending one.
 */
export class MessageSender {
  #ended = false;
  #waiting: (() => void)[] = [];

  /** Ends the sending: the call has ended. */
  stop(): void {
    this.#ended = true;
    this.#wake();
  }

  async all<M>(call: Sink, messages: AsyncGenerator<M>, encode: (message: M) => Buffer): Promise<void> {
    let reading = false;
    call.on("drain", () => this.#wake());
    try {
      while (!this.#ended) {
        reading = true;
        const read = messages.next().finally(() => {
          reading = false;
          this.#wake();
        });
        read.catch(() => {});
        while (reading && !this.#ended) await this.#next();
        if (this.#ended) return;
        const next = await read;
        if (next.done) {
          call.end();
          return;
        }
        if (!call.write(encode(next.value)) && !this.#ended) await this.#next();
      }
    } finally {
      const closed = messages.return(undefined).catch(() => {});
      // A source that hangs must not block the caller.
      if (!reading) await closed;
    }
  }

  #next(): Promise<void> {
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  #wake(): void {
    for (const resolve of this.#waiting.splice(0)) resolve();
  }
}
