"""Backends that make their sandbox when it is first needed, and notice its loss."""

from __future__ import annotations

from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from sandgate import _plans
from sandgate._calls import DownloadStep
from sandgate.deepagents._native import NativeBackend
from sandgate.deepagents._options import DEFAULT_WORKING_DIRECTORY
from sandgate.errors import (
    SandboxExistsError,
    SandboxNotActiveError,
    SandboxNotFoundError,
    SandboxReplacedError,
    SandgateError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from deepagents.backends.protocol import ExecuteResponse, GrepResult

    from sandgate._calls import Plan, Step
    from sandgate.deepagents._options import SplitOptions
    from sandgate.info import SandboxInfo
    from sandgate.options import ExecuteOptions, SandboxSpec
    from sandgate.process import Event

T = TypeVar("T")

_FAILED: Final = "FAILED"
"""The state in which a sandbox can only be deleted."""

RECREATED: Final = (
    "The sandbox was lost and a new, empty one was made. All files and processes of the old one are gone."
)
"""What an AI agent reads after its sandbox was recreated."""


def is_lost(error: SandgateError) -> bool:
    """Return whether the sandbox's files and processes are permanently lost."""
    if isinstance(error, SandboxNotActiveError):
        return error.metadata.get("state") == _FAILED
    return isinstance(error, SandboxNotFoundError | SandboxReplacedError)


def usable(found: SandboxInfo) -> SandboxInfo:
    """Return a sandbox that was found.

    Raises:
        SandboxNotActiveError: It failed.
    """
    if found.state == _FAILED:
        text = f"the sandbox failed: {found.state_message}" if found.state_message else "the sandbox failed"
        raise SandboxNotActiveError(
            text,
            code="FAILED_PRECONDITION",
            reason="SANDBOX_NOT_ACTIVE",
            metadata={"state": _FAILED, "sandbox_id": found.sandbox_id},
        )
    return found


@dataclass(slots=True)
class LazySandbox:
    """A sandbox that exists, or that the first operation creates."""

    target: _plans.Target
    labels: dict[str, str] = field(default_factory=dict)
    working_directory: str = DEFAULT_WORKING_DIRECTORY
    expected: bool = False
    """It existed before, so a new one must not be created silently."""
    ready: bool = False
    note: str = ""


class AcquiringBackend(NativeBackend):
    """Creates or adopts a sandbox with the first operation.

    `_lazy` of a subclass decides which one.
    """

    def __init__(self, given: SplitOptions, *, recreate: bool) -> None:
        super().__init__(**given.own)
        self._given = given
        self._recreate = recreate

    @property
    def _lazy(self) -> LazySandbox:
        raise NotImplementedError

    @property
    def _target(self) -> _plans.Target:
        return self._lazy.target

    @property
    def _working_directory(self) -> str:
        return self._lazy.working_directory

    def acquire(self) -> str:
        """Make or take the sandbox now; return its id.

        Raises:
            SandboxReplacedError: It is lost, and `recreate` is not set.
            SandgateError: It could not be made.
        """
        lazy = self._lazy
        return self._acquired(lazy, self._client.run(self._ready(lazy)))

    async def aacquire(self) -> str:
        """Async twin of `acquire`."""
        lazy = self._lazy
        return self._acquired(lazy, await self._async_client.run(self._ready(lazy)))

    def stop(self) -> bool:
        """Delete the sandbox; the next operation makes a new one."""
        self._forget()
        return super().stop()

    async def astop(self) -> bool:
        """Async twin of `stop`."""
        self._forget()
        return await super().astop()

    def _forget(self) -> None:
        lazy = self._lazy
        lazy.target.incarnation = ""
        lazy.ready = lazy.expected = False

    def _acquired(self, lazy: LazySandbox, failure: SandgateError | None) -> str:
        if failure is not None:
            if not (self._recreate and lazy.ready):
                raise failure
            lazy.note = RECREATED
        return lazy.target.sandbox_id

    def _with_note(self, response: ExecuteResponse) -> ExecuteResponse:
        lazy = self._lazy
        note, lazy.note = lazy.note, ""
        return replace(response, output=f"{note}\n{response.output}") if note else response

    def _acquire(self, lazy: LazySandbox) -> Plan[None]:
        if lazy.ready:
            return
        if lazy.expected:
            found = usable((yield from _plans.get(lazy.target.sandbox_id)))
        else:
            found = usable((yield from self._make(lazy)))
        lazy.target.incarnation = found.incarnation
        lazy.working_directory = self._given.directory(found)
        lazy.target.access = self._given.narrowing(found)
        lazy.ready = lazy.expected = True

    def _make(self, lazy: LazySandbox) -> Plan[Any]:
        sandbox_id = lazy.target.sandbox_id
        spec = cast("SandboxSpec", {**self._given.spec, "sandbox_id": sandbox_id, "labels": lazy.labels})
        try:
            made, _ = yield from _plans.create(spec, self._given.config)
        except SandboxExistsError:
            # Made with another spec, by an older version of the program say.
            return (yield from _plans.get(sandbox_id))
        return made

    def _lost(self, lazy: LazySandbox, error: SandgateError) -> Plan[SandgateError]:
        """Return the error to report, after recreating the sandbox if `recreate` is set."""
        if not self._recreate:
            text = f"the sandbox is lost, with its files and processes: {error.message}"
            return SandboxReplacedError(text, code=error.code, reason=error.reason)
        lazy.target.incarnation = ""
        lazy.ready = lazy.expected = False
        try:
            if isinstance(error, SandboxNotActiveError):
                yield from self._delete_failed(lazy)
            yield from self._acquire(lazy)
        except SandgateError as e:
            return e
        return SandboxReplacedError(RECREATED, code=error.code, reason="SANDBOX_REPLACED")

    def _delete_failed(self, lazy: LazySandbox) -> Plan[None]:
        """Delete a failed sandbox, and none that another process made in its place."""
        sandbox_id = lazy.target.sandbox_id
        with suppress(SandboxNotFoundError, SandboxReplacedError):
            found = yield from _plans.get(sandbox_id)
            if found.state == _FAILED:
                yield from _plans.delete(_plans.Target(sandbox_id, found.incarnation))

    def _plan(self, plan: Plan[T]) -> Plan[T]:
        return self._guarded(self._lazy, super()._plan(plan))

    def _guarded(self, lazy: LazySandbox, plan: Plan[T]) -> Plan[T]:
        failure = yield from self._ready(lazy)
        try:
            step = next(plan)
            if failure is not None and self._reports_later(lazy, step):
                failure = None
            while True:
                if failure is None:
                    try:
                        answer = yield from self._take(lazy, step)
                    except SandgateError as e:
                        failure = e
                    else:
                        step = plan.send(answer)
                        continue
                lost, failure = failure, None
                step = plan.throw(lost)
        except StopIteration as end:
            result: T = end.value
            return result

    def _ready(self, lazy: LazySandbox) -> Plan[SandgateError | None]:
        try:
            yield from self._acquire(lazy)
        except SandgateError as e:
            return (yield from self._lost(lazy, e)) if is_lost(e) else e
        return None

    def _take(self, lazy: LazySandbox, step: Step) -> Plan[Any]:
        try:
            return (yield step)
        except SandgateError as e:
            if not is_lost(e):
                raise
            lost = yield from self._lost(lazy, e)
            if isinstance(step, DownloadStep) and self._reports_later(lazy, step):
                step.request.expected_incarnation = lazy.target.incarnation
                return (yield step)
            raise lost from e

    def _reports_later(self, lazy: LazySandbox, step: Step) -> bool:
        # Memory and skills are read before the AI agent can be notified, and
        # expect missing files to be just that.
        if not (self._recreate and lazy.ready and isinstance(step, DownloadStep)):
            return False
        lazy.note = RECREATED
        return True

    def _grep(
        self, pattern: str, path: str | None, glob: str | None, max_count: int | None
    ) -> Plan[GrepResult]:
        # The working directory is known once there is a sandbox.
        lazy = self._lazy
        if not lazy.expected:
            with suppress(SandgateError):
                yield from self._acquire(lazy)
        return (yield from super()._grep(pattern, path, glob, max_count))

    def _events(self, command: str, options: ExecuteOptions) -> Generator[Event, None, None]:
        lazy = self._lazy
        failure = self._client.run(self._ready(lazy))
        if failure is not None:
            raise failure
        try:
            yield from super()._events(command, options)
        except SandgateError as e:
            if not is_lost(e):
                raise
            raise self._client.run(self._lost(lazy, e)) from e

    async def _aevents(self, command: str, options: ExecuteOptions) -> AsyncGenerator[Event, None]:
        lazy = self._lazy
        failure = await self._async_client.run(self._ready(lazy))
        if failure is not None:
            raise failure
        try:
            async with aclosing(super()._aevents(command, options)) as events:
                async for event in events:
                    yield event
        except SandgateError as e:
            if not is_lost(e):
                raise
            raise (await self._async_client.run(self._lost(lazy, e))) from e
