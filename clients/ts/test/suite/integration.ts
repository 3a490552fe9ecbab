import { expect, it } from "vitest";
import type { Bench } from "../deepagents.suite.js";

/** Several methods on the same files. */
export function integrationCases(bench: Bench): void {
  it("writes, reads, edits and reads again", async () => {
    const { sandbox } = bench;
    const path = `${bench.directory()}/story.txt`;
    await sandbox.write(path, "Once upon a time\nthere was a file\n");
    expect((await sandbox.read(path)).content).toContain("there was a file");
    expect((await sandbox.edit(path, "a file", "an edit")).occurrences).toBe(1);
    expect((await sandbox.read(path)).content).toBe("Once upon a time\nthere was an edit");
    expect(await bench.cat(path)).toBe("Once upon a time\nthere was an edit\n");
  });

  it("lists, globs and greps one tree", async () => {
    const { sandbox } = bench;
    const directory = await bench.tree({ "a.txt": "needle", "sub/b.txt": "needle", "sub/c/d.txt": "hay" });
    expect((await sandbox.ls(directory)).files).toHaveLength(2);
    expect((await sandbox.glob("**/*.txt", directory)).files).toHaveLength(3);
    expect((await sandbox.grep("needle", directory)).matches).toHaveLength(2);
  });

  it("deletes files and directories", async () => {
    const { sandbox } = bench;
    const directory = await bench.tree({ "a.txt": "", "sub/b.txt": "", "sub/c.txt": "" });
    expect(await sandbox.delete(`${directory}/sub`)).toEqual({ path: `${directory}/sub`, filesUpdate: null });
    expect((await sandbox.delete(`${directory}/a.txt`)).error).toBeUndefined();
    expect((await sandbox.ls(directory)).files).toEqual([]);
    expect(await sandbox.delete(`${directory}/a.txt`)).toEqual({
      error: `Error: '${directory}/a.txt' not found`,
    });
  });

  it("takes a relative path as one below the working directory", async () => {
    const { sandbox } = bench;
    const where = (await sandbox.execute("pwd")).output.trim();
    await sandbox.write("notes/relative.txt", "here");
    expect((await sandbox.execute("cat notes/relative.txt")).output).toBe("here");
    expect((await sandbox.read("notes/relative.txt")).content).toBe("here");
    expect((await sandbox.ls("notes")).files?.map((f) => f.path)).toEqual([`${where}/notes/relative.txt`]);
  });

  it("finds files while a command runs", async () => {
    const { sandbox } = bench;
    const directory = await bench.tree({ "a.txt": "needle" });
    // The command ends only when they were found.
    const running = sandbox.execute(`until test -e ${directory}/found; do sleep 0.1; done; echo slept`);
    expect((await sandbox.grep("needle", directory)).matches).toHaveLength(1);
    expect((await sandbox.glob("*.txt", directory)).files).toHaveLength(1);
    await sandbox.write(`${directory}/found`, "");
    expect((await running).output).toBe("slept\n");
  });
}
