import { expect, it } from "vitest";
import type { Bench } from "../deepagents.suite.js";

interface Case {
  command: string;
  output?: string;
  contains?: string;
  exitCode: number | "not 0";
}

const CASES: Record<string, Case> = {
  "runs a command": { command: "echo hello", output: "hello\n", exitCode: 0 },
  "gives the exit code": { command: "exit 42", output: "", exitCode: 42 },
  "gives several lines": { command: "echo 1; echo 2; echo 3", output: "1\n2\n3\n", exitCode: 0 },
  "gives standard error too": { command: "echo oops >&2", contains: "oops", exitCode: 0 },
  "keeps the order of both outputs": {
    command: "for i in 1 2 3; do echo out $i; echo err $i >&2; done",
    output: "out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n",
    exitCode: 0,
  },
  "knows variables": { command: "export X=y && echo $X", output: "y\n", exitCode: 0 },
  "fails for an unknown command": {
    command: "no_such_command_12345",
    contains: "not found",
    exitCode: "not 0",
  },
  "fails for bad syntax": { command: "if then", exitCode: "not 0" },
  "takes pipes and subshells": { command: "(seq 1 5; echo x) | grep -c .", output: "6\n", exitCode: 0 },
  "takes a here-document": {
    command: "cat <<'E'\n$a `b` \"c\" 'd' \\\\\nE",
    output: "$a `b` \"c\" 'd' \\\\\n",
    exitCode: 0,
  },
  "keeps characters and NUL": { command: "printf 'ü日\\000本🎉'", output: "ü日\0本🎉", exitCode: 0 },
  "replaces broken UTF-8": { command: "printf 'a\\377b'", output: "a\ufffdb", exitCode: 0 },
  "has no standard input": { command: "cat; echo done", output: "done\n", exitCode: 0 },
  "says 128 + n after a signal": { command: "kill -KILL $$", exitCode: 137 },
  "takes a script of 200 KiB": {
    command: `: '${"x".repeat(200 << 10)}'; echo big`,
    output: "big\n",
    exitCode: 0,
  },
};

/** Commands. */
export function executeCases(bench: Bench): void {
  it.each(Object.entries(CASES))("%s", async (_name, { command, output, contains, exitCode }) => {
    const result = await bench.sandbox.execute(command);
    if (output !== undefined) expect(result.output).toBe(output);
    if (contains !== undefined) expect(result.output).toContain(contains);
    if (exitCode === "not 0") expect(result.exitCode).not.toBe(0);
    else expect(result.exitCode).toBe(exitCode);
    expect(result.truncated).toBe(false);
  });

  it("holds 512 000 bytes of output whole, five times at once", async () => {
    const command = "head -c 512000 /dev/zero | tr '\\0' x";
    const results = await Promise.all(Array.from({ length: 5 }, () => bench.sandbox.execute(command)));
    for (const { output, truncated } of results) {
      expect(truncated).toBe(false);
      expect(output).toBe("x".repeat(512_000));
    }
  });

  it("cuts output beyond its size and keeps the exit code", async () => {
    const result = await bench.sandbox.execute("head -c 3000000 /dev/zero | tr '\\0' x; exit 7");
    expect(result.truncated).toBe(true);
    expect(result.exitCode).toBe(7);
    expect(result.output.length).toBeLessThanOrEqual(1 << 20);
    expect(result.output.length).toBeGreaterThan(1000);
  });
}
