/** For code that passes a factory in place of a backend. */

import { SandgateSandbox } from "./backend.js";
import type { NativeBackend } from "./native.js";
import type { SandgateSandboxOptions } from "./options.js";
import { runConfig } from "./streaming.js";
import { SandgateThreadBackend, type ThreadOptions } from "./threads.js";

/** Gives the backend of a run. */
export interface SandboxBackendFactory extends AsyncDisposable {
  /** @param runtime What deepagents calls a factory with; its `config` may name the thread. */
  (runtime?: unknown): NativeBackend;
  /** The backend of all runs that have a thread. */
  readonly threads: SandgateThreadBackend;
}

/**
 * Returns a factory for `createDeepAgent({ backend: factory })`. A run that has a
 * thread works in its thread's sandbox, and all others share one. Called with each
 * tool call, it makes neither a connection nor a sandbox each time: the first
 * operation makes the sandbox. Disposing it ends the connections and deletes the
 * shared sandbox; those of threads stay.
 */
export function createSandboxBackendFactory(options: ThreadOptions = {}): SandboxBackendFactory {
  const threads = new SandgateThreadBackend(options);
  const { recreate: _, ...described } = options;
  let session: SandgateSandbox | undefined;
  const factory = (runtime?: unknown) => {
    const given = (runtime as { config?: ReturnType<typeof runConfig> } | undefined)?.config;
    const hasThread = [given, runConfig()].some((config) => Boolean(config?.configurable?.["thread_id"]));
    if (hasThread) return threads;
    session ??= new SandgateSandbox({ ...(described as SandgateSandboxOptions), reuseSandbox: true });
    return session;
  };
  return Object.assign(factory, {
    threads,
    [Symbol.asyncDispose]: async () => {
      threads.close();
      await session?.close();
    },
  });
}
