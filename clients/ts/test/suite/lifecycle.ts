import { isSandboxBackend, isSandboxProtocol } from "deepagents";
import { expect, it } from "vitest";
import type { Bench } from "../deepagents.suite.js";

/** From the constructor to close. */
export function lifecycleCases(bench: Bench): void {
  it("has an id that is not empty, from the beginning", () => {
    const sandbox = bench.make();
    expect(typeof sandbox.id).toBe("string");
    expect(sandbox.id.length).toBeGreaterThan(0);
    expect(sandbox.id).toBe(sandbox.id);
    expect(isSandboxBackend(sandbox)).toBe(true);
    expect(isSandboxProtocol(sandbox)).toBe(true);
  });

  it("runs once it was made", () => {
    expect(bench.sandbox.isRunning).toBe(true);
  });

  it("does not run after close, which may be called again", async () => {
    const sandbox = bench.make();
    await sandbox.initialize();
    await Promise.all([sandbox.close(), sandbox.close()]);
    await sandbox.close();
    expect(sandbox.isRunning).toBe(false);
    await expect(sandbox.execute("true")).rejects.toMatchObject({ code: "NOT_INITIALIZED" });
  });

  it("runs after initialize and not before", async () => {
    const sandbox = bench.make();
    expect(sandbox.isRunning).toBe(false);
    await expect(sandbox.ls("/")).rejects.toMatchObject({ code: "NOT_INITIALIZED" });
    const { id } = sandbox;
    await Promise.all([sandbox.initialize(), sandbox.initialize()]);
    expect(sandbox.isRunning).toBe(true);
    expect(sandbox.id).toBe(id);
    await sandbox.close();
  });

  it("can be closed before it was made", async () => {
    const sandbox = bench.make();
    await sandbox.close();
    expect(sandbox.isRunning).toBe(false);
  });
}

/** Files that are there before the first command. */
export function initialFilesCases(bench: Bench): void {
  const withFiles = async (
    initialFiles: Record<string, string | Uint8Array>,
    check: (sandbox: Bench["sandbox"]) => Promise<void>,
  ) => {
    const sandbox = bench.make({ initialFiles });
    try {
      await sandbox.initialize();
      await check(sandbox);
    } finally {
      await sandbox.close();
    }
  };
  const { root } = bench;

  it("are there for commands, nested ones too", () =>
    withFiles({ [`${root}/a.txt`]: "A", [`${root}/sub/b.txt`]: "B" }, async (sandbox) => {
      expect((await sandbox.execute(`cat ${root}/a.txt ${root}/sub/b.txt`)).output).toBe("AB");
    }));

  it("may lie deep", () =>
    withFiles({ [`${root}/1/2/3/4/5/deep.txt`]: "deep" }, async (sandbox) => {
      expect((await sandbox.execute(`cat ${root}/1/2/3/4/5/deep.txt`)).output).toBe("deep");
    }));

  it("may be none", () =>
    withFiles({}, async (sandbox) => {
      expect((await sandbox.execute("echo fine")).output).toBe("fine\n");
    }));

  it("can be read", () =>
    withFiles({ [`${root}/read.txt`]: "to be read" }, async (sandbox) => {
      expect((await sandbox.read(`${root}/read.txt`)).content).toBe("to be read");
    }));

  it("can be downloaded, bytes as they were", () =>
    withFiles({ [`${root}/bytes`]: Uint8Array.of(0, 255, 10) }, async (sandbox) => {
      const [file] = await sandbox.downloadFiles([`${root}/bytes`]);
      expect([...(file?.content ?? [])]).toEqual([0, 255, 10]);
    }));

  it("can be run", () =>
    withFiles({ [`${root}/run.sh`]: "echo ran $1" }, async (sandbox) => {
      expect((await sandbox.execute(`sh ${root}/run.sh well`)).output).toBe("ran well\n");
    }));

  it("are listed; a relative one is below the working directory", () =>
    withFiles({ [`${root}/x`]: "", [`${root}/y`]: "", "relative.txt": "here" }, async (sandbox) => {
      const { files } = await sandbox.ls(root);
      expect(files?.map((f) => f.path).sort()).toEqual([`${root}/x`, `${root}/y`]);
      expect((await sandbox.execute("cat relative.txt")).output).toBe("here");
    }));
}
