/** How a client connects: options, the environment, addresses and credentials. */

import { readFileSync } from "node:fs";
import { type ChannelCredentials, credentials } from "@grpc/grpc-js";
import { InvalidRequestError } from "./errors.js";
import { type Token, tokenFile } from "./token.js";

/** The address of the server if neither an option nor the environment names one. */
export const DEFAULT_ADDRESS = "127.0.0.1:7777";

/** Default of {@link ClientOptions.reconnectTimeoutMs}, in milliseconds. */
export const DEFAULT_RECONNECT_TIMEOUT_MS = 60_000;

/** A dead peer is detected within this and 10 s more, while a call runs. */
const DEFAULT_KEEPALIVE_MS = 30_000;
/** Servers close connections with more frequent pings. */
const MIN_KEEPALIVE_MS = 10_000;
const MAX_CHANNELS = 64;

/** How a {@link Client} connects. An option wins over the environment. */
export interface ClientOptions {
  /**
   * The server: `host:port`, `https://host:port` (or `tls://…`) for TLS with the
   * system's certificates, or `unix:///path`. Default: `SANDGATE_ADDRESS`, else
   * `127.0.0.1:7777`.
   */
  address?: string;
  /**
   * Bearer token, or a function that returns one, for tokens that change. Default:
   * `SANDGATE_TOKEN`. Without TLS it is sent to a loopback address or a unix socket
   * only.
   */
  token?: Token;
  /**
   * File with the bearer token, in place of `token`: a regular file of up to 64 KiB, such
   * as a projected service account token. It is read before every attempt of a call.
   * While it is missing or empty, the last token counts; if there is none, calls reject
   * with AuthenticationError. If the server rejects a token that has changed since it was
   * sent, the client makes the call once more, and reattaches to commands. Default:
   * `SANDGATE_TOKEN_FILE`.
   */
  tokenFile?: string;
  /** PEM file of the authorities to trust; turns TLS on. Default: `SANDGATE_CA_FILE`. */
  caFile?: string;
  /** PEM file of the client's certificate; turns TLS on. Default: `SANDGATE_CERT_FILE`. */
  certFile?: string;
  /** PEM file of the client's key. Default: `SANDGATE_KEY_FILE`. */
  keyFile?: string;
  /** The name that the server's certificate must have, if not the address's. */
  serverName?: string;
  /**
   * True: allows a token to be sent without TLS to a server that is neither on loopback
   * nor on a unix socket. Anyone on the network path can read it. Default: false.
   */
  insecure?: boolean;
  /**
   * The retry window: how long the client retries a broken call (a unary one at most
   * 30 s) and reattaches to a command, in milliseconds. 0: it does not retry. Default:
   * 60 000.
   */
  reconnectTimeoutMs?: number;
  /**
   * Connections to the server, which streams use in turn. More than one helps if many
   * commands or files stream at once: they then do not share one connection's flow
   * control window. Default: 1.
   */
  channels?: number;
  /**
   * Milliseconds between keepalive pings while a call runs; 10 s without a reply end the
   * connection. At least 10 000. Default: 30 000.
   */
  keepaliveMs?: number;
  /**
   * Template of sandboxes that are created without one. Default: `SANDGATE_TEMPLATE`,
   * else the server's "default".
   */
  template?: string;
  /** Metadata for every call, such as `x-request-id`. Default: none. */
  metadata?: Readonly<Record<string, string>>;
}

/** The settings of the options and the environment. */
export interface Connection {
  /** The address as it was given. */
  address: string;
  /** The target for gRPC. */
  target: string;
  credentials: ChannelCredentials;
  /** True: the connection uses TLS. */
  tls: boolean;
  /** Empty: the name in the address. */
  serverName: string;
  token: Token;
  reconnectTimeoutMs: number;
  channels: number;
  keepaliveMs: number;
  /** Empty: the server's default. */
  template: string;
  metadata: Readonly<Record<string, string>>;
}

/** A parsed address. */
export interface Endpoint {
  target: string;
  tls: boolean;
  /** True for a loopback address or a unix socket. */
  local: boolean;
}

/**
 * Reads the options, then the environment.
 *
 * @throws InvalidRequestError when the address is malformed, a file cannot be read, both
 * a token and a token file are set, or a token would be sent without TLS.
 */
export function connection(options: ClientOptions, env: NodeJS.ProcessEnv = process.env): Connection {
  const address = options.address || env["SANDGATE_ADDRESS"] || DEFAULT_ADDRESS;
  const token = tokenOf(options, env);
  const caFile = options.caFile ?? env["SANDGATE_CA_FILE"] ?? "";
  const certFile = options.certFile ?? env["SANDGATE_CERT_FILE"] ?? "";
  const keyFile = options.keyFile ?? env["SANDGATE_KEY_FILE"] ?? "";

  const endpoint = parseAddress(address);
  const tls = endpoint.tls || caFile !== "" || certFile !== "";
  if (!tls && token !== "" && !endpoint.local && options.insecure !== true) {
    throw invalid(
      `a token is not sent to ${address} without TLS; use https://… or a CA file, or allow it explicitly`,
    );
  }
  const { channels = 1, keepaliveMs = DEFAULT_KEEPALIVE_MS } = options;
  if (!Number.isInteger(channels) || channels < 1 || channels > MAX_CHANNELS) {
    throw invalid(`channels must be a whole number from 1 to ${MAX_CHANNELS}, got ${channels}`);
  }
  if (!(keepaliveMs >= MIN_KEEPALIVE_MS)) {
    throw invalid(`keepaliveMs must be at least ${MIN_KEEPALIVE_MS}, got ${keepaliveMs}`);
  }
  if ((certFile === "") !== (keyFile === "")) {
    throw invalid("a client certificate needs both its certificate file and its key file");
  }
  return {
    address,
    target: endpoint.target,
    credentials: tls
      ? credentials.createSsl(pem(caFile), pem(keyFile), pem(certFile))
      : credentials.createInsecure(),
    tls,
    serverName: options.serverName ?? "",
    token,
    reconnectTimeoutMs: options.reconnectTimeoutMs ?? DEFAULT_RECONNECT_TIMEOUT_MS,
    channels,
    keepaliveMs,
    template: options.template ?? env["SANDGATE_TEMPLATE"] ?? "",
    metadata: options.metadata ?? {},
  };
}

/** Returns the token of the options, else of the environment; empty: there is none. */
function tokenOf(options: ClientOptions, env: NodeJS.ProcessEnv): Token {
  const given = options.token !== undefined || options.tokenFile !== undefined;
  const token = (given ? options.token : env["SANDGATE_TOKEN"]) ?? "";
  const file = (given ? options.tokenFile : env["SANDGATE_TOKEN_FILE"]) ?? "";
  if (token !== "" && file !== "") {
    throw invalid(
      "a token and a token file are both set; set one of them (SANDGATE_TOKEN, SANDGATE_TOKEN_FILE)",
    );
  }
  return file === "" ? token : tokenFile(file);
}

/**
 * Returns the target for gRPC in an address, and whether it uses TLS and is local.
 *
 * @throws InvalidRequestError when it is malformed.
 */
export function parseAddress(address: string): Endpoint {
  if (address.startsWith("unix://")) {
    if (!address.startsWith("unix:///")) {
      throw invalid(`the address "${address}" cannot be used: a unix socket is written unix:///path`);
    }
    return { target: address, tls: false, local: true };
  }
  const [, scheme = "", rest = ""] = /^(?:([^:/]*):\/\/)?(.*?)\/?$/.exec(address) ?? [];
  if (!["", "http", "https", "tls"].includes(scheme)) {
    throw invalid(`the address "${address}" cannot be used: its scheme is not unix, https, tls or http`);
  }
  const [, bracketed, plain, port] = /^(?:\[([0-9A-Fa-f:.]+)\]|([^:/\s]*)):(\d{1,5})$/.exec(rest) ?? [];
  if (port === undefined || Number(port) > 65_535) {
    throw invalid(`the address "${address}" cannot be used: it must be HOST:PORT or unix:///path`);
  }
  const host = bracketed ?? (plain || "127.0.0.1");
  return {
    target: `dns:${bracketed === undefined ? host : `[${host}]`}:${port}`,
    tls: scheme === "https" || scheme === "tls",
    local: host === "localhost" || host === "::1" || /^127(\.\d{1,3}){3}$/.test(host),
  };
}

function pem(path: string): Buffer | null {
  if (path === "") return null;
  try {
    return readFileSync(path);
  } catch (cause) {
    throw new InvalidRequestError(`the file ${path} cannot be read`, { code: "INVALID_ARGUMENT" }, { cause });
  }
}

function invalid(message: string): InvalidRequestError {
  return new InvalidRequestError(message, { code: "INVALID_ARGUMENT" });
}
