import { expect, it } from "vitest";
import type { Bench } from "../deepagents.suite.js";

const TEN = Array.from({ length: 10 }, (_, i) => `Row_${i + 1}_content`);

/** read and readRaw. */
export function readCases(bench: Bench): void {
  const rows = async () => `${await bench.tree({ "rows.txt": `${TEN.join("\n")}\n` })}/rows.txt`;

  it("reads text as it is, without numbers", async () => {
    const path = `${await bench.tree({ "file.txt": "first\n\tsecond \n" })}/file.txt`;
    expect(await bench.sandbox.read(path)).toEqual({
      content: "first\n\tsecond ",
      mimeType: "text/plain",
      totalLines: 2,
      startLine: 1,
      endLine: 2,
    });
  });

  it("says that a file is not found", async () => {
    const result = await bench.sandbox.read("/no/such/file.txt");
    expect(result).toEqual({ error: "File '/no/such/file.txt' not found" });
  });

  it("says that a file is empty", async () => {
    const path = `${await bench.tree({ "empty.txt": "" })}/empty.txt`;
    const result = await bench.sandbox.read(path);
    expect(result.error).toBeUndefined();
    expect(result.content).toBe("System reminder: File exists but has empty contents");
  });

  it.each([
    ["an offset", 5, 500, 5, 10, undefined],
    ["a limit", 0, 3, 0, 3, 3],
    ["both", 3, 4, 3, 7, 7],
    ["the last line", 9, 1, 9, 10, undefined],
    ["fractions", 1.9, 2.9, 1, 3, 3],
    ["a negative offset", -4, 2, 0, 2, 2],
  ])("reads with %s", async (_name, offset, limit, from, to, next) => {
    const result = await bench.sandbox.read(await rows(), offset, limit);
    expect(result.content).toBe(TEN.slice(from, to).join("\n"));
    expect(result).toMatchObject({ startLine: from + 1, endLine: to });
    expect(result.nextOffset).toBe(next);
  });

  it("reads 500 lines by default", async () => {
    const path = `${await bench.tree({ "many.txt": "x\n".repeat(1200) })}/many.txt`;
    expect(await bench.sandbox.read(path)).toMatchObject({ endLine: 500, nextOffset: 500 });
  });

  it("reads no line for a limit of 0", async () => {
    const result = await bench.sandbox.read(await rows(), 0, 0);
    expect(result).toEqual({ content: "", mimeType: "text/plain" });
  });

  it.each([10, 100])("reads no line from offset %i on", async (offset) => {
    const result = await bench.sandbox.read(await rows(), offset, 10);
    expect(result).toEqual({ content: "", mimeType: "text/plain" });
  });

  it("reads unicode", async () => {
    const path = `${await bench.tree({ "u.txt": "Hello 👋 世界\nПривет" })}/u.txt`;
    expect((await bench.sandbox.read(path)).content).toBe("Hello 👋 世界\nПривет");
  });

  it("reads long lines", async () => {
    const path = `${await bench.tree({ "long.txt": `${"x".repeat(3000)}\nshort` })}/long.txt`;
    expect((await bench.sandbox.read(path)).content).toBe(`${"x".repeat(3000)}\nshort`);
  });

  it("reads a large file piece by piece", async () => {
    const all = Array.from({ length: 1000 }, (_, i) => `Line_${String(i).padStart(4, "0")}`);
    const path = `${await bench.tree({ "large.txt": all.join("\n") })}/large.txt`;
    const read: string[] = [];
    for (let offset: number | undefined = 0; offset !== undefined; ) {
      const page = await bench.sandbox.read(path, offset, 300);
      read.push(String(page.content));
      offset = page.nextOffset;
    }
    expect(read.join("\n")).toBe(all.join("\n"));
  });

  it("gives the bytes of a binary type", async () => {
    const bytes = Uint8Array.from({ length: 256 }, (_, i) => i);
    const path = `${await bench.tree({ "all.png": bytes })}/all.png`;
    const result = await bench.sandbox.read(path);
    expect(result.mimeType).toBe("image/png");
    expect(result.content).toBeInstanceOf(Uint8Array);
    expect([...(result.content as Uint8Array)]).toEqual([...bytes]);
    expect(await bench.sandbox.read("/no/such.png")).toEqual({ error: "File '/no/such.png' not found" });
  });

  it("reads another encoding as well as it can, and no binary as text", async () => {
    const latin = Buffer.concat([Buffer.from("caf"), Buffer.of(0xe9), Buffer.from("\nsecond\nthird\n")]);
    const directory = await bench.tree({ "latin.txt": latin, "data.bin": Uint8Array.of(0xff, 0, 1) });
    expect(await bench.sandbox.read(`${directory}/latin.txt`, 0, 2)).toMatchObject({
      content: "caf\ufffd\nsecond",
      totalLines: 3,
      nextOffset: 2,
    });
    expect((await bench.sandbox.read(`${directory}/data.bin`)).error).toContain("not a text file");
  });

  it("does not call a directory missing", async () => {
    const directory = await bench.tree({ "x.txt": "" });
    const { error } = await bench.sandbox.read(directory);
    expect(error).toContain(directory);
    expect(error).not.toContain("not found");
  });

  it("does not run what a path says", async () => {
    const result = await bench.sandbox.read("/tmp/'; touch /tmp/injected; '");
    expect(result.error).toContain("not found");
    expect((await bench.sandbox.execute("test -e /tmp/injected")).exitCode).toBe(1);
  });

  it("reads a whole file raw", async () => {
    const directory = await bench.tree({ "a.md": "text\n", "b.pdf": Uint8Array.of(1, 0, 2) });
    const text = await bench.sandbox.readRaw(`${directory}/a.md`);
    expect(text.data).toMatchObject({ content: "text\n", mimeType: "text/markdown" });
    const binary = await bench.sandbox.readRaw(`${directory}/b.pdf`);
    expect([...((binary.data?.content ?? []) as Uint8Array)]).toEqual([1, 0, 2]);
    expect(await bench.sandbox.readRaw(`${directory}/c`)).toEqual({
      error: `File '${directory}/c' not found`,
    });
  });
}
