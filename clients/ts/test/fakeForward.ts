/** A server that only forwards, to real listeners of this machine. */

import { mkdtempSync, rmSync } from "node:fs";
import * as net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create, fromBinary, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import { Server, ServerCredentials, type ServerDuplexStream, status } from "@grpc/grpc-js";
import {
  type ForwardRequest,
  ForwardRequestSchema,
  type ForwardResponse,
  ForwardResponseSchema,
  type ForwardStart,
} from "../src/gen/sandbox/v1/sandbox_forward_pb.js";
import { failure } from "./failure.js";

type Call = ServerDuplexStream<ForwardRequest, ForwardResponse>;

export class FakeForward {
  readonly root = mkdtempSync(join(tmpdir(), "sandgate-forward-"));
  readonly address = `unix://${join(this.root, "s.sock")}`;
  /** The start of every call. */
  readonly started: ForwardStart[] = [];
  /** Reasons to end the next calls with. */
  readonly faults: string[] = [];
  /** Connections that have not ended. */
  open = 0;
  readonly #server = new Server();

  async start(): Promise<this> {
    this.#server.addService(
      {
        forward: {
          path: "/sandbox.v1.SandboxService/Forward",
          requestStream: true,
          responseStream: true,
          requestSerialize: (m: ForwardRequest) => Buffer.from(toBinary(ForwardRequestSchema, m)),
          requestDeserialize: (b: Buffer) => fromBinary(ForwardRequestSchema, b),
          responseSerialize: (m: ForwardResponse) => Buffer.from(toBinary(ForwardResponseSchema, m)),
          responseDeserialize: (b: Buffer) => fromBinary(ForwardResponseSchema, b),
        },
      },
      { forward: (call: Call) => this.#forward(call) },
    );
    await new Promise<void>((resolve, reject) => {
      const done = (error: Error | null) => (error === null ? resolve() : reject(error));
      this.#server.bindAsync(this.address, ServerCredentials.createInsecure(), done);
    });
    return this;
  }

  stop(): void {
    this.#server.forceShutdown();
    rmSync(this.root, { recursive: true, force: true });
  }

  #forward(call: Call): void {
    let program: net.Socket | undefined;
    const send = (payload: MessageInitShape<typeof ForwardResponseSchema>["payload"]) =>
      call.write(create(ForwardResponseSchema, { payload: payload as never }));
    call.on("error", () => {});
    call.on("data", ({ payload }: ForwardRequest) => {
      if (payload.case === "data") {
        if (program?.write(payload.value) === false) call.pause();
      } else if (payload.case === "eof") program?.end();
      else if (payload.case === "start") {
        this.started.push(payload.value);
        const reason = this.faults.shift();
        if (reason !== undefined) {
          const code = reason === "SERVER_SHUTTING_DOWN" ? status.UNAVAILABLE : status.FAILED_PRECONDITION;
          call.emit("error", failure(code, "refused", reason));
          return;
        }
        if (payload.value.host === "slow") return;
        program = net.connect({ port: payload.value.port, host: "127.0.0.1", allowHalfOpen: true });
        this.#pump(call, program, send);
      }
    });
    call.on("cancelled", () => program?.resetAndDestroy());
  }

  #pump(call: Call, program: net.Socket, send: (payload: never) => boolean): void {
    let opened = false;
    this.open++;
    program.on("connect", () => {
      opened = true;
      send({ case: "opened", value: {} } as never);
    });
    program.on("data", (data) => {
      if (!send({ case: "data", value: data } as never)) {
        program.pause();
        call.once("drain", () => program.resume());
      }
    });
    program.on("drain", () => call.resume());
    program.on("end", () => send({ case: "eof", value: {} } as never));
    program.on("error", (error) => {
      const reason = opened ? "CONNECTION_RESET" : "PORT_CLOSED";
      const code = opened ? status.ABORTED : status.FAILED_PRECONDITION;
      if (!call.cancelled) call.emit("error", failure(code, error.message, reason));
    });
    program.on("close", (failed) => {
      this.open--;
      if (!failed && !call.cancelled) call.end();
    });
  }
}
