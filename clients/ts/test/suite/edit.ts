import { expect, it } from "vitest";
import type { Bench } from "../deepagents.suite.js";

interface Case {
  before: string;
  old: string;
  with: string;
  all?: boolean;
  after?: string;
  occurrences?: number;
  error?: string;
}

const LONG = "x".repeat(1000);

const CASES: Record<string, Case> = {
  "replaces what occurs once": { before: "Hello world", old: "world", with: "there", after: "Hello there" },
  "refuses what occurs twice": { before: "a b a", old: "a", with: "c", error: "Multiple occurrences" },
  "replaces all": { before: "a b a c a", old: "a", with: "d", all: true, after: "d b d c d", occurrences: 3 },
  "replaces all with the same length": {
    before: "aa aa",
    old: "aa",
    with: "bb",
    all: true,
    after: "bb bb",
    occurrences: 2,
  },
  "does not find what is not there": { before: "Hello", old: "bye", with: "x", error: "not found" },
  "knows no regular expression": { before: "a.*b [c] $1", old: ".*b [c] $1", with: "$& $1", after: "a$& $1" },
  "replaces several lines": {
    before: "1\n2\n3\n4",
    old: "2\n3",
    with: "two\nthree\nmore",
    after: "1\ntwo\nthree\nmore\n4",
  },
  deletes: { before: "keep this", old: " this", with: "", after: "keep" },
  "takes equal texts": { before: "same", old: "same", with: "same", after: "same" },
  "takes equal texts that occur twice": {
    before: "same same",
    old: "same",
    with: "same",
    after: "same same",
  },
  "replaces unicode": { before: "Hello 👋 世界", old: "👋 世", with: "🌍 ö", after: "Hello 🌍 ö界" },
  "keeps white space": {
    before: "  two\n\tone\n",
    old: "\tone",
    with: "    four",
    after: "  two\n    four\n",
  },
  "replaces 1000 characters": { before: `a${LONG}b`, old: LONG, with: `${LONG}y`, after: `a${LONG}yb` },
  "keeps line ends": { before: "a\r\nb\r\nc", old: "b", with: "B", after: "a\r\nB\r\nc" },
  "finds lines with other ends": { before: "a\r\nb\r\nc", old: "a\nb", with: "x\ny", after: "x\r\ny\r\nc" },
  "replaces a part of a word": { before: "foobar", old: "oba", with: "O", after: "foOr" },
  "fills an empty file": { before: "", old: "", with: "new", after: "new" },
  "leaves an empty file empty": { before: "", old: "", with: "", after: "", occurrences: 0 },
  "does not fill what is not empty": { before: "full", old: "", with: "x", error: "must not be empty" },
};

/** edit. */
export function editCases(bench: Bench): void {
  it.each(Object.entries(CASES))(
    "%s",
    async (_name, { before, old, with: by, all, after, occurrences, error }) => {
      const path = `${await bench.tree({ "file.txt": before })}/file.txt`;
      const result = await bench.sandbox.edit(path, old, by, all);
      if (error === undefined) {
        expect(result).toEqual({ path, filesUpdate: null, occurrences: occurrences ?? 1 });
      } else {
        expect(result.error).toContain(error);
        expect(result.occurrences).toBeUndefined();
      }
      const [file] = await bench.sandbox.downloadFiles([path]);
      expect(new TextDecoder().decode(file?.content ?? undefined)).toBe(after ?? before);
    },
  );

  it("does not edit what is not there", async () => {
    const path = `${bench.directory()}/none.txt`;
    expect(await bench.sandbox.edit(path, "a", "b")).toEqual({ error: `Error: File '${path}' not found` });
  });

  it("does not damage what is not UTF-8", async () => {
    const content = Buffer.concat([Buffer.from("caf"), Buffer.of(0xe9, 0xff), Buffer.from(" au lait")]);
    const path = `${await bench.tree({ "latin.txt": content })}/latin.txt`;
    expect((await bench.sandbox.edit(path, "lait", "lac")).error).toContain("not a text file");
    const [file] = await bench.sandbox.downloadFiles([path]);
    expect(Buffer.from(file?.content ?? []).equals(content)).toBe(true);
  });

  it("takes texts of megabytes", async () => {
    const history = "a line of the conversation\n".repeat(80_000);
    const path = `${await bench.tree({ "history.md": history })}/history.md`;
    const result = await bench.sandbox.edit(path, history, `${history}and one more\n`);
    expect(result).toMatchObject({ occurrences: 1 });
    expect((await bench.sandbox.execute(`tail -n 1 '${path}'; wc -l < '${path}'`)).output).toMatch(
      /^and one more\n\s*80001\n$/,
    );
  });

  it("edits one file many times at once without losing one", async () => {
    const marks = Array.from({ length: 20 }, (_, i) => `<${i}>`);
    const path = `${await bench.tree({ "marks.txt": marks.join("\n") })}/marks.txt`;
    const edits = marks.map((mark) => bench.sandbox.edit(path, mark, mark.replace("<", "done <")));
    for (const result of await Promise.all(edits)) expect(result.error).toBeUndefined();
    expect(await bench.cat(path)).toBe(marks.map((mark) => `done ${mark}`).join("\n"));
  });
}
