/** How a client connects: options, the environment, addresses and credentials. */

import { readFileSync } from "node:fs";
import { type ChannelCredentials, credentials } from "@grpc/grpc-js";
import { InvalidRequestError } from "./errors.js";
import type { Token } from "./headers.js";

/** Where the client looks for a server when nothing else is said. */
export const DEFAULT_ADDRESS = "127.0.0.1:7777";

/** Default of {@link ClientOptions.patienceMs}, in milliseconds. */
export const DEFAULT_PATIENCE_MS = 60_000;

/** A peer that vanished is noticed within this and 10 s more, while a call is under way. */
const DEFAULT_KEEPALIVE_MS = 30_000;
/** More often, and servers take it for abuse. */
const LEAST_KEEPALIVE_MS = 10_000;
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
   * Bearer token, or a function that gives one that changes. Default:
   * `SANDGATE_TOKEN`. Without TLS it is sent to a loopback address or a unix socket
   * only.
   */
  token?: Token;
  /** PEM file of the authorities to trust; turns TLS on. Default: `SANDGATE_CA_FILE`. */
  caFile?: string;
  /** PEM file of the client's certificate; turns TLS on. Default: `SANDGATE_CERT_FILE`. */
  certFile?: string;
  /** PEM file of the client's key. Default: `SANDGATE_KEY_FILE`. */
  keyFile?: string;
  /** The name that the server's certificate must have, if not the address's. */
  serverName?: string;
  /**
   * True: a token may be sent without TLS to a server on another machine. Whoever
   * listens in between can take it. Default: false.
   */
  insecure?: boolean;
  /**
   * How long the client keeps trying to get a broken stream of a command going
   * again, in milliseconds. 0: it does not try. Default: 60 000.
   */
  patienceMs?: number;
  /**
   * Connections to the server, over which streams take turns. More than one helps
   * where many commands or files stream at once: they no longer share one
   * connection's window and one TCP flow. Default: 1.
   */
  channels?: number;
  /**
   * Milliseconds between two signs of life while a call is under way; 10 s without
   * an answer end the connection. At least 10 000. Default: 30 000.
   */
  keepaliveMs?: number;
  /** Metadata for every call, such as `x-request-id`. Default: none. */
  metadata?: Readonly<Record<string, string>>;
}

/** What options and environment come to. */
export interface Connection {
  /** The address as it was given. */
  address: string;
  /** What gRPC dials. */
  target: string;
  credentials: ChannelCredentials;
  /** True: the connection is a secured one. */
  tls: boolean;
  /** Empty: the address's. */
  serverName: string;
  token: Token;
  patienceMs: number;
  channels: number;
  keepaliveMs: number;
  metadata: Readonly<Record<string, string>>;
}

/** What an address means. */
export interface Endpoint {
  target: string;
  tls: boolean;
  /** True for a loopback address or a unix socket. */
  local: boolean;
}

/**
 * Reads the options, then the environment.
 *
 * @throws InvalidRequestError when the address is malformed, a file cannot be
 * read, or a token would travel in the clear.
 */
export function connection(options: ClientOptions, env: NodeJS.ProcessEnv = process.env): Connection {
  const address = options.address || env["SANDGATE_ADDRESS"] || DEFAULT_ADDRESS;
  const token = options.token ?? env["SANDGATE_TOKEN"] ?? "";
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
  if (!(keepaliveMs >= LEAST_KEEPALIVE_MS)) {
    throw invalid(`keepaliveMs must be at least ${LEAST_KEEPALIVE_MS}, got ${keepaliveMs}`);
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
    patienceMs: options.patienceMs ?? DEFAULT_PATIENCE_MS,
    channels,
    keepaliveMs,
    metadata: options.metadata ?? {},
  };
}

/**
 * Splits an address into what gRPC dials and what it means for security.
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
