/** URLs of ports and files of a sandbox. */

import type { CallOptions } from "./call.js";
import { SandboxService } from "./gen/sandbox/v1/sandbox_service_pb.js";
import { FileUrlMethod } from "./gen/sandbox/v1/sandbox_url_pb.js";
import type { Target } from "./transfer.js";
import type { Transport } from "./transport.js";
import { date, defined, duration } from "./values.js";

/** What a URL is for. */
export interface UrlOptions extends CallOptions {
  /** Of a file's URL: to read the file, or to write it. Default: "GET". */
  method?: "GET" | "PUT";
  /** How long the URL can be used. Default: 1 h, or what the server allows if that is less. */
  ttlMs?: number;
}

/** A URL. Whoever has it can use it until it expires. */
export interface SandboxUrl {
  /** The URL with its token, for browsers and programs that follow links. */
  url: string;
  /** The same URL without the token, for programs that send the token as a bearer. */
  baseUrl: string;
  token: string;
  expireTime: Date;
  /** The incarnation that the URL is for; with another one, requests get the status 410. */
  incarnation: string;
}

export async function getUrl(
  transport: Transport,
  { sandboxId, expectedIncarnation, access }: Target,
  target: number | string,
  { method, ttlMs, ...call }: UrlOptions,
): Promise<SandboxUrl> {
  const file = typeof target === "string";
  const request = {
    sandboxId,
    expectedIncarnation,
    target: file ? ({ case: "path", value: target } as const) : ({ case: "port", value: target } as const),
    ...(method !== undefined && { method: FileUrlMethod[method] }),
    ...defined({ ttl: duration("ttlMs", ttlMs) }),
    ...(file && access !== undefined && { access }),
  };
  const reply = await transport.repeatable(SandboxService.method.createSandboxUrl, request, call);
  const { url, baseUrl, token, incarnation } = reply;
  return { url, baseUrl, token, incarnation, expireTime: date(reply.expireTime) as Date };
}
