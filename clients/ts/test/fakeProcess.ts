/** A process of this machine that stands for a command of a sandbox. */

import { type ChildProcess, spawn } from "node:child_process";
import { create } from "@bufbuild/protobuf";
import {
  type ExecuteRequest,
  type ExecuteResponse,
  ExecuteResponseSchema,
  ExitReason,
  Stream,
} from "../src/gen/sandbox/v1/sandbox_process_pb.js";

/** Sends one event; false when nobody listens any more. */
export type Write = (event: ExecuteResponse["event"]) => Promise<boolean>;

/** One command and the log of its output. */
export class FakeProcess {
  readonly log: { stream: Stream; position: number; data: Buffer }[] = [];
  readonly child: ChildProcess;
  position = 0;
  exited: ExecuteResponse["event"] | undefined;
  killed = false;
  #wake: (() => void)[] = [];

  constructor(request: ExecuteRequest, cwd: string) {
    const args =
      request.command.case === "argv"
        ? request.command.value.args
        : ["/bin/sh", "-c", String(request.command.value)];
    this.child = spawn(args[0] ?? "", args.slice(1), {
      cwd,
      detached: true,
      stdio: ["ignore", "pipe", "pipe"],
    });
    this.child.stdout?.on("data", (data: Buffer) => this.#append(Stream.STDOUT, data));
    this.child.stderr?.on("data", (data: Buffer) => this.#append(Stream.STDERR, data));
    let timedOut = false;
    const timeout = Number(request.timeout?.seconds ?? 0n) * 1000 + (request.timeout?.nanos ?? 0) / 1e6;
    const expire = () => {
      // However slowly a busy machine starts it: its first output is part of the answer.
      if (this.log.length === 0) return void this.#wake.push(expire);
      timedOut = true;
      this.kill();
    };
    const timer = timeout > 0 ? setTimeout(expire, timeout) : undefined;
    this.child.on("close", (code, signal) => {
      clearTimeout(timer);
      const reason = timedOut
        ? ExitReason.TIMED_OUT
        : this.killed
          ? ExitReason.KILLED
          : signal === null
            ? ExitReason.EXITED
            : ExitReason.SIGNALED;
      this.exited = create(ExecuteResponseSchema, {
        event: {
          case: "exited",
          value: {
            reason,
            signal: signal ?? "",
            position: BigInt(this.position),
            ...(reason === ExitReason.EXITED ? { exitCode: code ?? 0 } : {}),
          },
        },
      }).event;
      this.#notify();
    });
  }

  kill(): void {
    this.killed = true;
    try {
      process.kill(-(this.child.pid ?? 0), "SIGKILL");
    } catch {
      // It ended by itself.
    }
  }

  /** Sends everything from a position on, then `exited`. */
  async follow(position: number, write: Write): Promise<void> {
    for (let next = 0; ; ) {
      const piece = this.log[next];
      if (piece !== undefined) {
        next++;
        const known = position - piece.position;
        if (known >= piece.data.length) continue;
        const data = piece.data.subarray(Math.max(0, known));
        const value = { stream: piece.stream, position: BigInt(Math.max(position, piece.position)), data };
        const { event } = create(ExecuteResponseSchema, { event: { case: "output", value } });
        if (!(await write(event))) return;
      } else if (this.exited !== undefined) {
        await write(this.exited);
        return;
      } else {
        await new Promise<void>((resolve) => this.#wake.push(resolve));
      }
    }
  }

  #append(stream: Stream, data: Buffer): void {
    this.log.push({ stream, position: this.position, data });
    this.position += data.length;
    this.#notify();
  }

  #notify(): void {
    for (const resolve of this.#wake.splice(0)) resolve();
  }
}
