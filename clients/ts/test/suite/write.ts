import { expect, it } from "vitest";
import type { Bench } from "../deepagents.suite.js";

const CONTENT: Record<string, [path: string, content: string]> = {
  "makes a file": ["new.txt", "Hello, world!"],
  "makes parents": ["deep/er/est/file.txt", "nested"],
  "keeps special characters": ["special.txt", "$HOME `ls` \"q\" 'p' \\n\ttab \\ !@#%^&*()"],
  "makes an empty file": ["empty.txt", ""],
  "takes spaces in a path": ["dir with spaces/my file.txt", "spaces"],
  "keeps unicode": ["unicode.txt", "Hello 👋 世界 مرحبا Привет 🌍"],
  "takes repeated slashes": ["a//b///c.txt", "slashes"],
  "keeps line ends alone": ["lines.txt", "\n\n\n\n\n"],
  "keeps carriage returns": ["crlf.txt", "a\r\nb\r\n"],
  "takes quotes in a path": ['it\'s $(a) "file".txt', "quoted"],
};

/** write. */
export function writeCases(bench: Bench): void {
  it.each(Object.entries(CONTENT))("%s", async (_name, [name, content]) => {
    const path = `${bench.directory()}/${name}`;
    const result = await bench.sandbox.write(path, content);
    expect(result.error).toBeUndefined();
    expect(result.path).toBe(path);
    const [file] = await bench.sandbox.downloadFiles([path]);
    expect(new TextDecoder().decode(file?.content ?? undefined)).toBe(content);
  });

  it("overwrites", async () => {
    const path = `${await bench.tree({ "file.txt": "a longer first content" })}/file.txt`;
    expect((await bench.sandbox.write(path, "second")).error).toBeUndefined();
    expect(await bench.cat(path)).toBe("second");
  });

  it("keeps the permission bits of what it overwrites", async () => {
    const path = `${await bench.tree({ "run.sh": "echo 1" })}/run.sh`;
    await bench.sandbox.execute(`chmod 755 '${path}'`);
    await bench.sandbox.write(path, "#!/bin/sh\necho 2");
    expect((await bench.sandbox.execute(path)).output).toBe("2\n");
  });

  it("takes 1000 lines", async () => {
    const path = `${bench.directory()}/long.txt`;
    await bench.sandbox.write(path, Array.from({ length: 1000 }, (_, i) => `Line ${i}`).join("\n"));
    expect((await bench.sandbox.execute(`wc -l < '${path}'`)).output.trim()).toBe("999");
  });

  it("takes 5 MiB", async () => {
    const path = `${bench.directory()}/large.txt`;
    const content = "0123456789abcde\n".repeat(5 << 16);
    expect((await bench.sandbox.write(path, content)).error).toBeUndefined();
    expect((await bench.sandbox.execute(`wc -c < '${path}'`)).output.trim()).toBe(String(5 << 20));
  });

  it("decodes base64 for a binary type", async () => {
    const directory = bench.directory();
    await bench.sandbox.write(`${directory}/pixel.png`, Buffer.from([0x89, 0, 255]).toString("base64"));
    const [file] = await bench.sandbox.downloadFiles([`${directory}/pixel.png`]);
    expect([...(file?.content ?? [])]).toEqual([0x89, 0, 255]);
  });

  it.each(["/proc/version", "/usr/bin/not-mine"])("says why %s cannot be written", async (path) => {
    const result = await bench.sandbox.write(path, "x");
    expect(result.error).toContain(`Failed to write to ${path}: `);
    expect(result.path).toBeUndefined();
  });
}
