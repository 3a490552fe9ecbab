/** Arguments and results of calls as plain values, and their wire forms. */

import type { MessageInitShape } from "@bufbuild/protobuf";
import {
  type Duration,
  durationFromMs,
  durationMs,
  type Timestamp,
  timestampDate,
} from "@bufbuild/protobuf/wkt";
import { InternalError } from "./errors.js";
import type { GetServerInfoResponse } from "./gen/sandbox/v1/sandbox_info_pb.js";
import {
  type EgressRule as EgressRuleMessage,
  NetworkMode,
  type Sandbox as SandboxMessage,
  type SandboxSpec as SandboxSpecMessage,
  type SandboxSpecSchema,
  type SandboxState,
} from "./gen/sandbox/v1/sandbox_lifecycle_pb.js";
import { milliseconds as checkedMs, count } from "./numbers.js";

/** What can be done with a sandbox now. */
export type State = "UNSPECIFIED" | "CREATING" | "ACTIVE" | "SUSPENDED" | "DELETING" | "FAILED";

/** How much network a sandbox has. */
export type NetworkModeName = "NONE" | "PROXY" | "FULL";

/** Upper limits of a sandbox. What is left out is the template's. */
export interface Resources {
  /** Memory of all processes together, in bytes. */
  memoryBytes?: number;
  /** CPU time per wall time, in thousandths of a core. */
  cpuMillis?: number;
  /** Processes and threads at one time. */
  maxProcesses?: number;
  /** Writable disk, in bytes. */
  diskBytes?: number;
}

/**
 * How a secret of the server's configuration gets into requests. The default is
 * "Authorization: Bearer SECRET". The secret never enters the sandbox.
 */
export interface EgressSecret {
  /** The secret's name in the server's configuration; {@link ServerInfo.secrets} lists them. */
  name: string;
  /** The header that is set to `prefix` and the secret. Default: "Authorization". */
  header?: string;
  /** The text before the secret. Default: "Bearer " without `header`, nothing with one. */
  prefix?: string;
  /** A user name, for HTTP Basic with the secret as the password, as `git push` needs. */
  user?: string;
  /**
   * 16 to 128 letters, digits, "_" and "-", replaced with the secret in the headers
   * that a program sends, instead of `header`, `prefix` and `user`.
   */
  placeholder?: string;
}

/** Destinations that the network mode PROXY allows: hosts and CIDRs, or a group. */
export interface EgressRule {
  /** "example.com", "*.example.com" for every name below it, "*" for every name. */
  hosts?: string[];
  /** Addresses in CIDR notation, IPv4 or IPv6. */
  cidrs?: string[];
  /** Default: 80 and 443; with a secret 443. */
  ports?: number[];
  /** A group of rules in the server's configuration, such as "packages". */
  group?: string;
  /**
   * HTTP methods, such as "GET". Default: all. With methods, paths or a secret the rule
   * allows HTTP requests only, and the server ends TLS to read them.
   */
  methods?: string[];
  /** "/a/b", or "/a/*" for every path below "/a/". Default: all. */
  paths?: string[];
  /** A secret that the server puts into the requests, in TLS only. */
  secret?: EgressSecret;
}

/**
 * What file calls may touch, and commands as far as the server can hold them to it:
 * where the sandbox's kernel has Landlock, commands write only what the prefixes
 * allow; elsewhere {@link Isolation.notEnforced} lists it. A call can narrow the
 * policy, never widen it.
 */
export interface AccessPolicy {
  /** Every path resolves beneath this directory. Default: no such root. */
  rootDir?: string;
  /** With `rootDir`: paths are relative to it, so "/a" is rootDir/a. Default: false. */
  virtual?: boolean;
  /** Path prefixes that may be written. Default: all that are not denied. */
  writeAllowPrefixes?: string[];
  /** Path prefixes that may not be written; they win over allowed ones. */
  writeDenyPrefixes?: string[];
  /** Path prefixes that may not be read, listed or searched. */
  readDenyPrefixes?: string[];
  /** Commands that contain one of these texts are refused; a guardrail, not a boundary. */
  denyCommands?: string[];
}

/** The portable properties of a sandbox. What is left out is the template's. */
export interface SandboxSpec {
  /** OCI image reference. Default: the template's, else the provider's. */
  image?: string;
  resources?: Resources;
  /** Environment of every command. */
  env?: Record<string, string>;
  /** Absolute path in which commands start. Default: "/workspace". */
  workingDirectory?: string;
  /** Default: "NONE". */
  network?: NetworkModeName;
  /** Destinations that "PROXY" lets through; refused with other modes. */
  networkAllow?: EgressRule[];
  access?: AccessPolicy;
  /** A command that the agent supervises beside the calls, as an argv. */
  command?: string[];
}

/** One sandbox as the server describes it. */
export interface SandboxInfo {
  id: string;
  /** Changes whenever the sandbox lost its disk and processes. */
  incarnation: string;
  state: State;
  /** One line for people: why the sandbox is in this state. May be empty. */
  stateMessage: string;
  createTime?: Date;
  lastActivityTime?: Date;
  /** When it ends if nothing happens. Undefined: never. */
  expireTime?: Date;
  /** Lifetime from creation in milliseconds. Undefined: none. */
  ttlMs?: number;
  /** Lifetime from the last activity in milliseconds. Undefined: none. */
  idleTtlMs?: number;
  labels: Record<string, string>;
  template: string;
  /** The spec in force; values of `env` are left out. */
  spec: SandboxSpec;
  /** True when it was claimed from a pool of started sandboxes. */
  fromPool: boolean;
  /** Its name on the substrate, for operators. */
  substrateName: string;
  /** Digest of its image, such as `sha256:…`. Empty: it has no image, or the provider does not know it. */
  imageDigest: string;
  /** What holds for it: opting out of a protection shows here. */
  isolation: Isolation;
}

/** What the substrate enforces for one sandbox. */
export interface Isolation {
  /** The mechanism, such as "runc" or "pod". */
  runtime: string;
  network: NetworkModeName | "UNSPECIFIED";
  unprivileged: boolean;
  readOnlySystem: boolean;
  /** Requested properties that are not enforced here, each with its reason. */
  notEnforced: string[];
}

/** What a server is, what it can do and who the caller is to it. */
export interface ServerInfo {
  version: string;
  /** "local", "docker", "kubernetes" or "agentsandbox". */
  provider: string;
  /** What it can do beyond the calls that always work, such as "suspend". */
  capabilities: string[];
  limits: ServerLimits;
  /** What this machine or cluster enforces, one entry per protection. */
  enforcement: { name: string; enforced: boolean; detail: string }[];
  /** Names of the templates that the caller may use. */
  templates: string[];
  /** The authenticated caller; `name` is empty without authentication. */
  principal: { name: string; tenant: string; role: string };
  /** The secrets that rules can name, never their values; `source` is "file" or "env". */
  secrets: { name: string; source: string; hosts: string[] }[];
  /** The quotas that apply to the caller. Empty: there are none. */
  quotas: Quota[];
}

/** A limit on what a tenant or a principal may use. */
export interface Quota {
  /** Such as "max_sandboxes", "max_memory_bytes" or "creations_per_minute". */
  name: string;
  /** Whose it is: "tenant" or "principal". */
  scope: string;
  /** A number, bytes, or thousandths of a core. */
  limit: number;
  /** What is in use; -1: the server cannot count now. */
  used: number;
}

/** Bounds and defaults of a server; an undefined time means none. */
export interface ServerLimits {
  /** Largest message in either direction, in bytes. */
  maxMessageBytes: number;
  defaultTimeoutMs?: number;
  maxTimeoutMs?: number;
  /** Output kept per command for `attach`, in bytes. */
  outputLogBytes: number;
  endRetentionMs?: number;
  defaultIdleTtlMs?: number;
  defaultTtlMs?: number;
}

/** @internal What is known of the sandbox that a handle is for. */
export interface HandleFacts {
  incarnation?: string;
  created?: boolean;
  access?: AccessPolicy | undefined;
}

/** What the API guarantees to be there. */
export function required<T>(value: T | undefined): T {
  if (value === undefined) {
    throw new InternalError("the server broke the protocol: its reply is incomplete", { code: "DATA_LOSS" });
  }
  return value;
}

/** Leaves out the entries that are undefined. */
export function defined<T extends object>(entries: T): { [K in keyof T]: Exclude<T[K], undefined> } {
  const kept = Object.entries(entries).filter(([, value]) => value !== undefined);
  return Object.fromEntries(kept) as { [K in keyof T]: Exclude<T[K], undefined> };
}

/**
 * Milliseconds as a wire duration.
 *
 * @throws InvalidRequestError when they are not a finite number, or negative.
 */
export function duration(field: string, ms: number | undefined): Duration | undefined {
  return ms === undefined ? undefined : durationFromMs(Math.round(checkedMs(field, ms)));
}

/** A wire duration in milliseconds. */
export function milliseconds(d: Duration | undefined): number | undefined {
  return d === undefined ? undefined : durationMs(d);
}

/** A wire time. */
export function date(t: Timestamp | undefined): Date | undefined {
  return t === undefined ? undefined : timestampDate(t);
}

const MODES: Record<NetworkModeName, NetworkMode> = {
  NONE: NetworkMode.NONE,
  PROXY: NetworkMode.PROXY,
  FULL: NetworkMode.FULL,
};

/** The wire form of a spec. */
export function specMessage(spec: SandboxSpec): MessageInitShape<typeof SandboxSpecSchema> {
  const { resources, network, networkAllow, image, env, workingDirectory, access, command } = spec;
  const message: MessageInitShape<typeof SandboxSpecSchema> = defined({
    image,
    env,
    workingDirectory,
    access,
    command,
  });
  if (resources !== undefined) {
    const { memoryBytes, diskBytes, ...counts } = resources;
    message.resources = {
      ...counts,
      memoryBytes: count("resources.memoryBytes", memoryBytes ?? 0),
      diskBytes: count("resources.diskBytes", diskBytes ?? 0),
    };
  }
  if (network !== undefined || networkAllow !== undefined) {
    message.network = {
      mode: network === undefined ? NetworkMode.UNSPECIFIED : MODES[network],
      allow: networkAllow ?? [],
    };
  }
  return message;
}

/** The plain form of a sandbox. */
export function sandboxInfo(message: SandboxMessage): SandboxInfo {
  return defined({
    id: message.sandboxId,
    incarnation: message.incarnation,
    state: stateName(message.state),
    stateMessage: message.stateMessage,
    createTime: date(message.createTime),
    lastActivityTime: date(message.lastActivityTime),
    expireTime: date(message.expireTime),
    ttlMs: milliseconds(message.ttl),
    idleTtlMs: milliseconds(message.idleTtl),
    labels: { ...message.labels },
    template: message.template,
    spec: message.spec === undefined ? {} : spec(message.spec),
    fromPool: message.fromPool,
    substrateName: message.substrateName,
    imageDigest: message.imageDigest,
    isolation: {
      runtime: message.isolation?.runtime ?? "",
      network: modeName(message.isolation?.network ?? NetworkMode.UNSPECIFIED) ?? "UNSPECIFIED",
      unprivileged: message.isolation?.unprivileged ?? false,
      readOnlySystem: message.isolation?.readOnlySystem ?? false,
      notEnforced: [...(message.isolation?.notEnforced ?? [])],
    },
  }) as SandboxInfo;
}

function spec(message: SandboxSpecMessage): SandboxSpec {
  const mode = modeName(message.network?.mode ?? NetworkMode.UNSPECIFIED);
  return defined({
    image: message.image || undefined,
    resources:
      message.resources &&
      (defined({
        memoryBytes: Number(message.resources.memoryBytes) || undefined,
        cpuMillis: message.resources.cpuMillis || undefined,
        maxProcesses: message.resources.maxProcesses || undefined,
        diskBytes: Number(message.resources.diskBytes) || undefined,
      }) as Resources),
    env: { ...message.env },
    workingDirectory: message.workingDirectory || undefined,
    network: mode,
    networkAllow: message.network?.allow.map((rule) => egressRule(rule)),
    access: message.access && policy(message.access),
    command: message.command.length === 0 ? undefined : [...message.command],
  }) as SandboxSpec;
}

function egressRule({ hosts, cidrs, ports, group, methods, paths, secret }: EgressRuleMessage): EgressRule {
  if (group) {
    return { group };
  }
  return defined({
    hosts: [...hosts],
    cidrs: [...cidrs],
    ports: [...ports],
    methods: methods.length === 0 ? undefined : [...methods],
    paths: paths.length === 0 ? undefined : [...paths],
    secret:
      secret &&
      (defined({
        name: secret.name,
        header: secret.header || undefined,
        prefix: secret.prefix || undefined,
        user: secret.user || undefined,
        placeholder: secret.placeholder || undefined,
      }) as EgressSecret),
  }) as EgressRule;
}

function policy(message: NonNullable<SandboxSpecMessage["access"]>): AccessPolicy {
  return {
    rootDir: message.rootDir,
    virtual: message.virtual,
    writeAllowPrefixes: [...message.writeAllowPrefixes],
    writeDenyPrefixes: [...message.writeDenyPrefixes],
    readDenyPrefixes: [...message.readDenyPrefixes],
    denyCommands: [...message.denyCommands],
  };
}

/** The plain form of a server's description. */
export function serverInfo(message: GetServerInfoResponse): ServerInfo {
  const limits = message.limits;
  return {
    version: message.version,
    provider: message.provider,
    capabilities: [...message.capabilities],
    limits: defined({
      maxMessageBytes: Number(limits?.maxMessageBytes ?? 0n),
      defaultTimeoutMs: milliseconds(limits?.defaultTimeout),
      maxTimeoutMs: milliseconds(limits?.maxTimeout),
      outputLogBytes: Number(limits?.outputLogBytes ?? 0n),
      endRetentionMs: milliseconds(limits?.endRetention),
      defaultIdleTtlMs: milliseconds(limits?.defaultIdleTtl),
      defaultTtlMs: milliseconds(limits?.defaultTtl),
    }) as ServerLimits,
    enforcement: message.enforcement.map(({ name, enforced, detail }) => ({ name, enforced, detail })),
    secrets: message.secrets.map(({ name, source, hosts }) => ({ name, source, hosts: [...hosts] })),
    templates: [...message.templates],
    principal: {
      name: message.principal?.name ?? "",
      tenant: message.principal?.tenant ?? "",
      role: message.principal?.role ?? "",
    },
    quotas: message.quotas.map(({ name, scope, limit, used }) => ({
      name,
      scope,
      limit: Number(limit),
      used: Number(used),
    })),
  };
}

const STATES: readonly State[] = ["UNSPECIFIED", "CREATING", "ACTIVE", "SUSPENDED", "DELETING", "FAILED"];

/** A state as it is shown. */
export function stateName(state: SandboxState): State {
  return STATES[state] ?? "UNSPECIFIED";
}

/** The wire form of a state. */
export function stateValue(state: State): SandboxState {
  return STATES.indexOf(state) as SandboxState;
}

function modeName(mode: NetworkMode): NetworkModeName | undefined {
  return (Object.keys(MODES) as NetworkModeName[]).find((name) => MODES[name] === mode);
}
