/**
 * Reads `grpc-status-details-bin`: google.rpc.Status with ErrorInfo, RetryInfo
 * and BadRequest. Only the fields that Sandgate sends are read.
 */

import { BinaryReader, WireType } from "@bufbuild/protobuf/wire";

/** The details of an error, beside its code and message. */
export interface StatusDetails {
  /** ErrorInfo.reason when its domain is "sandgate". */
  reason: string;
  metadata: Record<string, string>;
  violations: { field: string; description: string }[];
  /** RetryInfo.retry_delay. */
  retryAfterMs?: number;
}

const TYPE_PREFIX = "google.rpc.";

/**
 * Decodes the trailer. A trailer that is not a google.rpc.Status gives empty
 * details: the code and message beside it still count.
 */
export function decodeStatusDetails(bytes: Uint8Array): StatusDetails {
  const details: StatusDetails = { reason: "", metadata: {}, violations: [] };
  try {
    fields(bytes, (no, value) => {
      if (no === 3 && value instanceof Uint8Array) readAny(value, details);
    });
  } catch {
    return { reason: "", metadata: {}, violations: [] };
  }
  return details;
}

function readAny(bytes: Uint8Array, details: StatusDetails): void {
  let url = "";
  let content: Uint8Array = new Uint8Array(0);
  fields(bytes, (no, value) => {
    if (!(value instanceof Uint8Array)) return;
    if (no === 1) url = text(value);
    if (no === 2) content = value;
  });
  switch (url.slice(url.lastIndexOf("/") + 1)) {
    case `${TYPE_PREFIX}ErrorInfo`:
      readErrorInfo(content, details);
      break;
    case `${TYPE_PREFIX}BadRequest`:
      fields(content, (no, value) => {
        if (no === 1 && value instanceof Uint8Array) details.violations.push(readViolation(value));
      });
      break;
    case `${TYPE_PREFIX}RetryInfo`:
      fields(content, (no, value) => {
        if (no === 1 && value instanceof Uint8Array) details.retryAfterMs = readDurationMs(value);
      });
  }
}

function readErrorInfo(bytes: Uint8Array, details: StatusDetails): void {
  let reason = "";
  let domain = "";
  const metadata: Record<string, string> = {};
  fields(bytes, (no, value) => {
    if (!(value instanceof Uint8Array)) return;
    if (no === 1) reason = text(value);
    if (no === 2) domain = text(value);
    if (no === 3) {
      const [key, entry] = readPair(value);
      metadata[key] = entry;
    }
  });
  if (domain !== "sandgate") return;
  details.reason = reason;
  details.metadata = metadata;
}

function readViolation(bytes: Uint8Array): { field: string; description: string } {
  const [field, description] = readPair(bytes);
  return { field, description };
}

/** Reads a message whose fields 1 and 2 are strings. */
function readPair(bytes: Uint8Array): [string, string] {
  let first = "";
  let second = "";
  fields(bytes, (no, value) => {
    if (!(value instanceof Uint8Array)) return;
    if (no === 1) first = text(value);
    if (no === 2) second = text(value);
  });
  return [first, second];
}

function readDurationMs(bytes: Uint8Array): number {
  let ms = 0;
  fields(bytes, (no, value) => {
    if (typeof value !== "bigint") return;
    if (no === 1) ms += Number(value) * 1000;
    if (no === 2) ms += Number(value) / 1e6;
  });
  return Math.max(0, ms);
}

/** Calls `visit` with each varint and each length-delimited field. */
function fields(bytes: Uint8Array, visit: (no: number, value: Uint8Array | bigint) => void): void {
  const reader = new BinaryReader(bytes);
  while (reader.pos < reader.len) {
    const [no, type] = reader.tag();
    if (type === WireType.LengthDelimited) visit(no, reader.bytes());
    else if (type === WireType.Varint) visit(no, BigInt(reader.int64()));
    else reader.skip(type, no);
  }
}

function text(bytes: Uint8Array): string {
  return new TextDecoder().decode(bytes);
}
