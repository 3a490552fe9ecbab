/** Which calls are retried after which errors: `clients/retries.json`, for all clients. */

import { readFileSync } from "node:fs";
import { status } from "@grpc/grpc-js";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { SandboxService } from "../src/gen/sandbox/v1/sandbox_service_pb.js";
import { Client, SandgateError } from "../src/index.js";
import { Retry } from "../src/retry.js";
import { failure } from "./failure.js";
import { FakeServer } from "./fakeServer.js";

type Kind = "idempotent" | "once" | "stream";

interface Table {
  methods: Record<string, Kind>;
  errors: {
    code: keyof typeof status;
    reason: string;
    retry_info: boolean;
    error: string;
    retried: Kind[];
  }[];
}

const TABLE: Table = JSON.parse(readFileSync(new URL("../../retries.json", import.meta.url), "utf8"));
const RETRY_AFTER_MS = 1_000;

let fake: FakeServer;
let client: Client;
/** How long the retries would have waited, in milliseconds. */
let waits: number[];

beforeEach(async () => {
  fake = await new FakeServer().start();
  client = new Client({ address: fake.address });
  waits = [];
  const next = Retry.prototype.next;
  vi.spyOn(Retry.prototype, "next").mockImplementation(function (this: Retry, error) {
    const wait = next.call(this, error);
    if (wait !== undefined) waits.push(wait);
    return wait === undefined ? undefined : 0;
  });
  await client.serverInfo();
});

afterEach(() => {
  vi.restoreAllMocks();
  client.close();
  fake.stop();
});

const permanent = () => failure(status.NOT_FOUND, "permanent", "SANDBOX_NOT_FOUND");

const restarting = () => failure(status.UNAVAILABLE, "restarting", "SERVER_SHUTTING_DOWN");

const all = async (events: AsyncIterable<unknown>) => {
  for await (const _ of events);
};

function calls(): Record<string, () => Promise<unknown>> {
  const sandbox = client.sandbox("a");
  return {
    GetServerInfo: () => client.serverInfo(),
    CreateSandbox: () => client.create(),
    GetSandbox: () => client.get("a"),
    ListSandboxes: () => client.listPage(),
    UpdateSandbox: () => client.update("a", { renew: true }),
    DeleteSandbox: () => client.delete("a"),
    CleanupSandboxes: () => client.cleanup(),
    SuspendSandbox: () => client.suspend("a"),
    ResumeSandbox: () => client.resume("a"),
    GetPoolStatus: () => client.poolStatus(),
    Execute: () => sandbox.execute("true"),
    Attach: () => all(sandbox.attach("x")),
    WriteStdin: () => sandbox.writeStdin("x", "x", { offset: 0 }),
    SignalProcess: () => sandbox.signal("x", "SIGTERM"),
    ResizeTerminal: () => sandbox.resizeTerminal("x", { rows: 24, columns: 80 }),
    ListProcesses: () => sandbox.processes(),
    Upload: () => sandbox.uploadFile("/x", "x"),
    // A large upload whose stream broke asks how much of it arrived.
    GetUpload: () => sandbox.uploadFile("/x", Buffer.alloc(2 << 20)),
    Download: () => sandbox.downloadFile("/x"),
    StatFile: () => sandbox.stat("/x"),
    ListDirectory: () => sandbox.list("/"),
    MakeDirectory: () => sandbox.makeDirectory("/d"),
    MoveFile: () => sandbox.move("/x", "/y"),
    RemoveFile: () => sandbox.remove("/x"),
    ReadLines: () => sandbox.read("/x"),
    WriteFile: () => sandbox.write("/x", "x"),
    EditFile: () => sandbox.edit("/x", "a", "b"),
    SearchFiles: () => sandbox.search("/", "x"),
    GlobFiles: () => sandbox.glob("/", "*"),
    Forward: () => sandbox.connect(80),
    CreateSandboxUrl: () => sandbox.getUrl(80),
    WatchSandboxes: () => all(client.watch()),
  };
}

/** Makes a call that fails; returns its error and how often the server got it. */
async function outcome(method: string, ...failures: ReturnType<typeof failure>[]) {
  fake.failures.set(method, failures);
  fake.calls.length = 0;
  const error: unknown = await calls()
    [method]?.()
    .catch((e: unknown) => e);
  if (!(error instanceof SandgateError)) throw new Error(`${method} did not fail`, { cause: error });
  return { error, count: fake.calls.filter((name) => name === method).length };
}

it("has every method in the table", () => {
  const methods = SandboxService.methods.map((method) => method.name).sort();
  expect(Object.keys(TABLE.methods).sort()).toEqual(methods);
  expect(Object.keys(calls()).sort()).toEqual(methods);
});

it("retries methods as in the table", async () => {
  for (const [method, kind] of Object.entries(TABLE.methods)) {
    if (method === "GetUpload") fake.failures.set("Upload", [restarting()]);
    const { error, count } = await outcome(method, restarting(), permanent());
    const expected = kind === "once" ? ["UNAVAILABLE", 1] : ["NOT_FOUND", 2];
    expect([method, error.code, count]).toEqual([method, ...expected]);
  }
  expect(waits.length).toBeGreaterThan(0);
});

it("retries errors as in the table", async () => {
  const methods: [Kind, string][] = [
    ["idempotent", "GetSandbox"],
    ["once", "EditFile"],
    ["stream", "Attach"],
  ];
  for (const row of TABLE.errors) {
    for (const [kind, method] of methods) {
      waits.length = 0;
      const extra = row.retry_info ? { retryAfterMs: RETRY_AFTER_MS } : {};
      const first = failure(status[row.code] as number, "failed", row.reason, extra);
      const { error, count } = await outcome(method, first, permanent());
      const retried = row.retried.includes(kind);
      const expected = retried ? ["SandboxNotFoundError", 2] : [row.error, 1];
      expect([row, kind, error.name, count]).toEqual([row, kind, ...expected]);
      if (row.retry_info && retried) expect(waits[0]).toBeGreaterThanOrEqual(RETRY_AFTER_MS);
      else if (row.retry_info) expect(error.retryAfterMs).toBe(RETRY_AFTER_MS);
    }
  }
});
