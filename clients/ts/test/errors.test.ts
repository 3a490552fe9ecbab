import { readFileSync } from "node:fs";
import { describe, expect, it, vi } from "vitest";
import * as errors from "../src/errors.js";
import { ErrorReason } from "../src/gen/sandbox/v1/sandbox_errors_pb.js";
import { decodeStatusDetails } from "../src/status.js";
import { failure } from "./failure.js";

const shared = (name: string): Record<string, string> =>
  JSON.parse(readFileSync(new URL(`../../${name}`, import.meta.url), "utf8"));

const names = (table: Readonly<Record<string, errors.ErrorClass | undefined>>) =>
  Object.fromEntries(Object.entries(table).map(([key, of]) => [key, of?.prototype.name]));

describe("instanceof", () => {
  it("knows the errors of another copy of the package", async () => {
    vi.resetModules();
    const other: typeof errors = await import("../src/errors.js");
    expect(other.FileError).not.toBe(errors.FileError);
    class Own extends errors.FileError {}
    const error: unknown = new other.FileError("no", { code: "NOT_FOUND" });
    const of = [errors.SandgateError, errors.FileError, errors.InternalError, Own, other.FileError];
    expect(of.map((one) => error instanceof one)).toEqual([true, true, false, false, true]);
    const own: unknown = new Own("own", { code: "NOT_FOUND" });
    expect(of.map((one) => own instanceof one)).toEqual([true, true, false, true, true]);
    expect(
      [null, undefined, "x", new Error("x")].map((e) => (e as unknown) instanceof errors.SandgateError),
    ).toEqual([false, false, false, false]);
  });
});

const noDetails = { reason: "", metadata: {}, violations: [] };

describe("the error table", () => {
  it("is the one that all clients share", () => {
    expect(names(errors.CLASS_BY_REASON)).toEqual(shared("errors.json"));
    expect(names(errors.CLASS_BY_CODE)).toEqual(shared("error_codes.json"));
  });

  it("has every reason of the API", () => {
    const reasons = Object.keys(ErrorReason).filter(
      (key) => Number.isNaN(Number(key)) && key !== "UNSPECIFIED",
    );
    expect(Object.keys(errors.CLASS_BY_REASON).sort()).toEqual(reasons.sort());
  });

  it("exports every class under its own name", () => {
    for (const name of new Set([...Object.values(shared("errors.json")), "SandgateError"])) {
      const of = (errors as unknown as Record<string, errors.ErrorClass>)[name];
      expect(of?.prototype.name).toBe(name);
      expect(of?.prototype).toBeInstanceOf(name === "SandgateError" ? Error : errors.SandgateError);
    }
  });
});

describe("errorFromStatus", () => {
  it.each([
    [5, "SANDBOX_NOT_FOUND", errors.SandboxNotFoundError, "NOT_FOUND"],
    [14, "", errors.UnavailableError, "UNAVAILABLE"],
    [9, "A_REASON_OF_A_LATER_VERSION", errors.SandgateError, "FAILED_PRECONDITION"],
    [8, "A_REASON_OF_A_LATER_VERSION", errors.QuotaExceededError, "RESOURCE_EXHAUSTED"],
    [99, "", errors.InternalError, "UNKNOWN"],
  ])("code %i with reason %j", (code, reason, of, name) => {
    const error = errors.errorFromStatus(code, "message", { ...noDetails, reason }, "id");
    expect(error.constructor).toBe(of);
    expect(error).toMatchObject({ code: name, reason, message: "message", requestId: "id" });
  });

  it("says which fields were refused", () => {
    const violations = [{ field: "path", description: "is relative" }];
    const error = errors.errorFromStatus(3, "malformed", { ...noDetails, violations }, "");
    expect(error.message).toBe("malformed; path: is relative");
    expect(error.violations).toEqual(violations);
  });
});

describe("decodeStatusDetails", () => {
  const decode = (reason: string, extra = {}) =>
    decodeStatusDetails(
      failure(5, "gone", reason, extra).metadata.get("grpc-status-details-bin")[0] as unknown as Uint8Array,
    );

  it("reads reason, metadata, violations and delay", () => {
    const extra = {
      metadata: { sandbox_id: "a", "key ü": "value ü" },
      violations: [{ field: "f", description: "d" }],
      retryAfterMs: 1_500,
    };
    expect(decode("SANDBOX_NOT_FOUND", extra)).toEqual({ reason: "SANDBOX_NOT_FOUND", ...extra });
  });

  it("ignores what is no status", () => {
    const whole = failure(5, "gone", "X").metadata.get("grpc-status-details-bin")[0] as Buffer;
    for (let length = 0; length < whole.length; length++) {
      expect(() => decodeStatusDetails(whole.subarray(0, length))).not.toThrow();
    }
    expect(decodeStatusDetails(Buffer.from([0xff, 0xff, 0xff]))).toEqual(noDetails);
  });

  it("never throws on random bytes", () => {
    let seed = 1;
    for (let round = 0; round < 2_000; round++) {
      const bytes = Uint8Array.from({ length: round % 40 }, () => {
        seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648;
        return seed >> 16;
      });
      expect(() => decodeStatusDetails(bytes)).not.toThrow();
    }
  });
});
