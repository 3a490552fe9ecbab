import { describe, expect, it } from "vitest";
import { policyOf } from "../src/deepagents/policy.js";
import { InvalidRequestError } from "../src/index.js";

describe("policyOf", () => {
  it.each([
    ["nothing", {}, undefined],
    [
      "no virtual root: as they are, without a slash at the end",
      { rootDir: "/data/", allowPrefixes: ["/data/out/", "/"], denyPrefixes: ["/data/x//"] },
      { rootDir: "/data", writeAllowPrefixes: ["/data/out", "/"], writeDenyPrefixes: ["/data/x"] },
    ],
    [
      "a virtual root: what is allowed, relative to it",
      { virtualMode: true, allowPrefixes: ["/workspace/out/"] },
      { rootDir: "/workspace", virtual: true, writeAllowPrefixes: ["/out"] },
    ],
    [
      "a virtual root: what holds it allows all of it",
      { virtualMode: true, rootDir: "/a/b", allowPrefixes: ["/a", "/a/b", "/"] },
      { rootDir: "/a/b", virtual: true, writeAllowPrefixes: ["/", "/", "/"] },
    ],
    [
      "a virtual root: what is denied, both as it is and relative to it",
      { virtualMode: true, denyPrefixes: ["/etc", "/workspace/shut", "/workspace2"] },
      {
        rootDir: "/workspace",
        virtual: true,
        writeDenyPrefixes: ["/etc", "/workspace/shut", "/workspace2", "/shut"],
      },
    ],
    [
      "a virtual root that is the whole sandbox",
      { virtualMode: true, rootDir: "/", allowPrefixes: ["/out"], denyPrefixes: ["/out/x"] },
      { rootDir: "/", virtual: true, writeAllowPrefixes: ["/out"], writeDenyPrefixes: ["/out/x", "/out/x"] },
    ],
    [
      "a virtual root that is not named",
      { virtualMode: true, rootDir: "", allowPrefixes: ["/workspace/out"] },
      { rootDir: "/workspace", virtual: true, writeAllowPrefixes: ["/out"] },
    ],
    [
      "a virtual root: what is denied and holds it denies all of it",
      { virtualMode: true, rootDir: "/a/b", denyPrefixes: ["/a"] },
      { rootDir: "/a/b", virtual: true, writeDenyPrefixes: ["/a", "/"] },
    ],
    [
      "a virtual root of `access`, which keeps what has no short name",
      {
        access: { rootDir: "/data", virtual: true, readDenyPrefixes: ["/secret"] },
        allowPrefixes: ["/data/out"],
        denyPrefixes: ["/data/out/x"],
      },
      {
        rootDir: "/data",
        virtual: true,
        readDenyPrefixes: ["/secret"],
        writeAllowPrefixes: ["/out"],
        writeDenyPrefixes: ["/data/out/x", "/out/x"],
      },
    ],
    [
      "short names before the same of `access`",
      { access: { rootDir: "/data", virtual: true }, virtualMode: false, allowPrefixes: ["/data/out"] },
      { rootDir: "/data", virtual: false, writeAllowPrefixes: ["/data/out"] },
    ],
  ])("S1-20 C14 gives the server its own terms: %s", (_, options, policy) => {
    expect(policyOf(options)).toEqual(policy);
  });

  it.each(["/etc", "/workspace2", "out", ""])(
    "refuses to allow %j, which is outside a virtual root",
    (prefix) => {
      const policy = () => policyOf({ virtualMode: true, allowPrefixes: [prefix] });
      expect(policy).toThrow(InvalidRequestError);
      expect(policy).toThrow(`${prefix} is not beneath rootDir, /workspace`);
    },
  );
});
