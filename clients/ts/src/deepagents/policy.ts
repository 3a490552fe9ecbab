/** The short names of policies and behaviour, separate from what describes a sandbox. */

import type { CreateOptions } from "../client.js";
import { InvalidRequestError } from "../errors.js";
import { type AccessPolicy, defined } from "../values.js";
import type { BackendOptions, PolicyOptions, SandgateSandboxOptions } from "./options.js";

const DEFAULT_ROOT = "/workspace";

/**
 * The policy that options describe; undefined: none. Short names go before the same
 * of `access`, and their prefixes are paths of the sandbox whichever of the two makes
 * the root virtual.
 *
 * @throws InvalidRequestError when, with a virtual root, an allowed prefix is outside of it.
 */
export function policyOf(options: PolicyOptions & { access?: AccessPolicy }): AccessPolicy | undefined {
  const { virtualMode, denyCommands, access } = options;
  const virtual = virtualMode ?? access?.virtual ?? false;
  // An empty root is none, whatever the environment has.
  const given = options.rootDir ?? (access === undefined ? process.env["SANDGATE_ROOT_DIR"] : undefined);
  const rootDir = given || access?.rootDir || (virtualMode ? DEFAULT_ROOT : undefined);
  let allowed = options.allowPrefixes?.map(bare);
  let denied = options.denyPrefixes?.map(bare);
  if (virtual && rootDir !== undefined) {
    // The server takes prefixes as it takes paths, relative to the root.
    const root = bare(rootDir);
    allowed = allowed?.map((prefix) => beneath(prefix, root));
    const within = denied?.filter((prefix) => holds(root, prefix) || holds(prefix, root)) ?? [];
    denied = denied?.concat(within.map((prefix) => beneath(prefix, root)));
  }
  const named = defined({
    rootDir: rootDir === undefined ? undefined : bare(rootDir),
    virtual: virtualMode,
    writeAllowPrefixes: allowed,
    writeDenyPrefixes: denied,
    denyCommands,
  });
  const whole = { ...access, ...named };
  return Object.keys(whole).length === 0 ? undefined : whole;
}

function beneath(prefix: string, root: string): string {
  if (root === "/") return prefix;
  if (prefix !== "" && holds(prefix, root)) return "/";
  if (holds(root, prefix)) return prefix.slice(root.length);
  throw new InvalidRequestError(`allowPrefixes: ${prefix} is not beneath rootDir, ${root}`, {
    code: "INVALID_ARGUMENT",
  });
}

/** True when `path` is the directory, or lies in it. */
function holds(directory: string, path: string): boolean {
  return `${path}/`.startsWith(directory === "/" ? "/" : `${directory}/`);
}

function bare(path: string): string {
  return path.replace(/\/+$/, "") || path.slice(0, 1);
}

/** Lifetimes in the client's own units. */
export function lifetimes(options: {
  ttlSeconds?: number | undefined;
  ttlIdleSeconds?: number | undefined;
}): Pick<CreateOptions, "ttlMs" | "idleTtlMs"> {
  const { ttlSeconds, ttlIdleSeconds } = options;
  return {
    ...(ttlSeconds === undefined ? {} : { ttlMs: ttlSeconds * 1000 }),
    ...(ttlIdleSeconds === undefined ? {} : { idleTtlMs: ttlIdleSeconds * 1000 }),
  };
}

/** Separates the options of a sandbox from those of a backend. */
export function split(options: SandgateSandboxOptions): { spec: CreateOptions; backend: BackendOptions } {
  const {
    client,
    connection,
    commandTimeoutMs,
    commandTimeout,
    startupTimeoutMs,
    maxOutputSize,
    onOutput,
    auditLog,
    rootDir,
    virtualMode,
    allowPrefixes,
    denyPrefixes,
    denyCommands,
    sandboxId,
    initialFiles,
    reuseSandbox,
    deleteOnClose,
    skipCleanup,
    ttlSeconds,
    ttlIdleSeconds,
    ...described
  } = options;
  const policy = { rootDir, virtualMode, allowPrefixes, denyPrefixes, denyCommands };
  const behaviour = {
    client,
    connection,
    commandTimeoutMs,
    commandTimeout,
    startupTimeoutMs,
    maxOutputSize,
    onOutput,
    auditLog,
  };
  const id = described.id || sandboxId;
  const access = policyOf(options);
  return {
    spec: {
      ...described,
      ...lifetimes({ ttlSeconds, ttlIdleSeconds }),
      ...defined({ id: id || undefined, access }),
    } as CreateOptions,
    backend: defined({ ...behaviour, ...policy }) as BackendOptions,
  };
}
