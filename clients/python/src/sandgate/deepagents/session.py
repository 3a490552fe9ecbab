"""`SandgateSession`: one sandbox, made when it is first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from sandgate import _plans
from sandgate.deepagents._acquire import AcquiringBackend, LazySandbox
from sandgate.deepagents._options import CreateOptions, split_options
from sandgate.deepagents.threads import SandgateThreadBackend, current_thread
from sandgate.options import new_sandbox_id

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack


class SandgateSession(AcquiringBackend):
    """A backend with one sandbox and an explicit lifecycle.

    The sandbox is made, or taken where the id exists, by `start` or the first
    operation, and deleted by `stop`, which is also the end as a context manager.
    A lost sandbox is an error of every operation, or with `recreate` a new one
    of which the AI agent is notified.

    Args:
        reuse_sandbox: False: each `start` makes a fresh sandbox, and deletes the
            one before.
        skip_cleanup: `stop` leaves the sandbox, for its lifetimes to end or for
            another session with the same `sandbox_id`.
        recreate: Make a new sandbox in place of a lost one.
        **options: What describes a sandbox (`sandgate.options.SandboxSpec`) and
            the options of `SandgateSandbox`.
    """

    def __init__(
        self,
        *,
        reuse_sandbox: bool = True,
        skip_cleanup: bool = False,
        recreate: bool = False,
        **options: Unpack[CreateOptions],
    ) -> None:
        given = split_options(options)
        super().__init__(given, recreate=recreate)
        self._reuse = reuse_sandbox
        self._skip_cleanup = skip_cleanup
        target = _plans.Target(given.spec.get("sandbox_id") or new_sandbox_id())
        self._only = LazySandbox(target, dict(given.spec.get("labels", {})))

    def start(self) -> Self:
        """Make or take the sandbox now."""
        if not self._reuse:
            self.stop()
        self.acquire()
        return self

    async def astart(self) -> Self:
        """Async twin of `start`."""
        if not self._reuse:
            await self.astop()
        await self.aacquire()
        return self

    def stop(self) -> bool:
        """Delete the sandbox; False when there was none, or it is left."""
        if self._leaves():
            return False
        return super().stop()

    async def astop(self) -> bool:
        """Async twin of `stop`."""
        if self._leaves():
            return False
        return await super().astop()

    @property
    def _lazy(self) -> LazySandbox:
        return self._only

    def _leaves(self) -> bool:
        if self._only.ready and not self._skip_cleanup:
            return False
        self._forget()
        return True

    def _leave(self) -> None:
        try:
            self.stop()
        finally:
            self.close()

    async def _aleave(self) -> None:
        try:
            await self.astop()
        finally:
            await self.aclose()


def create_sandbox_backend_factory(
    **options: Unpack[CreateOptions],
) -> Callable[[Any], AcquiringBackend]:
    """Return a function from a run's `ToolRuntime` to its backend.

    For code that still calls such a factory; deepagents since 0.7 takes the
    backend itself. Whatever runtime it is called with, a run that has a thread
    works in its thread's sandbox, and all others share one. No call makes a
    sandbox: that is done by the first operation.

    Args:
        **options: As for `SandgateThreadBackend`.
    """
    threads = SandgateThreadBackend(**options)
    session = SandgateSession(**options)

    def factory(runtime: Any = None) -> AcquiringBackend:
        configurable = (getattr(runtime, "config", None) or {}).get("configurable") or {}
        if configurable.get("thread_id"):
            return threads
        try:
            current_thread()
        except ValueError:
            return session
        return threads

    return factory
