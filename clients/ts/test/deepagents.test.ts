import { readFileSync } from "node:fs";
import { status } from "@grpc/grpc-js";
import { RunnableLambda } from "@langchain/core/runnables";
import { BaseSandbox } from "deepagents";
import { afterAll, beforeAll, beforeEach, describe, expect, it, vi } from "vitest";
import { isText, mimeType } from "../src/deepagents/mime.js";
import { appended, fileContent } from "../src/deepagents/results.js";
import { readForeign, replaceText } from "../src/deepagents/text.js";
import {
  RECREATED,
  SandgateProvider,
  SandgateSandbox,
  SandgateThreadBackend,
  threadSandboxId,
} from "../src/deepagents.js";
import { SandboxState } from "../src/gen/sandbox/v1/sandbox_lifecycle_pb.js";
import { failure } from "./failure.js";
import { FakeServer } from "./fakeServer.js";

const bytes = (text: string) => new TextEncoder().encode(text);

describe("mimeType", () => {
  it.each([
    ["/a/b.png", "image/png", false],
    ["/a/B.PNG", "image/png", false],
    ["/a.b/c", "text/plain", true],
    ["/.png", "text/plain", true],
    ["/x.svg", "image/svg+xml", true],
    ["/x.json", "application/json", true],
    ["/x.tar.gz", "text/plain", true],
    ["/deck.pptx", "application/vnd.openxmlformats-officedocument.presentationml.presentation", false],
    ["/Dockerfile", "text/plain", true],
  ])("%s is %s", (path, type, text) => {
    expect(mimeType(path)).toBe(type);
    expect(isText(type)).toBe(text);
  });
});

describe("text", () => {
  it.each([
    ["a b", "b", "c", false, "a c", 1],
    ["a\r\nb", "a\nb", "x\ny", false, "x\r\ny", 1],
    ["a\nb", "a\r\nb", "x\r\ny", false, "x\ny", 1],
    ["b b", "b", "c", false, "b b", 2],
    ["b b", "b", "c", true, "c c", 2],
    ["a", "x", "y", true, "a", 0],
    ["\ufeffa", "a", "b", false, "\ufeffb", 1],
  ])("replaces in %j", (text, old, by, all, content, occurrences) => {
    expect(replaceText(bytes(text), old, by, all)).toEqual({ content, occurrences });
  });

  it("does not replace in what is not UTF-8", () => {
    expect(replaceText(Uint8Array.of(97, 0xe9, 98), "a", "b", false)).toBeUndefined();
  });

  it("reads windows of foreign text", () => {
    const latin = Uint8Array.of(0xe9, 10, 98, 13, 10, 99);
    expect(readForeign(latin, 1, 1, "text/plain")).toMatchObject({
      content: "b",
      startLine: 2,
      nextOffset: 2,
    });
    expect(readForeign(latin, 3, 1, "text/plain")).toEqual({ content: "", mimeType: "text/plain" });
    expect(readForeign(Uint8Array.of(0xff, 0), 0, 1, "text/plain")).toBeUndefined();
  });

  it.each([
    ["aGk=", "hi"],
    ["data:image/png;base64,aGk=", "hi"],
    ["a G\nk=", "hi"],
    ["hello", "hello"],
    ["<svg/>", "<svg/>"],
  ])("takes %j for the content of a binary file", (content, wanted) => {
    expect(new TextDecoder().decode(fileContent(content, true))).toBe(wanted);
    expect(new TextDecoder().decode(fileContent(content, false))).toBe(content);
  });

  it("puts a notice on a line of its own", () => {
    expect([appended("", "n"), appended("a", "n"), appended("a\n", "n")]).toEqual(["n", "a\nn", "a\nn"]);
  });
});

describe("SandgateSandbox against a server with faults", () => {
  let fake: FakeServer;
  let sandbox: SandgateSandbox;

  beforeAll(async () => {
    fake = await new FakeServer().start();
    sandbox = await SandgateSandbox.create({
      connection: { address: fake.address, reconnectTimeoutMs: 200 },
      commandTimeoutMs: 1_000,
    });
  });
  beforeEach(() => {
    fake.calls.length = 0;
    fake.failures.clear();
  });
  afterAll(async () => {
    await sandbox.close();
    fake.stop();
  });

  const unavailable = () => failure(status.UNAVAILABLE, "the sandbox is away", "AGENT_UNAVAILABLE");
  const missing = () => failure(status.NOT_FOUND, "there is no file", "FILE_NOT_FOUND");

  it("reaches Execute by no file method", async () => {
    const args: Record<string, unknown[]> = {
      ls: ["/"],
      read: ["/a"],
      readRaw: ["/a"],
      write: ["/a", "b"],
      edit: ["/a", "b", "c"],
      delete: ["/a"],
      grep: ["a", "/"],
      glob: ["*", "/"],
      uploadFiles: [[["/a", new Uint8Array(1)]]],
      downloadFiles: [["/a"]],
    };
    const methods = new Set([...Object.getOwnPropertyNames(BaseSandbox.prototype), ...Object.keys(args)]);
    methods.delete("constructor");
    for (const method of methods) {
      expect(args[method], `${method} is new in deepagents`).toBeDefined();
      await (sandbox as unknown as Record<string, (...a: unknown[]) => Promise<unknown>>)[method]?.(
        ...(args[method] ?? []),
      );
    }
    expect(fake.calls.length).toBeGreaterThanOrEqual(methods.size);
    expect(fake.calls).not.toContain("Execute");
  });

  it.each([
    ["ReadLines", () => sandbox.read("/a")],
    ["Download", () => sandbox.readRaw("/a")],
    ["WriteFile", () => sandbox.write("/a", "")],
    ["EditFile", () => sandbox.edit("/a", "b", "c")],
    ["RemoveFile", () => sandbox.delete("/a")],
    ["ListDirectory", () => sandbox.ls("/a")],
    ["SearchFiles", () => sandbox.grep("a", "/a")],
    ["GlobFiles", () => sandbox.glob("a", "/a")],
  ])("does not take a failed %s for a missing file", async (method, call) => {
    fake.failures.set(method, Array.from({ length: 20 }, unavailable));
    const { error } = (await call()) as { error?: string };
    expect(error).toContain("the sandbox is away");
    expect(error).not.toContain("not found");
  });

  it.each([
    ["ReadLines", () => sandbox.read("/a"), { error: "File '/a' not found" }],
    ["EditFile", () => sandbox.edit("/a", "b", "c"), { error: "Error: File '/a' not found" }],
    ["RemoveFile", () => sandbox.delete("/a"), { error: "Error: '/a' not found" }],
    ["ListDirectory", () => sandbox.ls("/a"), { files: [] }],
    ["SearchFiles", () => sandbox.grep("a", "/a"), { matches: [] }],
    ["GlobFiles", () => sandbox.glob("a", "/a"), { files: [], truncated: false }],
  ])("says of a missing file after %s what deepagents says", async (method, call, wanted) => {
    fake.failures.set(method, [missing()]);
    expect(await call()).toEqual(wanted);
  });

  it("rejects a transfer that the sandbox did not answer", async () => {
    fake.failures.set("WriteFile", Array.from({ length: 20 }, unavailable));
    fake.failures.set("Upload", Array.from({ length: 20 }, unavailable));
    const code = "FILE_OPERATION_FAILED";
    await expect(sandbox.uploadFiles([["/a", new Uint8Array(1)]])).rejects.toMatchObject({ code });
    fake.failures.set("Download", Array.from({ length: 20 }, unavailable));
    await expect(sandbox.downloadFiles(["/a"])).rejects.toMatchObject({ code });
  });

  const most = 256 << 10;
  it.each([
    [0, "WriteFile"],
    [300, "WriteFile"],
    [most, "WriteFile"],
    [most + 1, "Upload"],
    [(1 << 20) + 1, "Upload"],
  ])("sends one file of %i bytes by %s", async (size, call) => {
    const content = Uint8Array.from({ length: size }, (_, i) => i ^ 0xff);
    expect(await sandbox.uploadFiles([["/new/x", content]])).toEqual([{ path: "/new/x", error: null }]);
    expect(readFileSync(fake.file("/new/x")).equals(content)).toBe(true);
    expect(fake.calls).toEqual([call]);
  });

  it("sends several files over one stream, of which invalid ones are none", async () => {
    await sandbox.uploadFiles([
      ["/a", bytes("1")],
      ["/b", bytes("2")],
    ]);
    expect(fake.calls).toEqual(["Upload"]);
    const mixed = await sandbox.uploadFiles([
      ["relative", bytes("1")],
      ["/c", bytes("3")],
    ]);
    expect(mixed.map((r) => r.error)).toEqual(["invalid_path", null]);
    expect(await sandbox.uploadFiles([["relative", bytes("1")]])).toMatchObject([{ error: "invalid_path" }]);
    expect(await sandbox.uploadFiles([])).toEqual([]);
    expect(fake.calls).toEqual(["Upload", "WriteFile"]);
  });

  it.each([
    ["FILE_IS_DIRECTORY", { path: "/x/y" }, "is_directory"],
    ["FILE_READ_ONLY", { path: "/x/y" }, "permission_denied"],
    ["POLICY_DENIED", { policy: "write_deny_prefixes" }, "permission_denied"],
    ["PATH_INVALID", { path: "/x" }, "invalid_path"], // shortened by the server
    ["DISK_FULL", { path: "/x/y" }, "invalid_path"],
  ])("tells of one file that is refused with %s what an upload does", async (reason, metadata, error) => {
    fake.failures.set("WriteFile", [failure(status.UNKNOWN, "no", reason, { metadata })]);
    expect(await sandbox.uploadFiles([["/x/y", bytes("x")]])).toEqual([{ path: "/x/y", error }]);
    expect(await sandbox.uploadFiles([["/forbidden", bytes("x")]])).toMatchObject([
      { error: "permission_denied" },
    ]);
    expect(fake.calls).toEqual(["WriteFile", "WriteFile"]);
  });

  it.each([
    ["PATH_INVALID", { path: "relative" }],
    ["PATH_INVALID", { path: "" }],
    ["FILE_NOT_FOUND", { path: "root_dir" }],
    ["SANDBOX_NOT_FOUND", { sandbox_id: "x" }],
  ])("rejects where %s of %j is not the file's own trouble", async (reason, metadata) => {
    fake.failures.set("WriteFile", [failure(status.UNKNOWN, "no", reason, { metadata })]);
    await expect(sandbox.uploadFiles([["/x/y", bytes("x")]])).rejects.toMatchObject({
      code: "FILE_OPERATION_FAILED",
      cause: { reason },
    });
    expect(fake.calls).toEqual(["WriteFile"]);
  });

  it("repeats a message that broke", async () => {
    const patient = await SandgateSandbox.create({ connection: { address: fake.address } });
    fake.calls.length = 0;
    fake.failures.set("WriteFile", [unavailable(), unavailable()]);
    expect(await patient.uploadFiles([["/x", bytes("resumed")]])).toEqual([{ path: "/x", error: null }]);
    expect(readFileSync(fake.file("/x"), "utf8")).toBe("resumed");
    expect(fake.calls).toEqual(["WriteFile", "WriteFile", "WriteFile"]);
    await patient.close();
  });

  it("notices that the bytes of one file changed on the way", async () => {
    fake.faults = { corruptUpload: true };
    const [result] = await sandbox.uploadFiles([["/x", bytes("x")]]).finally(() => {
      fake.faults = {};
    });
    expect(result?.error).toBe("invalid_path");
    expect(fake.calls).toEqual(["WriteFile", "Upload"]);
  });

  it("gives an error as the output of a command that could not run", async () => {
    fake.failures.set("Execute", [failure(status.NOT_FOUND, "no sandbox here", "SANDBOX_NOT_FOUND")]);
    expect(await sandbox.execute("true")).toEqual({
      // What the server proposes to its caller is nothing that a model can do.
      output:
        "Error: the sandbox no longer exists: it was deleted or its lifetime ended; " +
        "its files and processes are lost",
      exitCode: null,
      truncated: false,
    });
  });

  it("edits by download and upload what no message holds", async () => {
    const old = "x".repeat(100);
    await sandbox.uploadFiles([["/big.txt", bytes(`a${old}b`)]]);
    fake.failures.set("EditFile", [failure(status.RESOURCE_EXHAUSTED, "too large", "MESSAGE_TOO_LARGE")]);
    expect(await sandbox.edit("/big.txt", old, "y")).toMatchObject({ occurrences: 1 });
    const [file] = await sandbox.downloadFiles(["/big.txt"]);
    expect(new TextDecoder().decode(file?.content ?? undefined)).toBe("ayb");
  });

  it("goes on when its listener fails", async () => {
    const warnings = vi.spyOn(process, "emitWarning").mockImplementation(() => {});
    const loud = await SandgateSandbox.create({
      connection: { address: fake.address },
      onOutput: () => {
        throw new Error("the terminal is gone");
      },
    });
    expect((await loud.execute("echo fine")).output).toBe("fine\n");
    expect(warnings).toHaveBeenCalledWith(expect.objectContaining({ message: "the terminal is gone" }));
    warnings.mockRestore();
    await loud.close();
  });

  it("works on after it was suspended and resumed", async () => {
    const own = await SandgateSandbox.create({ connection: { address: fake.address } });
    await own.suspend();
    await own.resume();
    expect(own.sandbox.incarnation).toBe("1'");
    await own.close();
    await expect(own.suspend()).rejects.toMatchObject({ code: "NOT_INITIALIZED" });
  });

  it("makes a new sandbox in place of a failed one, if it may", async () => {
    const connection = { address: fake.address };
    const inThread = (act: () => Promise<unknown>) =>
      RunnableLambda.from(act).invoke(undefined, { configurable: { thread_id: "dead" } });
    const id = threadSandboxId("dead");
    const fail = () => {
      const sandbox = fake.sandboxes.get(id);
      if (sandbox !== undefined) sandbox.state = SandboxState.FAILED;
      const extra = { metadata: { state: "FAILED", sandbox_id: id } };
      const error = failure(status.FAILED_PRECONDITION, "it failed", "SANDBOX_NOT_ACTIVE", extra);
      fake.failures.set("Execute", [error]);
    };
    await using strict = new SandgateThreadBackend({ connection });
    await using backend = new SandgateThreadBackend({ connection, recreate: true });
    for (const one of [strict, backend]) await inThread(() => one.execute("true"));
    fail();
    expect(await inThread(() => strict.execute("true"))).toMatchObject({
      output: expect.stringContaining("sandbox is lost"),
    });
    expect(fake.sandboxes.get(id)).toMatchObject({ state: SandboxState.FAILED });
    fail();
    expect(await inThread(() => backend.execute("true"))).toMatchObject({
      output: expect.stringContaining(RECREATED),
    });
    expect(await inThread(() => backend.execute("echo new"))).toMatchObject({ output: "new\n" });
    // Another process knows the thread by its state.
    fail();
    fake.failures.clear();
    await using other = new SandgateThreadBackend({ connection, recreate: true });
    other.expect("dead");
    expect(await inThread(() => other.execute("true"))).toMatchObject({
      output: expect.stringContaining(RECREATED),
    });
    expect(fake.sandboxes.get(id)).toMatchObject({ state: SandboxState.ACTIVE });
    // A suspended one is not lost.
    const extra = { metadata: { state: "SUSPENDED", sandbox_id: id } };
    const asleep = failure(status.FAILED_PRECONDITION, "resume it first", "SANDBOX_NOT_ACTIVE", extra);
    fake.failures.set("Execute", [asleep]);
    expect(await inThread(() => other.execute("true"))).toMatchObject({
      output: expect.stringContaining("resume it first"),
    });
  });

  it("suspends the sandbox of its thread, and makes none for that", async () => {
    await using backend = new SandgateThreadBackend({ connection: { address: fake.address } });
    const inThread = (act: () => Promise<unknown>) =>
      RunnableLambda.from(act).invoke(undefined, { configurable: { thread_id: "nap" } });
    await expect(inThread(() => backend.suspend())).rejects.toMatchObject({ name: "SandboxNotFoundError" });
    await inThread(() => backend.execute("true"));
    await inThread(() => backend.suspend());
    expect(fake.sandboxes.get(threadSandboxId("nap"))).toMatchObject({ state: SandboxState.SUSPENDED });
    await inThread(() => backend.resume());
    expect(await inThread(() => backend.execute("echo back"))).toMatchObject({ output: "back\n" });
    await expect(backend.suspend()).rejects.toMatchObject({ name: "InvalidRequestError" });
  });

  it("keeps a sandbox that others may have when its first files cannot be written", async () => {
    const provider = new SandgateProvider({ connection: { address: fake.address } });
    const initialFiles = { "/forbidden": "x" };
    const unwritten = { reason: "FILE_PERMISSION_DENIED" };
    await expect(provider.getOrCreate({ sandboxId: "shared", initialFiles })).rejects.toMatchObject(
      unwritten,
    );
    expect(fake.sandboxes.has("shared")).toBe(true);
    const before = fake.sandboxes.size;
    await expect(provider.getOrCreate({ initialFiles })).rejects.toMatchObject(unwritten);
    expect(fake.sandboxes.size).toBe(before);
    provider.close();
  });

  it("says why its first files cannot be written, also where it cannot be deleted", async () => {
    const provider = new SandgateProvider({ connection: { address: fake.address } });
    const options = { connection: { address: fake.address }, initialFiles: { "/forbidden": "x" } };
    for (const make of [
      () => provider.getOrCreate({ initialFiles: options.initialFiles }),
      () => SandgateSandbox.create(options),
    ]) {
      fake.failures.set("DeleteSandbox", [failure(status.PERMISSION_DENIED, "no", "PERMISSION_DENIED")]);
      await expect(make()).rejects.toMatchObject({ reason: "FILE_PERMISSION_DENIED" });
      expect(fake.failures.get("DeleteSandbox")).toEqual([]);
    }
    provider.close();
  });

  it("tells of a lost sandbox in the same words as the Python client", () => {
    const python = new URL("../../python/src/sandgate/deepagents/_acquire.py", import.meta.url);
    expect(readFileSync(python, "utf8")).toContain(RECREATED);
  });

  it("leaves nothing behind when its first files cannot be written", async () => {
    const before = fake.sandboxes.size;
    const initialFiles = { "/forbidden": "x" };
    const create = SandgateSandbox.create({ connection: { address: fake.address }, initialFiles });
    await expect(create).rejects.toMatchObject({ reason: "FILE_PERMISSION_DENIED" });
    expect(fake.sandboxes.size).toBe(before);
  });
});
