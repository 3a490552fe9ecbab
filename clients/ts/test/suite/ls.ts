import { expect, it } from "vitest";
import type { Bench } from "../deepagents.suite.js";

/** ls. */
export function lsCases(bench: Bench): void {
  const bare = (path: string) => path.replace(/\/$/, "");
  const names = async (directory: string) => {
    const { files, error } = await bench.sandbox.ls(directory);
    expect(error).toBeUndefined();
    return (files ?? []).map((f) => bare(f.path)).sort();
  };

  it("gives absolute paths, sizes and times", async () => {
    const directory = await bench.tree({ "file.txt": "12345" });
    const { files } = await bench.sandbox.ls(directory);
    expect(files).toHaveLength(1);
    expect(files?.[0]).toMatchObject({ path: `${directory}/file.txt`, is_dir: false, size: 5 });
    expect(Math.abs(Date.now() - Date.parse(files?.[0]?.modified_at ?? ""))).toBeLessThan(600_000);
  });

  it("tells files from directories and does not go down", async () => {
    const directory = await bench.tree({ "a.txt": "", "sub/b.txt": "", "sub/deeper/c.txt": "" });
    const { files } = await bench.sandbox.ls(directory);
    const found = Object.fromEntries((files ?? []).map((f) => [bare(f.path), f.is_dir]));
    expect(found).toEqual({ [`${directory}/a.txt`]: false, [`${directory}/sub`]: true });
  });

  it("gives nothing for an empty directory", async () => {
    const directory = bench.directory();
    await bench.sandbox.execute(`mkdir -p '${directory}'`);
    expect(await bench.sandbox.ls(directory)).toEqual({ files: [] });
  });

  it("gives nothing for a directory that is not there", async () => {
    const result = await bench.sandbox.ls("/no/such/directory");
    expect(result.error).toBeUndefined();
    expect(result.files).toEqual([]);
  });

  it.each<[string, string[]]>([
    ["hidden names", [".hidden", "seen"]],
    ["spaces", ["a b.txt", " c "]],
    ["unicode", ["日本.txt", "ümläut", "👋"]],
    ["special characters", ["a(1).txt", "b[2].txt", "c-3_d.txt", "e'f", 'g"h', "i$j", "k;l", "m\tn", "o\np"]],
  ])("gives %s", async (_name, wanted) => {
    const directory = await bench.tree(Object.fromEntries(wanted.map((name) => [name, ""])));
    expect(await names(directory)).toEqual(wanted.map((name) => `${directory}/${name}`).sort());
  });

  it("gives 50 files", async () => {
    const files = Object.fromEntries(Array.from({ length: 50 }, (_, i) => [`file_${i}.txt`, ""]));
    expect(await names(await bench.tree(files))).toHaveLength(50);
  });

  it("takes a slash at the end", async () => {
    const directory = await bench.tree({ "x.txt": "" });
    expect(await names(`${directory}/`)).toEqual([`${directory}/x.txt`]);
  });

  it("takes a link to a directory for one", async () => {
    const directory = await bench.tree({ "real/x": "" });
    await bench.sandbox.execute(`ln -s real '${directory}/link'; ln -s nowhere '${directory}/dangling'`);
    const { files } = await bench.sandbox.ls(directory);
    expect(
      (files ?? [])
        .filter((f) => f.is_dir)
        .map((f) => bare(f.path))
        .sort(),
    ).toEqual([`${directory}/link`, `${directory}/real`]);
  });

  it("says that a file is no directory", async () => {
    const directory = await bench.tree({ "x.txt": "" });
    expect((await bench.sandbox.ls(`${directory}/x.txt`)).error).toContain("not a directory");
  });

  it("lists the root", async () => {
    expect(await names("/")).toEqual(expect.arrayContaining(["/tmp", "/usr"]));
  });
}
