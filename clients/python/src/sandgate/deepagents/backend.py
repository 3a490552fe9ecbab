"""`SandgateSandbox`, the deepagents backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from sandgate import _plans
from sandgate.aio import AsyncClient
from sandgate.client import Client
from sandgate.config import Config
from sandgate.deepagents._native import NativeBackend
from sandgate.deepagents._options import BackendOptions, CreateOptions, split

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType
    from typing import Unpack

    from sandgate.sandbox import Handle

MAX_OUTPUT_SIZE: Final = 1024 * 1024
"""Bytes of output of one command that are kept, unless said otherwise."""

DEFAULT_WORKING_DIRECTORY: Final = "/workspace"


class SandgateSandbox(NativeBackend):
    """A sandbox as deepagents uses it.

    Made by `create` or `connect`, or by their async twins. Every method has a
    native sync and async form. Nothing raises where deepagents expects a result;
    a missing file is `file_not_found`, trouble with the connection never is.

    As a context manager, sync or async, it deletes the sandbox if it made it,
    and closes its connections.

    Args:
        sandbox_id: Id of an existing sandbox; the server is not asked.
        incarnation: The incarnation that every call expects; empty: any.
        config: Where the server is; default: from the environment.
        working_directory: Where a search without an absolute path begins.
        command_timeout: Seconds that a command may take unless its call says
            otherwise. None: the server's default; 0: no limit.
        max_output_size: Bytes of output of one command that are kept; what
            follows is dropped, without stopping the command.
        on_output: Called with each piece of a command's output as it comes; in
            the async methods awaited if it returns an awaitable.
        raise_on_transport_error: Raise `SandgateError` when the server or the
            sandbox cannot be reached, in place of a result that says so.
    """

    def __init__(
        self,
        sandbox_id: str,
        *,
        incarnation: str = "",
        config: Config | None = None,
        working_directory: str = DEFAULT_WORKING_DIRECTORY,
        command_timeout: float | None = None,
        max_output_size: int = MAX_OUTPUT_SIZE,
        on_output: Callable[[str], Awaitable[None] | None] | None = None,
        raise_on_transport_error: bool = False,
    ) -> None:
        if not sandbox_id:
            raise ValueError("a sandbox needs an id")
        super().__init__(
            config=config or Config.load(),
            command_timeout=command_timeout,
            max_output_size=max_output_size,
            on_output=on_output,
            raise_on_transport_error=raise_on_transport_error,
        )
        self._fixed_target = _plans.Target(sandbox_id, incarnation)
        self._directory = working_directory
        self._owned = False

    @classmethod
    def create(cls, **options: Unpack[CreateOptions]) -> Self:
        """Create a sandbox, or take the one that has the id and the same spec.

        Takes what describes a sandbox (`sandgate.options.SandboxSpec`: `image`,
        `env`, `ttl`, …) and the options of this class.

        Raises:
            SandgateError: The sandbox could not be made.
        """
        spec, backend = split(options)
        with Client(config=backend["config"]) as client:
            made = client.create(**spec)
        return cls._of(made, backend)

    @classmethod
    async def acreate(cls, **options: Unpack[CreateOptions]) -> Self:
        """Async twin of `create`."""
        spec, backend = split(options)
        async with AsyncClient(config=backend["config"]) as client:
            made = await client.create(**spec)
        return cls._of(made, backend)

    @classmethod
    def connect(cls, sandbox_id: str, **options: Unpack[BackendOptions]) -> Self:
        """Take an existing sandbox, which is not deleted at the end.

        Takes the options of this class.

        Raises:
            SandboxNotFoundError: There is no such sandbox.
        """
        _, backend = split(options)
        with Client(config=backend["config"]) as client:
            made = client.get(sandbox_id)
        return cls._of(made, backend)

    @classmethod
    async def aconnect(cls, sandbox_id: str, **options: Unpack[BackendOptions]) -> Self:
        """Async twin of `connect`."""
        _, backend = split(options)
        async with AsyncClient(config=backend["config"]) as client:
            made = await client.get(sandbox_id)
        return cls._of(made, backend)

    @classmethod
    def _of(cls, made: Handle, options: BackendOptions) -> Self:
        directory = made.created.working_directory if made.created else ""
        backend = cls(
            made.id,
            incarnation=made.incarnation,
            working_directory=directory or DEFAULT_WORKING_DIRECTORY,
            **options,
        )
        backend._owned = made.owned
        return backend

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._owned:
                self.stop()
        finally:
            self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._owned:
                await self.astop()
        finally:
            await self.aclose()

    @property
    def _target(self) -> _plans.Target:
        return self._fixed_target

    @property
    def _working_directory(self) -> str:
        return self._directory
