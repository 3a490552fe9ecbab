import { expect, it } from "vitest";
import type { Bench } from "../deepagents.suite.js";

const encode = (text: string) => new TextEncoder().encode(text);

/** uploadFiles and downloadFiles. */
export function transferCases(bench: Bench): void {
  it("uploads", async () => {
    const path = `${bench.directory()}/file.txt`;
    expect(await bench.sandbox.uploadFiles([[path, encode("content")]])).toEqual([{ path, error: null }]);
    expect(await bench.cat(path)).toBe("content");
  });

  it("uploads one file as one of several", async () => {
    const names = ["old", "void", "old/x", "link", "dangling", "pipe", "new"];
    const outcomes: unknown[] = [];
    for (const more of [[], ["other"]]) {
      const directory = bench.directory();
      const prepared = "echo old > old; chmod 751 old; mkdir void; ln -s old link; ln -s lost dangling";
      const run = (script: string) =>
        bench.sandbox.execute(`mkdir -p '${directory}'; cd '${directory}' && { ${script}; }`);
      expect((await run(`${prepared}; mkfifo pipe`)).exitCode).toBe(0);
      const errors: unknown[] = [];
      for (const name of names) {
        const paths = [name, ...more].map((each) => `${directory}/${each}`);
        const [first] = await bench.sandbox.uploadFiles(paths.map((p) => [p, Uint8Array.of(0, 255, 13)]));
        errors.push(first?.error);
      }
      const left = await run("rm -f other; for f in *; do stat -c '%n %F %a %s' $f; done");
      outcomes.push([errors, left.output]);
    }
    expect(outcomes[0]).toEqual(outcomes[1]);
  });

  it("downloads", async () => {
    const path = `${await bench.tree({ "file.txt": "content" })}/file.txt`;
    const [file] = await bench.sandbox.downloadFiles([path]);
    expect(file).toMatchObject({ path, error: null });
    expect(new TextDecoder().decode(file?.content ?? undefined)).toBe("content");
  });

  it("says that a file is missing", async () => {
    const path = `${bench.directory()}/missing`;
    expect(await bench.sandbox.downloadFiles([path])).toEqual([
      { path, content: null, error: "file_not_found" },
    ]);
  });

  it("works with read, write and edit", async () => {
    const path = `${bench.directory()}/file.txt`;
    await bench.sandbox.uploadFiles([[path, encode("one two")]]);
    await bench.sandbox.edit(path, "two", "three");
    expect((await bench.sandbox.read(path)).content).toBe("one three");
    await bench.sandbox.write(path, "four");
    const [file] = await bench.sandbox.downloadFiles([path]);
    expect(new TextDecoder().decode(file?.content ?? undefined)).toBe("four");
  });

  it("keeps the order of several files, repeated ones too", async () => {
    const directory = bench.directory();
    const paths = ["c", "a", "b", "a"].map((name) => `${directory}/${name}`);
    const up = await bench.sandbox.uploadFiles(paths.map((path, i) => [path, encode(`${path} ${i}`)]));
    expect(up).toEqual(paths.map((path) => ({ path, error: null })));
    const down = await bench.sandbox.downloadFiles(paths);
    expect(down.map((f) => f.path)).toEqual(paths);
    expect(down.map((f) => new TextDecoder().decode(f.content ?? undefined).slice(-1))).toEqual([
      "0",
      "3",
      "2",
      "3",
    ]);
  });

  it("does what can be done", async () => {
    const directory = bench.directory();
    const good = `${directory}/good`;
    const up = await bench.sandbox.uploadFiles([
      ["relative/path", encode("x")],
      [good, encode("good")],
      [`${good}/below-a-file`, encode("x")],
      ["", encode("x")],
      [directory, encode("x")],
    ]);
    expect(up.map((r) => r.error)).toEqual([
      "invalid_path",
      null,
      "invalid_path",
      "invalid_path",
      "is_directory",
    ]);
    const down = await bench.sandbox.downloadFiles(["relative", `${directory}/none`, good, directory]);
    expect(down.map((r) => r.error)).toEqual(["invalid_path", "file_not_found", null, "is_directory"]);
    expect(down.map((r) => r.path)).toEqual(["relative", `${directory}/none`, good, directory]);
  });

  it("says that a file may not be read", async () => {
    const path = `${await bench.tree({ secret: "x" })}/secret`;
    await bench.sandbox.execute(`chmod 000 '${path}'`);
    expect((await bench.sandbox.downloadFiles([path]))[0]?.error).toBe("permission_denied");
  });

  it("keeps every byte", async () => {
    const content = Uint8Array.from({ length: 100_000 }, (_, i) => (i * 31) ^ (i >> 8));
    const path = `${await bench.tree({ "bytes.bin": content })}/bytes.bin`;
    const [file] = await bench.sandbox.downloadFiles([path]);
    expect(Buffer.from(file?.content ?? []).equals(content)).toBe(true);
  });

  it("takes 10 MiB", async () => {
    const content = new Uint8Array(10 << 20).fill(7);
    const path = `${await bench.tree({ big: content })}/big`;
    expect((await bench.sandbox.execute(`wc -c < '${path}'`)).output.trim()).toBe(String(10 << 20));
    const [file] = await bench.sandbox.downloadFiles([path]);
    expect(Buffer.from(file?.content ?? []).equals(content)).toBe(true);
  });

  it("takes nothing", async () => {
    expect(await bench.sandbox.uploadFiles([])).toEqual([]);
    expect(await bench.sandbox.downloadFiles([])).toEqual([]);
    const path = `${await bench.tree({ empty: "" })}/empty`;
    const [file] = await bench.sandbox.downloadFiles([path]);
    expect(file).toMatchObject({ error: null });
    expect(file?.content).toHaveLength(0);
  });
}
