"""`SandgateThreadBackend`: one backend object, one sandbox per thread."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final

from langgraph.config import get_config

from sandgate import _plans
from sandgate.deepagents._acquire import RECREATED, AcquiringBackend, LazySandbox
from sandgate.deepagents._options import CreateOptions, split_options
from sandgate.deepagents.provider import THREAD_LABEL

if TYPE_CHECKING:
    from typing import Unpack

__all__ = ["RECREATED", "SandgateThreadBackend", "current_thread", "thread_sandbox_id"]

_NAME_LENGTH: Final = 80
_DIGEST_LENGTH: Final = 12


def thread_sandbox_id(thread_id: str) -> str:
    """Return the id of a thread's sandbox: readable, and different for each thread."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", thread_id)[:_NAME_LENGTH]
    return f"thread-{name}-{_digest(thread_id)}"


def current_thread() -> str:
    """Return the thread of the agent's run that this is called in.

    Raises:
        ValueError: It is called outside of a run, or the run has no thread.
    """
    try:
        configurable: dict[str, Any] = get_config().get("configurable") or {}
    except RuntimeError:
        configurable = {}
    thread_id = configurable.get("thread_id")
    if not thread_id:
        raise ValueError(
            "one sandbox per thread needs a thread: "
            "invoke the agent with config={'configurable': {'thread_id': '...'}}"
        )
    return str(thread_id)


class SandgateThreadBackend(AcquiringBackend):
    """A backend that gives each thread of an agent a sandbox of its own.

    The thread is that of the run in which a method is called, so one instance
    serves all threads of all agents. The sandbox's id follows from the thread's,
    so every process finds the same one; it is made with the thread's first
    operation, by whichever caller comes first.

    A sandbox that was lost (deleted, expired, failed, or without its disk) is an error
    of every operation, never a silently empty sandbox. With `recreate`, the
    operation that finds it lost fails, saying that a new sandbox was made, and
    the next ones work there.

    Closing it, as a context manager too, leaves the sandboxes; the lifetimes
    `ttl` and `idle_ttl` end them, or `stop` within a run.

    Args:
        recreate: Make a new sandbox for a thread that lost its own.
        **options: What describes a sandbox (`sandgate.options.SandboxSpec`, but
            `sandbox_id`) and the options of `SandgateSandbox`.

    Raises:
        TypeError: A sandbox id was given.
    """

    def __init__(self, *, recreate: bool = False, **options: Unpack[CreateOptions]) -> None:
        given = split_options(options)
        if "sandbox_id" in given.spec:
            raise TypeError("each thread has its own sandbox_id, none can be given")
        super().__init__(given, recreate=recreate)
        self._threads: dict[str, LazySandbox] = {}

    @property
    def id(self) -> str:
        """The id of the running thread's sandbox; outside of a run, a constant."""
        try:
            return self._target.sandbox_id
        except ValueError:
            return "sandgate-threads"

    @property
    def acquired(self) -> tuple[str, ...]:
        """Ids of the sandboxes that this object made or took so far."""
        return tuple(t.target.sandbox_id for t in tuple(self._threads.values()) if t.ready)

    def expect(self, thread_id: str) -> None:
        """Say that a thread had a sandbox before: without it, it is lost.

        This is known by itself only of threads that this object served.
        """
        self._of(thread_id).expected = True

    def _leave(self) -> None:
        self.close()

    async def _aleave(self) -> None:
        await self.aclose()

    @property
    def _lazy(self) -> LazySandbox:
        return self._of(current_thread())

    def _of(self, thread_id: str) -> LazySandbox:
        known = self._threads.get(thread_id)
        if known is None:
            target = _plans.Target(thread_sandbox_id(thread_id))
            labels = {**self._given.spec.get("labels", {}), THREAD_LABEL: _digest(thread_id)}
            known = self._threads.setdefault(thread_id, LazySandbox(target, labels))
        return known


def _digest(thread_id: str) -> str:
    return hashlib.sha256(thread_id.encode()).hexdigest()[:_DIGEST_LENGTH]
