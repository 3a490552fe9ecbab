import { expect, it } from "vitest";
import type { Bench } from "../deepagents.suite.js";

/** grep. */
export function grepCases(bench: Bench): void {
  interface Case {
    files: Record<string, string>;
    pattern: string;
    glob?: string;
    found: [name: string, line: number, text: string][];
  }
  const cases: Record<string, Case> = {
    "finds a text": { files: { "a.txt": "Hello\nworld" }, pattern: "wor", found: [["a.txt", 2, "world"]] },
    "looks into every file": {
      files: { "a.txt": "x needle", "b.txt": "none", "c.py": "needle()" },
      pattern: "needle",
      found: [
        ["a.txt", 1, "x needle"],
        ["c.py", 1, "needle()"],
      ],
    },
    "looks only where the glob says": {
      files: { "a.py": "needle", "b.txt": "needle", "sub/c.py": "needle" },
      pattern: "needle",
      glob: "*.py",
      found: [
        ["a.py", 1, "needle"],
        ["sub/c.py", 1, "needle"],
      ],
    },
    "takes a glob with directories": {
      files: { "a.py": "needle", "sub/b.py": "needle", "sub/deep/c.py": "needle" },
      pattern: "needle",
      glob: "sub/**/*.py",
      found: [
        ["sub/b.py", 1, "needle"],
        ["sub/deep/c.py", 1, "needle"],
      ],
    },
    "finds nothing": { files: { "a.txt": "hay" }, pattern: "needle", found: [] },
    "finds every line": {
      files: { "a.txt": "x\ny\nx\ny\nx" },
      pattern: "x",
      found: [
        ["a.txt", 1, "x"],
        ["a.txt", 3, "x"],
        ["a.txt", 5, "x"],
      ],
    },
    "knows no regular expression": {
      files: { "a.txt": "a.c\nabc\na*c" },
      pattern: "a.c",
      found: [["a.txt", 1, "a.c"]],
    },
    "finds unicode": { files: { "a.txt": "hay\n日本 ü" }, pattern: "本 ü", found: [["a.txt", 2, "日本 ü"]] },
    "tells capitals apart": {
      files: { "a.txt": "Needle\nneedle" },
      pattern: "needle",
      found: [["a.txt", 2, "needle"]],
    },
    "takes special characters": {
      files: { "a.txt": "x = \"$y\" && 'z' | -e (q)" },
      pattern: "\"$y\" && 'z' | -e (q)",
      found: [["a.txt", 1, "x = \"$y\" && 'z' | -e (q)"]],
    },
    "takes a pattern that looks like an option": {
      files: { "a.txt": "-rf" },
      pattern: "-rf",
      found: [["a.txt", 1, "-rf"]],
    },
    "takes colons in names and lines": {
      files: { "t:1.txt": "k:v:needle" },
      pattern: "needle",
      found: [["t:1.txt", 1, "k:v:needle"]],
    },
    "goes down": {
      files: { "1/2/3/a.txt": "needle", "b.txt": "needle" },
      pattern: "needle",
      found: [
        ["1/2/3/a.txt", 1, "needle"],
        ["b.txt", 1, "needle"],
      ],
    },
    "skips binary types": {
      files: { "a.png": "needle", "a.txt": "needle" },
      pattern: "needle",
      found: [["a.txt", 1, "needle"]],
    },
  };

  it.each(Object.entries(cases))("%s", async (_name, { files, pattern, glob, found }) => {
    const directory = await bench.tree(files);
    const result = await bench.sandbox.grep(pattern, directory, glob ?? null);
    expect(result.error).toBeUndefined();
    expect(result.matches).toEqual(
      found.map(([name, line, text]) => ({ path: `${directory}/${name}`, line, text })),
    );
    expect(result.truncated).toBeUndefined();
  });

  it("finds nothing in an empty directory or in none", async () => {
    const directory = bench.directory();
    expect(await bench.sandbox.grep("x", directory)).toEqual({ matches: [] });
    await bench.sandbox.execute(`mkdir -p '${directory}'`);
    expect(await bench.sandbox.grep("x", directory)).toEqual({ matches: [] });
  });

  it("looks into one file", async () => {
    const path = `${await bench.tree({ "a.txt": "x\ny" })}/a.txt`;
    expect((await bench.sandbox.grep("y", path)).matches).toEqual([{ path, line: 2, text: "y" }]);
  });

  it.each([
    [2, 2, true],
    [3, 3, undefined],
    [4, 3, undefined],
  ])("gives at most %i matches and says whether there are more", async (most, count, truncated) => {
    const directory = await bench.tree({ "a.txt": "x\nx\nx" });
    const result = await bench.sandbox.grep("x", directory, null, most);
    expect(result.matches).toHaveLength(count);
    expect(result.truncated).toBe(truncated);
  });
}

/** glob. */
export function globCases(bench: Bench): void {
  interface Case {
    files: string[];
    pattern: string;
    found: string[];
  }
  const cases: Record<string, Case> = {
    "gives relative paths": { files: ["a.txt", "b.py"], pattern: "*.txt", found: ["a.txt"] },
    "goes down with **": {
      files: ["a.txt", "sub/b.txt", "sub/deep/c.txt", "sub/d.py"],
      pattern: "**/*.txt",
      found: ["a.txt", "sub/b.txt", "sub/deep/c.txt"],
    },
    "does not go down without": { files: ["a.txt", "sub/b.txt"], pattern: "*.txt", found: ["a.txt"] },
    "finds nothing": { files: ["a.txt"], pattern: "*.xyz", found: [] },
    "finds directories too": {
      files: ["one/x", "two/y", "file"],
      pattern: "*",
      found: ["file", "one", "two"],
    },
    "finds an extension": { files: ["a.py", "b.pyc", "c.py"], pattern: "*.py", found: ["a.py", "c.py"] },
    "finds hidden names when asked": {
      files: [".hidden", ".config/x", "seen"],
      pattern: ".*",
      found: [".config", ".hidden"],
    },
    "knows classes": {
      files: ["file1", "file2", "file3", "fileA"],
      pattern: "file[12]",
      found: ["file1", "file2"],
    },
    "knows ?": { files: ["a1", "a22", "a3"], pattern: "a?", found: ["a1", "a3"] },
    "knows alternatives": { files: ["a.js", "b.ts", "c.css"], pattern: "*.{js,ts}", found: ["a.js", "b.ts"] },
    "finds deep files": { files: ["a/b/c/d/e.txt"], pattern: "a/**/e.txt", found: ["a/b/c/d/e.txt"] },
    "finds below one directory": {
      files: ["src/a.ts", "src/x/b.ts", "test/c.ts"],
      pattern: "src/*.ts",
      found: ["src/a.ts"],
    },
    "takes spaces and unicode": { files: ["a b/日 本.txt"], pattern: "a b/*.txt", found: ["a b/日 本.txt"] },
  };

  it.each(Object.entries(cases))("%s", async (_name, { files, pattern, found }) => {
    const directory = await bench.tree(Object.fromEntries(files.map((name) => [name, "12"])));
    for (const path of [directory, `${directory}/`]) {
      const result = await bench.sandbox.glob(pattern, path);
      expect(result.error).toBeUndefined();
      expect(result.truncated).toBe(false);
      expect(result.files?.map((f) => f.path).sort()).toEqual(found);
    }
  });

  it("tells directories from files", async () => {
    const directory = await bench.tree({ "sub/x": "", file: "123" });
    const { files } = await bench.sandbox.glob("*", directory);
    expect(files?.map(({ path, is_dir }) => [path, is_dir]).sort()).toEqual([
      ["file", false],
      ["sub", true],
    ]);
    expect(files?.find((f) => f.path === "file")?.size).toBe(3);
  });

  it("finds nothing in a directory that is not there", async () => {
    expect(await bench.sandbox.glob("*", "/no/such/directory")).toEqual({ files: [], truncated: false });
  });

  it("refuses a pattern that leads out", async () => {
    expect((await bench.sandbox.glob("../*", await bench.tree({ x: "" }))).error).toContain("../*");
  });
}
