/**
 * A SandboxService for unit tests: real processes of this machine, files in a
 * temporary directory, and faults on request. It isolates nothing.
 */

import { createHash } from "node:crypto";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import {
  create,
  type DescMethod,
  fromBinary,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from "@bufbuild/protobuf";
import {
  Metadata,
  Server,
  ServerCredentials,
  type ServiceDefinition,
  status,
  type UntypedHandleCall,
} from "@grpc/grpc-js";
import { ErrorReason } from "../src/gen/sandbox/v1/sandbox_errors_pb.js";
import type { DownloadRequest, UploadRequest, UploadResult } from "../src/gen/sandbox/v1/sandbox_files_pb.js";
import { UploadResultSchema } from "../src/gen/sandbox/v1/sandbox_files_pb.js";
import { type Sandbox, SandboxSchema, SandboxState } from "../src/gen/sandbox/v1/sandbox_lifecycle_pb.js";
import {
  type AttachRequest,
  type ExecuteRequest,
  ExecuteResponseSchema,
} from "../src/gen/sandbox/v1/sandbox_process_pb.js";
import { SandboxService } from "../src/gen/sandbox/v1/sandbox_service_pb.js";
import type { CreateSandboxUrlRequest } from "../src/gen/sandbox/v1/sandbox_url_pb.js";
import { failure } from "./failure.js";
import { FakeProcess, type Write } from "./fakeProcess.js";

/** What a test wants to go wrong, once each. */
export interface Faults {
  /** Breaks the next stream of a command after so many bytes of output. */
  breakAfterBytes?: number;
  /** Ends it in OK without `exited` instead of in UNAVAILABLE. */
  endQuietly?: boolean;
  /** Breaks the next Execute before `started`. */
  breakBeforeStart?: boolean;
  /** Sends a piece of output twice. */
  repeatOutput?: boolean;
  /** Skips a piece of output without a gap. */
  loseOutput?: boolean;
  /** Answers an Upload or a WriteFile with another hash than that of the bytes. */
  corruptUpload?: boolean;
  /** Changes a byte of a Download. */
  corruptDownload?: boolean;
  /** Refuses to suspend, as a server does whose provider cannot. */
  cannotSuspend?: boolean;
}

// biome-ignore lint/suspicious/noExplicitAny: the calls of many methods
type Call = any;
// biome-ignore lint/suspicious/noExplicitAny: as above
type Reply = (error: any, value?: any) => void;

/** The fake. */
export class FakeServer {
  readonly root = mkdtempSync(join(tmpdir(), "sandgate-fake-"));
  readonly address = `unix://${join(this.root, "fake.sock")}`;
  /** Names of the calls that came, in order. */
  readonly calls: string[] = [];
  /** The metadata of the last call. */
  lastMetadata = new Metadata();
  /** The requests for URLs. */
  readonly urls: CreateSandboxUrlRequest[] = [];
  readonly sandboxes = new Map<string, Sandbox>();
  readonly processes = new Map<string, FakeProcess>();
  faults: Faults = {};
  /** Called with each call before it is answered. */
  onCall: ((call: Call) => void) | undefined;
  /** Bytes of output that were handed to gRPC. */
  sentBytes = 0;
  /** Errors to answer calls with, by method, once each. */
  readonly failures = new Map<string, ReturnType<typeof failure>[]>();
  /** Called for each call with another token, before its error is sent. */
  onRejected: (() => void) | undefined;
  #token = "";
  #revokers: (() => void)[] = [];
  #server = new Server({ "grpc.max_receive_message_length": 16 << 20 });

  /** The only accepted token; empty: all calls are accepted. */
  get token(): string {
    return this.#token;
  }

  /** Sets the accepted token and ends the streams of commands, as after a revocation. */
  set token(token: string) {
    this.#token = token;
    for (const revoke of this.#revokers.splice(0)) revoke();
  }

  async start(): Promise<this> {
    mkdirSync(join(this.root, "files"), { recursive: true });
    const definition: Record<string, unknown> = {};
    const handlers: Record<string, UntypedHandleCall> = {};
    for (const method of SandboxService.methods) {
      definition[method.localName] = methodDefinition(method);
      handlers[method.localName] = ((call: Call, reply?: Reply) =>
        this.#handle(method, call, reply)) as never;
    }
    this.#server.addService(definition as unknown as ServiceDefinition, handlers as never);
    await this.#listen();
    return this;
  }

  /** Cuts every connection and listens again, as a restarted server does. */
  async restart(): Promise<void> {
    this.pause();
    await this.start();
  }

  /** Goes away until the next {@link start}, as a server that is being restarted. */
  pause(): void {
    this.#server.forceShutdown();
    rmSync(join(this.root, "fake.sock"), { force: true });
    this.#server = new Server({ "grpc.max_receive_message_length": 16 << 20 });
  }

  /** Ends the connections after the calls that are under way, and takes no new ones. */
  drain(): void {
    this.#server.tryShutdown(() => {});
  }

  stop(): void {
    for (const process of this.processes.values()) process.kill();
    this.#server.forceShutdown();
    rmSync(this.root, { recursive: true, force: true });
  }

  /** Where a path of a sandbox is on this machine. */
  file(path: string): string {
    return join(this.root, "files", path);
  }

  #listen(): Promise<number> {
    return new Promise((resolve, reject) => {
      this.#server.bindAsync(this.address, ServerCredentials.createInsecure(), (error, port) =>
        error === null ? resolve(port) : reject(error),
      );
    });
  }

  #handle(method: DescMethod, call: Call, reply?: Reply): void {
    this.calls.push(method.name);
    this.lastMetadata = call.metadata;
    this.onCall?.(call);
    const planned = this.failures.get(method.name)?.shift();
    const fail = (error: unknown) => (reply ? reply(error) : call.emit("error", error));
    if (this.#token !== "" && call.metadata.get("authorization")[0] !== `Bearer ${this.#token}`) {
      this.onRejected?.();
      return void fail(failure(status.UNAUTHENTICATED, "unknown token", "CREDENTIALS_INVALID"));
    }
    if (planned !== undefined) return void fail(planned);
    const handler = (this as unknown as Record<string, Reply | undefined>)[`_${method.localName}`];
    if (handler === undefined) {
      return void fail(
        failure(status.UNIMPLEMENTED, `the fake cannot ${method.name}`, "FEATURE_UNSUPPORTED"),
      );
    }
    handler.call(this, call, reply);
  }

  _getServerInfo(_call: Call, reply: Reply): void {
    reply(null, { version: "0.0.0-fake", provider: "fake", limits: { maxMessageBytes: BigInt(16 << 20) } });
  }

  _createSandbox({ request }: Call, reply: Reply): void {
    const known = this.sandboxes.get(request.sandboxId);
    const sandbox =
      known ??
      create(SandboxSchema, {
        sandboxId: request.sandboxId,
        incarnation: "1",
        state: SandboxState.ACTIVE,
        labels: request.labels,
        spec: { workingDirectory: "/workspace" },
      });
    this.sandboxes.set(sandbox.sandboxId, sandbox);
    reply(null, { sandbox, created: known === undefined });
  }

  _getSandbox({ request }: Call, reply: Reply): void {
    const sandbox = this.sandboxes.get(request.sandboxId);
    if (sandbox === undefined) reply(noSandbox(request.sandboxId));
    else reply(null, { sandbox });
  }

  _listSandboxes({ request }: Call, reply: Reply): void {
    const all = [...this.sandboxes.values()];
    const from = Number(request.pageToken || 0);
    const to = from + (request.pageSize || 100);
    reply(null, { sandboxes: all.slice(from, to), nextPageToken: to < all.length ? String(to) : "" });
  }

  /** Sends two events after the cursor, whose cursors are their numbers, and breaks. */
  _watchSandboxes(call: Call): void {
    const { cursor, labels } = call.request;
    if (!/^\d*$/.test(cursor)) {
      call.emit("error", failure(status.INVALID_ARGUMENT, "cursor: malformed", "REQUEST_INVALID"));
      return;
    }
    const begin = Number(cursor);
    call.write({ cursor: String(begin) });
    for (const i of [begin + 1, begin + 2]) {
      call.write({ cursor: String(i), event: { eventId: `e${i}`, type: 1, labels } });
    }
    call.emit("error", { code: status.UNAVAILABLE, details: "broken" });
  }

  _deleteSandbox({ request }: Call, reply: Reply): void {
    reply(null, { deleted: this.sandboxes.delete(request.sandboxId) });
  }

  _createSandboxUrl({ request }: Call, reply: Reply): void {
    this.urls.push(request);
    const expireTime = { seconds: 60n, nanos: 0 };
    reply(null, { url: "http://x/?t", baseUrl: "http://x/", token: "t", expireTime, incarnation: "1" });
  }

  _suspendSandbox(call: Call, reply: Reply): void {
    this.#turn(call, SandboxState.SUSPENDED, reply);
  }

  _resumeSandbox(call: Call, reply: Reply): void {
    this.#turn(call, SandboxState.ACTIVE, reply);
  }

  /** Brings a sandbox into a state, in which it may be already. */
  #turn({ request }: Call, state: SandboxState, reply: Reply): void {
    const sandbox = this.sandboxes.get(request.sandboxId);
    if (this.faults.cannotSuspend) {
      const text = "the provider fake cannot suspend sandboxes";
      reply(failure(status.UNIMPLEMENTED, text, "FEATURE_UNSUPPORTED"));
    } else if (sandbox === undefined) reply(noSandbox(request.sandboxId));
    else {
      const resumes = sandbox.state === SandboxState.SUSPENDED && state === SandboxState.ACTIVE;
      if (resumes) sandbox.incarnation += "'";
      sandbox.state = state;
      reply(null, { sandbox });
    }
  }

  _execute(call: Call): void {
    const request = call.request as ExecuteRequest;
    if (this.faults.breakBeforeStart) {
      delete this.faults.breakBeforeStart;
      call.emit("error", { code: status.UNAVAILABLE, details: "broken" });
      return;
    }
    const joined = this.processes.has(request.execId);
    const process = this.processes.get(request.execId) ?? new FakeProcess(request, this.file("/"));
    this.processes.set(request.execId, process);
    void this.#send(call, process, request.execId, 0, joined);
  }

  _attach(call: Call): void {
    const request = call.request as AttachRequest;
    const process = this.processes.get(request.execId);
    if (process === undefined) {
      call.emit("error", failure(status.NOT_FOUND, "there is no such command", "EXEC_NOT_FOUND"));
      return;
    }
    void this.#send(call, process, request.execId, Number(request.position), true);
  }

  _signalProcess({ request }: Call, reply: Reply): void {
    const process = this.processes.get(request.execId);
    if (process === undefined) reply(failure(status.NOT_FOUND, "there is no such command", "EXEC_NOT_FOUND"));
    else {
      process.kill();
      reply(null, { delivered: true });
    }
  }

  async #send(
    call: Call,
    process: FakeProcess,
    execId: string,
    position: number,
    joined: boolean,
  ): Promise<void> {
    let gone = false;
    let bytes = 0;
    call.on("cancelled", () => {
      gone = true;
      call.emit("drain");
    });
    this.#revokers.push(() => {
      if (gone) return;
      gone = true;
      const extra = { metadata: { outcome: "unknown" } };
      call.emit("error", failure(status.UNAUTHENTICATED, "revoked", "CREDENTIALS_INVALID", extra));
    });
    const write: Write = async (event) => {
      if (gone) return false;
      if (event.case === "output") {
        if (this.faults.loseOutput) {
          delete this.faults.loseOutput;
          return true;
        }
        bytes += event.value.data.length;
        this.sentBytes += event.value.data.length;
      }
      if (this.faults.breakAfterBytes !== undefined && bytes > this.faults.breakAfterBytes) {
        const quiet = this.faults.endQuietly;
        this.faults = {};
        if (quiet) call.end();
        else call.emit("error", { code: status.UNAVAILABLE, details: "broken" });
        return false;
      }
      const again = this.faults.repeatOutput && event.case === "output";
      if (again) delete this.faults.repeatOutput;
      for (let n = again ? 2 : 1; n > 0; n--) {
        if (!call.write({ event }) && !gone)
          await new Promise<void>((resolve) => call.once("drain", resolve));
      }
      return !gone;
    };
    const started = {
      execId,
      incarnation: "1",
      pid: process.child.pid ?? 0,
      position: BigInt(position),
      joined,
    };
    const { event } = create(ExecuteResponseSchema, { event: { case: "started", value: started } });
    if (!(await write(event))) return;
    await process.follow(position, write);
    if (!gone) call.end();
  }

  _writeFile({ request: { path, content } }: Call, reply: Reply): void {
    const text = `${path}: permission denied`;
    if (path.includes("forbidden")) {
      const extra = { metadata: { path } };
      reply(failure(status.PERMISSION_DENIED, text, "FILE_PERMISSION_DENIED", extra));
    } else reply(null, { size: BigInt(content.length), sha256: this.#land(path, content) });
  }

  /** Puts a file in its place and returns its hash, wrong where a test wants that. */
  #land(path: string, content: Uint8Array): Buffer {
    mkdirSync(dirname(this.file(path)), { recursive: true });
    writeFileSync(this.file(path), content);
    const sha256 = createHash("sha256").update(content).digest();
    if (this.faults.corruptUpload) sha256[0] = (sha256[0] ?? 0) ^ 1;
    return sha256;
  }

  async _upload(call: Call, reply: Reply): Promise<void> {
    const results: UploadResult[] = [];
    let path = "";
    let chunks: Buffer[] = [];
    const land = () => {
      const content = Buffer.concat(chunks);
      const result: MessageInitShape<typeof UploadResultSchema> = { path, size: BigInt(content.length) };
      if (path.includes("forbidden")) {
        result.error = { reason: ErrorReason.FILE_PERMISSION_DENIED, message: `${path}: permission denied` };
      } else result.sha256 = this.#land(path, content);
      results.push(create(UploadResultSchema, result));
      chunks = [];
    };
    try {
      for await (const { payload } of call as AsyncIterable<UploadRequest>) {
        if (payload.case === "header") path = payload.value.path;
        else if (payload.case === "chunk") chunks.push(Buffer.from(payload.value));
        else if (payload.case === "trailer") {
          land();
          path = "";
        }
      }
    } catch {
      return; // The caller went away.
    }
    if (path === "") reply(null, { results });
    else reply(failure(status.INVALID_ARGUMENT, `${path} has no trailer`, "UPLOAD_OUT_OF_ORDER"));
  }

  async _download(call: Call): Promise<void> {
    const { items } = call.request as DownloadRequest;
    for (const [index, { path, offset, limit }] of items.entries()) {
      let content: Buffer;
      try {
        content = readFileSync(this.file(path));
      } catch {
        const error = { reason: ErrorReason.FILE_NOT_FOUND, message: `${path}: not found` };
        call.write({ payload: { case: "trailer", value: { index, error } } });
        continue;
      }
      const end = limit === undefined ? undefined : Number(offset + limit);
      const part = content.subarray(Number(offset), end);
      call.write({ payload: { case: "header", value: { index, info: { path }, offset } } });
      const sha256 = createHash("sha256").update(part).digest();
      const sent = Buffer.from(part);
      if (this.faults.corruptDownload) sent[0] = (sent[0] ?? 0) ^ 1;
      for (let at = 0; at < sent.length; at += 64 << 10) {
        const chunk = sent.subarray(at, at + (64 << 10));
        if (!call.write({ payload: { case: "chunk", value: chunk } })) {
          await new Promise((resolve) => call.once("drain", resolve));
        }
      }
      call.write({ payload: { case: "trailer", value: { index, size: BigInt(part.length), sha256 } } });
    }
    call.end();
  }
}

function noSandbox(id: string) {
  return failure(status.NOT_FOUND, `there is no sandbox "${id}"`, "SANDBOX_NOT_FOUND", {
    metadata: { sandbox_id: id },
  });
}

function methodDefinition(method: DescMethod) {
  const streams = method.methodKind;
  return {
    path: `/${method.parent.typeName}/${method.name}`,
    requestStream: streams === "client_streaming" || streams === "bidi_streaming",
    responseStream: streams === "server_streaming" || streams === "bidi_streaming",
    requestSerialize: (m: MessageShape<typeof method.input>) => Buffer.from(toBinary(method.input, m)),
    requestDeserialize: (bytes: Buffer) => fromBinary(method.input, bytes),
    responseSerialize: (m: object) => Buffer.from(toBinary(method.output, create(method.output, m as never))),
    responseDeserialize: (bytes: Buffer) => fromBinary(method.output, bytes),
  };
}
