"""What the backends share: every method of the contract, natively."""

from __future__ import annotations

from contextlib import aclosing, closing
from typing import TYPE_CHECKING, TypeVar

from deepagents.backends.sandbox import BaseSandbox

from sandgate.aio import AsyncClient
from sandgate.aio_sandbox import AsyncSandbox
from sandgate.client import Client
from sandgate.deepagents import _run, _steps
from sandgate.deepagents.streaming import emit
from sandgate.errors import SandgateError
from sandgate.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator

    from deepagents.backends.protocol import (
        DeleteResult,
        EditResult,
        ExecuteResponse,
        FileDownloadResponse,
        FileUploadResponse,
        GlobResult,
        GrepResult,
        LsResult,
        ReadResult,
        WriteResult,
    )

    from sandgate._calls import Plan
    from sandgate._plans import Target
    from sandgate.config import Config
    from sandgate.options import ExecuteOptions
    from sandgate.process import Event

T = TypeVar("T")


class NativeBackend(BaseSandbox):
    """The contract's methods over one server; which sandbox, a subclass says."""

    grep_exclude_dirs: tuple[str, ...] = (".git",)

    def __init__(
        self,
        *,
        config: Config,
        command_timeout: float | None,
        max_output_size: int,
        on_output: Callable[[str], Awaitable[None] | None] | None,
        raise_on_transport_error: bool,
    ) -> None:
        self._client = Client(config=config)
        self._async_client = AsyncClient(config=config)
        self._command_timeout = command_timeout
        self._max_output_size = max_output_size
        self._raise = raise_on_transport_error
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
        a line that says so; one that signal n ended has 128+n. Where Sandgate
        itself fails, the output begins with "Error:" and the exit code is None.

        Args:
            command: A script for `/bin/sh -c`.
            timeout: Seconds; None: `command_timeout`; 0: no limit.

        Raises:
            ValueError: The timeout is negative, or the server refuses it.
        """
        run = self._run(timeout)
        try:
            _steps.check(command, "REQUEST_INVALID")
            with closing(self._events(command, run.options)) as events:
                for event in events:
                    text = run.take(event)
                    if text:
                        emit(text)
                        if self.on_output is not None:
                            self.on_output(text)
        except SandgateError as e:
            return run.failed(e)
        return run.response()

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:  # noqa: ASYNC109
        """Async twin of `execute`. Cancelling it kills the command."""
        run = self._run(timeout)
        try:
            _steps.check(command, "REQUEST_INVALID")
            async with aclosing(self._aevents(command, run.options)) as events:
                async for event in events:
                    text = run.take(event)
                    if text:
                        emit(text)
                        told = self.on_output(text) if self.on_output is not None else None
                        if told is not None:
                            await told
        except SandgateError as e:
            return run.failed(e)
        return run.response()

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

    def ls(self, path: str) -> LsResult:
        """List a directory: `path` and `is_dir` of each entry, links not followed."""
        return self._client.run(self._plan(_steps.ls(self._target, path)))

    async def als(self, path: str) -> LsResult:
        """Async twin of `ls`."""
        return await self._async_client.run(self._plan(_steps.ls(self._target, path)))

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read a window of lines, or a small binary file as base64.

        Args:
            file_path: Absolute path.
            offset: Lines to skip.
            limit: At most this many lines.
        """
        return self._client.run(self._plan(_steps.read(self._target, file_path, offset, limit)))

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Async twin of `read`."""
        return await self._async_client.run(self._plan(_steps.read(self._target, file_path, offset, limit)))

    def write(self, file_path: str, content: str) -> WriteResult:
        """Write a text file of any size, with its parents; replaces an existing one."""
        return self._client.run(self._plan(_steps.write(self._target, file_path, content)))

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        """Async twin of `write`."""
        return await self._async_client.run(self._plan(_steps.write(self._target, file_path, content)))

    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the contract's signature
    ) -> EditResult:
        """Replace a text that occurs once, or every time with `replace_all`."""
        plan = _steps.edit(self._target, file_path, old_string, new_string, replace_all=replace_all)
        return self._client.run(self._plan(plan))

    async def aedit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the contract's signature
    ) -> EditResult:
        """Async twin of `edit`."""
        plan = _steps.edit(self._target, file_path, old_string, new_string, replace_all=replace_all)
        return await self._async_client.run(self._plan(plan))

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Find lines that hold a literal text.

        Args:
            pattern: The text.
            path: Directory or file; relative to, and by default, the working
                directory. Paths of matches are absolute.
            glob: Only files that match: without "/", their name at any depth.
            max_count: At most this many matches in all.
        """
        return self._client.run(self._grep(pattern, path, glob, max_count))

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Async twin of `grep`."""
        return await self._async_client.run(self._grep(pattern, path, glob, max_count))

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find regular files by name; without "/" at any depth. Paths are absolute.

        Args:
            pattern: With `*`, `?`, `[a-z]`, `{a,b}` and `**`.
            path: Directory to search below; default: "/".
        """
        return self._client.run(self._plan(_steps.glob(self._target, pattern, path)))

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Async twin of `glob`."""
        return await self._async_client.run(self._plan(_steps.glob(self._target, pattern, path)))

    def delete(self, file_path: str) -> DeleteResult:
        """Delete a file, or a directory with all that is in it."""
        return self._client.run(self._plan(_steps.delete(self._target, file_path)))

    async def adelete(self, file_path: str) -> DeleteResult:
        """Async twin of `delete`."""
        return await self._async_client.run(self._plan(_steps.delete(self._target, file_path)))

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files with their parents: one response each, in order."""
        return self._client.run(self._plan(_steps.upload_files(self._target, files)))

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Async twin of `upload_files`."""
        return await self._async_client.run(self._plan(_steps.upload_files(self._target, files)))

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files: one response each, in order."""
        return self._client.run(self._plan(_steps.download_files(self._target, paths)))

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Async twin of `download_files`."""
        return await self._async_client.run(self._plan(_steps.download_files(self._target, paths)))

    def stop(self) -> bool:
        """Delete the sandbox, whoever made it; False when it was gone."""
        return self._sync.delete()

    async def astop(self) -> bool:
        """Async twin of `stop`."""
        return await self._async.delete()

    def close(self) -> None:
        """Close the sync connection. The sandbox stays."""
        self._client.close()

    async def aclose(self) -> None:
        """Close the running loop's connection and the sync one. The sandbox stays."""
        await self._async_client.close()
        self._client.close()

    def _write_preflight(self, file_path: str) -> WriteResult | None:
        return self._client.run(self._plan(_steps.make_parents(self._target, file_path)))

    async def _awrite_preflight(self, file_path: str) -> WriteResult | None:
        return await self._async_client.run(self._plan(_steps.make_parents(self._target, file_path)))

    @property
    def _sync(self) -> Sandbox:
        return Sandbox(self._client, self._target.sandbox_id, self._target.incarnation)

    @property
    def _async(self) -> AsyncSandbox:
        return AsyncSandbox(self._async_client, self._target.sandbox_id, self._target.incarnation)

    def _events(self, command: str, options: ExecuteOptions) -> Generator[Event, None, None]:
        return self._sync.execute_stream(command, **options)

    def _aevents(self, command: str, options: ExecuteOptions) -> AsyncGenerator[Event, None]:
        return self._async.execute_stream(command, **options)

    def _run(self, timeout: float | None) -> _run.Run:
        options = _run.command_options(timeout, self._command_timeout, self._max_output_size)
        return _run.Run(options, raise_on_transport_error=self._raise)

    def _plan(self, plan: Plan[T]) -> Plan[T]:
        return _steps.strict(plan) if self._raise else plan

    def _grep(
        self, pattern: str, path: str | None, glob: str | None, max_count: int | None
    ) -> Plan[GrepResult]:
        root = _steps.search_root(self._working_directory, path)
        exclude = self.grep_exclude_dirs
        return self._plan(
            _steps.grep(self._target, pattern, root, glob, max_count=max_count, exclude_dirs=exclude)
        )
