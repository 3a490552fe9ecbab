"""`SandgateThreadBackend`: one backend object, one sandbox per thread."""

from __future__ import annotations

import hashlib
import re
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from langgraph.config import get_config

from sandgate import _plans
from sandgate._calls import DownloadStep
from sandgate.deepagents._native import NativeBackend
from sandgate.deepagents._options import CreateOptions, split
from sandgate.deepagents.backend import DEFAULT_WORKING_DIRECTORY, MAX_OUTPUT_SIZE
from sandgate.deepagents.provider import THREAD_LABEL
from sandgate.errors import SandboxExistsError, SandboxNotFoundError, SandboxReplacedError, SandgateError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator
    from types import TracebackType
    from typing import Unpack

    from deepagents.backends.protocol import ExecuteResponse, GrepResult

    from sandgate._calls import Plan, Step
    from sandgate.options import ExecuteOptions, SandboxSpec
    from sandgate.process import Event

T = TypeVar("T")

_LOST: Final = (SandboxNotFoundError, SandboxReplacedError)
_NAME_LENGTH: Final = 80
_DIGEST_LENGTH: Final = 12

RECREATED: Final = (
    "Note: this thread's sandbox was lost and a new, empty one was made. "
    "All files and processes of the old one are gone."
)
"""What an agent is told after its sandbox was made anew."""


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


@dataclass(slots=True)
class _Thread:
    target: _plans.Target
    labels: dict[str, str] = field(default_factory=dict)
    working_directory: str = DEFAULT_WORKING_DIRECTORY
    expected: bool = False
    """It had a sandbox before, so that none may be made silently."""
    ready: bool = False
    note: str = ""


class SandgateThreadBackend(NativeBackend):
    """A backend that gives each thread of an agent a sandbox of its own.

    The thread is that of the run in which a method is called, so one instance
    serves all threads of all agents. The sandbox's id follows from the thread's,
    so every process finds the same one; it is made with the thread's first
    operation, by whichever caller comes first.

    A sandbox that was lost (deleted, expired, or without its disk) is an error
    of every operation, never a silently empty place. With `recreate`, the
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
        spec, backend = split(options)
        if "sandbox_id" in spec:
            raise TypeError("each thread has its own sandbox_id, none can be given")
        super().__init__(
            config=backend["config"],
            command_timeout=backend.get("command_timeout"),
            max_output_size=backend.get("max_output_size", MAX_OUTPUT_SIZE),
            on_output=backend.get("on_output"),
            raise_on_transport_error=backend.get("raise_on_transport_error", False),
        )
        self._spec = spec
        self._recreate = recreate
        self._create_timeout = backend["config"].create_timeout
        self._threads: dict[str, _Thread] = {}

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

    def acquire(self) -> str:
        """Make or take the running thread's sandbox now; return its id.

        Raises:
            SandboxReplacedError: It is lost, and `recreate` is not set.
            SandgateError: It could not be made.
            ValueError: There is no running thread.
        """
        thread = self._of(current_thread())
        return self._acquired(thread, self._client.run(self._ready(thread)))

    async def aacquire(self) -> str:
        """Async twin of `acquire`."""
        thread = self._of(current_thread())
        return self._acquired(thread, await self._async_client.run(self._ready(thread)))

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a shell command in the thread's sandbox; see `SandgateSandbox.execute`."""
        return self._noted(super().execute(command, timeout=timeout))

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:  # noqa: ASYNC109
        """Async twin of `execute`. Cancelling it kills the command."""
        return self._noted(await super().aexecute(command, timeout=timeout))

    def stop(self) -> bool:
        """Delete the running thread's sandbox; its next operation makes a new one."""
        self._forget()
        return super().stop()

    async def astop(self) -> bool:
        """Async twin of `stop`."""
        self._forget()
        return await super().astop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def _target(self) -> _plans.Target:
        return self._of(current_thread()).target

    @property
    def _working_directory(self) -> str:
        return self._of(current_thread()).working_directory

    def _of(self, thread_id: str) -> _Thread:
        known = self._threads.get(thread_id)
        if known is None:
            target = _plans.Target(thread_sandbox_id(thread_id))
            made = _Thread(target, {**self._spec.get("labels", {}), THREAD_LABEL: _digest(thread_id)})
            known = self._threads.setdefault(thread_id, made)
        return known

    def _forget(self) -> None:
        thread = self._of(current_thread())
        thread.target.incarnation = ""
        thread.ready = thread.expected = False

    def _acquired(self, thread: _Thread, failure: SandgateError | None) -> str:
        if failure is not None:
            if not (self._recreate and thread.ready):
                raise failure
            thread.note = RECREATED
        return thread.target.sandbox_id

    def _noted(self, response: ExecuteResponse) -> ExecuteResponse:
        thread = self._of(current_thread())
        note, thread.note = thread.note, ""
        return replace(response, output=f"{note}\n{response.output}") if note else response

    def _acquire(self, thread: _Thread) -> Plan[None]:
        if thread.ready:
            return
        if thread.expected:
            found = yield from _plans.get(thread.target.sandbox_id)
        else:
            found = yield from self._make(thread)
        thread.target.incarnation = found.incarnation
        thread.working_directory = found.working_directory or DEFAULT_WORKING_DIRECTORY
        thread.ready = thread.expected = True

    def _make(self, thread: _Thread) -> Plan[Any]:
        sandbox_id = thread.target.sandbox_id
        spec = cast("SandboxSpec", {**self._spec, "sandbox_id": sandbox_id, "labels": thread.labels})
        try:
            made, _ = yield from _plans.create(spec, self._create_timeout)
        except SandboxExistsError:
            # Made with another spec, by an older version of the program say.
            return (yield from _plans.get(sandbox_id))
        return made

    def _lost(self, thread: _Thread, error: SandgateError) -> Plan[SandgateError]:
        """Return what to tell, after the sandbox was made anew if that is wished."""
        if not self._recreate:
            text = f"this thread's sandbox is lost, with its files and processes: {error.message}"
            return SandboxReplacedError(text, code=error.code, reason=error.reason)
        thread.target.incarnation = ""
        thread.ready = thread.expected = False
        try:
            yield from self._acquire(thread)
        except SandgateError as e:
            return e
        return SandboxReplacedError(RECREATED, code=error.code, reason="SANDBOX_REPLACED")

    def _plan(self, plan: Plan[T]) -> Plan[T]:
        return self._guarded(self._of(current_thread()), super()._plan(plan))

    def _guarded(self, thread: _Thread, plan: Plan[T]) -> Plan[T]:
        failure = yield from self._ready(thread)
        try:
            step = next(plan)
            if failure is not None and self._tells_later(thread, step):
                failure = None
            while True:
                if failure is None:
                    try:
                        answer = yield from self._take(thread, step)
                    except SandgateError as e:
                        failure = e
                    else:
                        step = plan.send(answer)
                        continue
                told, failure = failure, None
                step = plan.throw(told)
        except StopIteration as end:
            result: T = end.value
            return result

    def _ready(self, thread: _Thread) -> Plan[SandgateError | None]:
        try:
            yield from self._acquire(thread)
        except _LOST as e:
            return (yield from self._lost(thread, e))
        except SandgateError as e:
            return e
        return None

    def _take(self, thread: _Thread, step: Step) -> Plan[Any]:
        try:
            return (yield step)
        except _LOST as e:
            told = yield from self._lost(thread, e)
            if isinstance(step, DownloadStep) and self._tells_later(thread, step):
                step.request.expected_incarnation = thread.target.incarnation
                return (yield step)
            raise told from e

    def _tells_later(self, thread: _Thread, step: Step) -> bool:
        # Memory and skills are read before the agent can be told anything, and
        # expect missing files to be just that.
        if not (self._recreate and thread.ready and isinstance(step, DownloadStep)):
            return False
        thread.note = RECREATED
        return True

    def _grep(
        self, pattern: str, path: str | None, glob: str | None, max_count: int | None
    ) -> Plan[GrepResult]:
        # The working directory is known once there is a sandbox.
        thread = self._of(current_thread())
        if not thread.expected:
            with suppress(SandgateError):
                yield from self._acquire(thread)
        return (yield from super()._grep(pattern, path, glob, max_count))

    def _events(self, command: str, options: ExecuteOptions) -> Generator[Event, None, None]:
        thread = self._of(current_thread())
        failure = self._client.run(self._ready(thread))
        if failure is not None:
            raise failure
        try:
            yield from super()._events(command, options)
        except _LOST as e:
            raise self._client.run(self._lost(thread, e)) from e

    async def _aevents(self, command: str, options: ExecuteOptions) -> AsyncGenerator[Event, None]:
        thread = self._of(current_thread())
        failure = await self._async_client.run(self._ready(thread))
        if failure is not None:
            raise failure
        try:
            async with aclosing(super()._aevents(command, options)) as events:
                async for event in events:
                    yield event
        except _LOST as e:
            raise (await self._async_client.run(self._lost(thread, e))) from e


def _digest(thread_id: str) -> str:
    return hashlib.sha256(thread_id.encode()).hexdigest()[:_DIGEST_LENGTH]
