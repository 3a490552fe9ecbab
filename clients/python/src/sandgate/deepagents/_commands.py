"""What the backends share: commands, and the sandbox's life."""

from __future__ import annotations

from contextlib import aclosing, closing
from typing import TYPE_CHECKING, TypeVar

from deepagents.backends.protocol import ExecuteOffloadResult
from deepagents.backends.sandbox import BaseSandbox

from sandgate._context import AsyncManaged, Managed
from sandgate.aio import AsyncClient
from sandgate.aio_sandbox import AsyncSandbox
from sandgate.client import Client
from sandgate.deepagents import _file_plans, _offload, _run
from sandgate.deepagents._audit import audited
from sandgate.deepagents._options import MAX_OUTPUT_SIZE
from sandgate.deepagents.streaming import emit
from sandgate.errors import SandgateError
from sandgate.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from deepagents.backends.protocol import (
        ExecuteResponse,
    )

    from sandgate._calls import Plan
    from sandgate._plans import Target
    from sandgate.config import Config
    from sandgate.deepagents._options import AuditLog, OnOutput
    from sandgate.options import ExecuteOptions
    from sandgate.process import Event

T = TypeVar("T")


class CommandBackend(BaseSandbox, Managed, AsyncManaged):
    """Commands over one server; in which sandbox, a subclass says."""

    enable_capture_offload: bool = True
    """Large output of the `execute` tool is kept in a file of the sandbox."""

    def __init__(
        self,
        *,
        config: Config,
        command_timeout: float | None = None,
        max_output_size: int = MAX_OUTPUT_SIZE,
        on_output: OnOutput | None = None,
        raise_on_transport_error: bool = False,
        audit_log: AuditLog | None = None,
    ) -> None:
        self._client = Client(config=config)
        self._async_client = AsyncClient(config=config)
        self._command_timeout = command_timeout
        self._max_output_size = max_output_size
        self._raise = raise_on_transport_error
        self._audit_log = audit_log
        self.on_output = on_output

    @property
    def _target(self) -> Target:
        raise NotImplementedError

    @property
    def _working_directory(self) -> str:
        raise NotImplementedError

    @property
    def id(self) -> str:
        """The sandbox's id, known before any call."""
        return self._target.sandbox_id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a shell command; both streams come as one, in exact order.

        A command that runs out of time has exit code 124, its output so far and
        a line that reports it; one that signal n ended has 128+n. Where Sandgate
        itself fails, the output begins with "Error:" and the exit code is None.

        Args:
            command: A script for `/bin/sh -c`.
            timeout: Seconds; None: `command_timeout`; 0: no limit.

        Raises:
            ValueError: The timeout is negative, or the server refuses it.
        """
        return self._execute(command, self._run(timeout))

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:  # noqa: ASYNC109
        """Async twin of `execute`. Cancelling it kills the command."""
        return await self._aexecute(command, self._run(timeout))

    def execute_with_offload(
        self,
        command: str,
        capture_path: str,
        *,
        max_inline_bytes: int,
        max_capture_bytes: int | None = None,
        timeout: int | None = None,
    ) -> ExecuteOffloadResult:
        """Run a shell command; keep output that is too large in a file.

        Args:
            command: A script for `/bin/sh -c`.
            capture_path: Where output of more than `max_inline_bytes` is kept;
                the response then has its first and last lines.
            max_inline_bytes: See above; never more than `max_output_size`.
            max_capture_bytes: Output beyond it is dropped; default: 10 MiB.
            timeout: As for `execute`.
        """
        run, inline = self._offloading(timeout, max_inline_bytes, max_capture_bytes)
        response = self._execute(command, run)
        if not self.enable_capture_offload:
            return ExecuteOffloadResult(offloaded=False, response=response)
        return self._client.run(self._kept(run, response, capture_path, inline))

    async def aexecute_with_offload(
        self,
        command: str,
        capture_path: str,
        *,
        max_inline_bytes: int,
        max_capture_bytes: int | None = None,
        timeout: int | None = None,  # noqa: ASYNC109 - the command's own
    ) -> ExecuteOffloadResult:
        """Async twin of `execute_with_offload`."""
        run, inline = self._offloading(timeout, max_inline_bytes, max_capture_bytes)
        response = await self._aexecute(command, run)
        if not self.enable_capture_offload:
            return ExecuteOffloadResult(offloaded=False, response=response)
        return await self._async_client.run(self._kept(run, response, capture_path, inline))

    def execute_stream(self, command: str, *, timeout: int | None = None) -> Generator[Event, None, None]:
        """Run a shell command and give its events as they come.

        `Started`, then `Output` with its `text`, and `Exited` last. Closing the
        generator kills the command.

        Raises:
            SandgateError: The command could not be run or followed.
            ValueError: The timeout is negative.
        """
        return self._events(command, self._run(timeout).options)

    def aexecute_stream(self, command: str, *, timeout: int | None = None) -> AsyncGenerator[Event, None]:
        """Async twin of `execute_stream`."""
        return self._aevents(command, self._run(timeout).options)

    def stop(self) -> bool:
        """Delete the sandbox, also one that another caller created; False if it did not exist."""
        return self._sync.delete()

    async def astop(self) -> bool:
        """Async twin of `stop`."""
        return await self._async.delete()

    def suspend(self) -> None:
        """Stop the sandbox's processes and keep its disk, where the server can.

        Raises:
            UnsupportedError: The server's provider cannot.
        """
        self._sync.suspend()

    async def asuspend(self) -> None:
        """Async twin of `suspend`."""
        await self._async.suspend()

    def resume(self) -> None:
        """Bring the sandbox back from being suspended."""
        self._target.adopt(self._sync.resume().incarnation)

    async def aresume(self) -> None:
        """Async twin of `resume`."""
        self._target.adopt((await self._async.resume()).incarnation)

    def close(self) -> None:
        """Close the sync connection; a later call opens another. The sandbox stays."""
        self._client.disconnect()

    async def aclose(self) -> None:
        """Close the running loop's connection and the sync one, as `close` does. The sandbox stays."""
        await self._async_client.disconnect()
        self._client.disconnect()

    @property
    def _sync(self) -> Sandbox:
        return Sandbox(self._client, self._target.sandbox_id, self._target.incarnation)

    @property
    def _async(self) -> AsyncSandbox:
        return AsyncSandbox(self._async_client, self._target.sandbox_id, self._target.incarnation)

    def _events(self, command: str, options: ExecuteOptions) -> Generator[Event, None, None]:
        return self._sync.execute_stream(command, **self._narrowed(options))

    def _aevents(self, command: str, options: ExecuteOptions) -> AsyncGenerator[Event, None]:
        return self._async.execute_stream(command, **self._narrowed(options))

    def _narrowed(self, options: ExecuteOptions) -> ExecuteOptions:
        access = self._target.access
        return options if access is None else {**options, "access": access}

    def _execute(self, command: str, run: _run.Run) -> ExecuteResponse:
        with audited(self._audit_log, "execute", command) as record:
            try:
                _file_plans.check(command, "REQUEST_INVALID")
                with closing(self._events(command, run.options)) as events:
                    for event in events:
                        text = run.take(event)
                        if text:
                            emit(text)
                            if self.on_output is not None:
                                self.on_output(text)
                response = run.response()
            except SandgateError as e:
                response = run.failed(e)
                record["error"] = str(e)
            record["exit_code"] = response.exit_code
        return self._with_note(response)

    async def _aexecute(self, command: str, run: _run.Run) -> ExecuteResponse:
        with audited(self._audit_log, "execute", command) as record:
            try:
                _file_plans.check(command, "REQUEST_INVALID")
                async with aclosing(self._aevents(command, run.options)) as events:
                    async for event in events:
                        text = run.take(event)
                        if text:
                            emit(text)
                            pending = self.on_output(text) if self.on_output is not None else None
                            if pending is not None:
                                await pending
                response = run.response()
            except SandgateError as e:
                response = run.failed(e)
                record["error"] = str(e)
            record["exit_code"] = response.exit_code
        return self._with_note(response)

    def _with_note(self, response: ExecuteResponse) -> ExecuteResponse:
        """Add what the agent must be pending before the output."""
        return response

    def _offloading(
        self, timeout: float | None, inline_bytes: int, capture_bytes: int | None
    ) -> tuple[_run.Run, int]:
        if not self.enable_capture_offload:
            return self._run(timeout), inline_bytes
        size = _offload.CAPTURE_BYTES if capture_bytes is None else capture_bytes
        return self._run(timeout, size), min(inline_bytes, self._max_output_size)

    def _kept(
        self, run: _run.Run, response: ExecuteResponse, path: str, inline_bytes: int
    ) -> Plan[ExecuteOffloadResult]:
        return _offload.keep(self._target, run, response, path, inline_bytes)

    def _run(self, timeout: float | None, output_bytes: int | None = None) -> _run.Run:
        size = self._max_output_size if output_bytes is None else output_bytes
        options = _run.command_options(timeout, self._command_timeout, size)
        return _run.Run(options, raise_on_transport_error=self._raise)
