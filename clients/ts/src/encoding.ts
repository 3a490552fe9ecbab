/** Messages as bytes, and the paths of methods. */

import {
  create,
  type DescMessage,
  fromBinary,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from "@bufbuild/protobuf";
import { InvalidRequestError } from "./errors.js";

/**
 * Encodes a request before its call begins.
 *
 * @throws InvalidRequestError when a field cannot hold its value.
 */
export function encoded<M extends DescMessage>(schema: M, message: MessageInitShape<M>): Buffer {
  const field = malformed(message);
  if (field !== undefined) {
    const description = "must be well-formed text, without half of a surrogate pair";
    throw new InvalidRequestError(`${field} ${description}`, {
      code: "INVALID_ARGUMENT",
      reason: "REQUEST_INVALID",
      violations: [{ field, description }],
    });
  }
  try {
    const bytes = toBinary(schema, create(schema, message));
    return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  } catch (cause) {
    const why = cause instanceof Error ? cause.message : String(cause);
    throw new InvalidRequestError(
      `the request cannot be sent: ${why}`,
      { code: "INVALID_ARGUMENT" },
      { cause },
    );
  }
}

/** Half of a surrogate pair. Encoding puts U+FFFD in its place: another path, another text. */
const LONE_SURROGATE = /\p{Surrogate}/u;

/** Returns the first field of a message whose text cannot be encoded as it is. */
function malformed(value: unknown, field = ""): string | undefined {
  if (typeof value === "string") return LONE_SURROGATE.test(value) ? field : undefined;
  if (typeof value !== "object" || value === null || ArrayBuffer.isView(value)) return undefined;
  for (const [key, inner] of Object.entries(value)) {
    const name = field === "" ? key : `${field}.${key}`;
    const found = LONE_SURROGATE.test(key) ? field : malformed(inner, name);
    if (found !== undefined) return found;
  }
  return undefined;
}

export function identity(bytes: Buffer): Buffer {
  return bytes;
}

export function deserializer<M extends DescMessage>(schema: M): (bytes: Buffer) => MessageShape<M> {
  return (bytes) => fromBinary(schema, bytes);
}

/** The path of a method, as HTTP/2 has it. */
export function path(method: { parent: { typeName: string }; name: string }): string {
  return `/${method.parent.typeName}/${method.name}`;
}
