/** Errors as the real server sends them. */

import { BinaryWriter } from "@bufbuild/protobuf/wire";
import { Metadata } from "@grpc/grpc-js";

/** An error with details, as the real server sends it; without a reason, as a proxy does. */
export function failure(code: number, message: string, reason: string, extra: Details = {}) {
  const metadata = new Metadata();
  metadata.set("grpc-status-details-bin", Buffer.from(statusBytes(code, message, reason, extra)));
  metadata.set("x-request-id", "request-1");
  return { code, details: message, metadata };
}

/** What an error carries beside its reason. */
export interface Details {
  metadata?: Record<string, string>;
  violations?: { field: string; description: string }[];
  retryAfterMs?: number;
}

function statusBytes(code: number, message: string, reason: string, extra: Details): Uint8Array {
  const any = (type: string, value: Uint8Array) =>
    new BinaryWriter()
      .tag(1, 2)
      .string(`type.googleapis.com/google.rpc.${type}`)
      .tag(2, 2)
      .bytes(value)
      .finish();
  const pair = (a: string, b: string) => new BinaryWriter().tag(1, 2).string(a).tag(2, 2).string(b).finish();
  const info = new BinaryWriter().tag(1, 2).string(reason).tag(2, 2).string("sandgate");
  for (const [key, value] of Object.entries(extra.metadata ?? {})) info.tag(3, 2).bytes(pair(key, value));
  const whole = new BinaryWriter().tag(1, 0).int32(code).tag(2, 2).string(message);
  if (reason !== "") whole.tag(3, 2).bytes(any("ErrorInfo", info.finish()));
  if (extra.violations !== undefined) {
    const bad = new BinaryWriter();
    for (const { field, description } of extra.violations) bad.tag(1, 2).bytes(pair(field, description));
    whole.tag(3, 2).bytes(any("BadRequest", bad.finish()));
  }
  if (extra.retryAfterMs !== undefined) {
    const seconds = Math.floor(extra.retryAfterMs / 1000);
    const nanos = Math.round((extra.retryAfterMs % 1000) * 1e6);
    const delay = new BinaryWriter().tag(1, 0).int64(seconds).tag(2, 0).int32(nanos).finish();
    whole.tag(3, 2).bytes(any("RetryInfo", new BinaryWriter().tag(1, 2).bytes(delay).finish()));
  }
  return whole.finish();
}
