/** Standard input of a command that runs. */

import { type CallOptions, withDeadline } from "./call.js";
import { bytes } from "./command.js";
import { InternalError } from "./errors.js";
import { SandboxService } from "./gen/sandbox/v1/sandbox_service_pb.js";
import { count } from "./numbers.js";
import type { Target } from "./transfer.js";
import type { Transport } from "./transport.js";

const CHUNK_BYTES = 256 << 10;

/** Sends bytes in pieces and returns the offset of the next byte. */
export async function writeStdin(
  transport: Transport,
  target: Target,
  execId: string,
  data: Uint8Array | string,
  { offset, eof = false, ...call }: { offset: number; eof?: boolean } & CallOptions,
): Promise<number> {
  count("offset", offset);
  const options = withDeadline(call);
  let rest = bytes(data);
  // At least one message, so that an empty one can carry the end. A command may
  // take less than a message holds: the offset in the reply decides what comes next.
  for (let at = offset; ; ) {
    const piece = rest.subarray(0, CHUNK_BYTES);
    const last = piece.length === rest.length;
    const request = { ...target, execId, offset: BigInt(at), data: piece, eof: eof && last };
    const reply = await transport.repeatable(SandboxService.method.writeStdin, request, options);
    const next = Number(reply.nextOffset);
    // Beyond the piece: an earlier attempt of the call wrote it, and more.
    const taken = Math.min(next - at, piece.length);
    if (taken < 0 || (piece.length > 0 && taken === 0)) {
      throw new InternalError(`standard input went from offset ${at} to ${next}`, { code: "DATA_LOSS" });
    }
    if (last && taken === piece.length) return next;
    rest = rest.subarray(taken);
    at += taken;
  }
}
