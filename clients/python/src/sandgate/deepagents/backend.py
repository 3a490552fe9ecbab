"""`SandgateSandbox`, the deepagents backend."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from sandgate import _plans
from sandgate.aio import AsyncClient
from sandgate.client import Client
from sandgate.config import Config
from sandgate.deepagents._native import NativeBackend
from sandgate.deepagents._options import (
    DEFAULT_WORKING_DIRECTORY,
    MAX_OUTPUT_SIZE,
    AuditLog,
    BackendOptions,
    CreateOptions,
    OnOutput,
    SplitOptions,
    split_options,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Unpack

    from sandgate._handle import Handle
    from sandgate.info import SandboxInfo
    from sandgate.options import AccessPolicy


class SandgateSandbox(NativeBackend):
    """A sandbox as deepagents uses it.

    Made by `create` or `connect`, or by their async twins. Every method has a
    native sync and async form. Nothing raises where deepagents expects a result;
    a missing file is `file_not_found`, a connection error never is.

    As a context manager, sync or async, it deletes the sandbox if it made it,
    and closes its connections.

    Args:
        sandbox_id: Id of an existing sandbox; no call is made.
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
            sandbox cannot be reached, in place of a result that reports it.
        audit_log: Called after each write, edit, delete, upload and execute with
            the operation, its target (a path or the command) and what else is
            known: `size`, `replace_all`, `exit_code`, and `error` (None: it
            went well). The server keeps an audit log of its own.
        access: What file methods and commands may touch, beyond the sandbox's
            own policy. `create` and `connect` also take it as `root_dir`,
            `virtual_mode`, `allow_prefixes`, `deny_prefixes`, `deny_commands`.
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
        on_output: OnOutput | None = None,
        raise_on_transport_error: bool = False,
        audit_log: AuditLog | None = None,
        access: AccessPolicy | None = None,
    ) -> None:
        if not sandbox_id:
            raise ValueError("a sandbox needs an id")
        super().__init__(
            config=config or Config.load(),
            command_timeout=command_timeout,
            max_output_size=max_output_size,
            on_output=on_output,
            raise_on_transport_error=raise_on_transport_error,
            audit_log=audit_log,
        )
        self._fixed_target = _plans.Target(sandbox_id, incarnation, access)
        self._directory = working_directory
        self._owned = False
        self._from_pool: bool | None = None

    @classmethod
    def create(cls, **options: Unpack[CreateOptions]) -> Self:
        """Create a sandbox, or take the one that has the id and the same spec.

        Takes what describes a sandbox (`sandgate.options.SandboxSpec`: `image`,
        `env`, `ttl`, …) and the options of this class.

        Raises:
            SandgateError: The sandbox could not be made.
        """
        given = split_options(options)
        with _closing_on_error(given) as client:
            return cls._made(client.create(**given.spec), given, client)

    @classmethod
    async def acreate(cls, **options: Unpack[CreateOptions]) -> Self:
        """Async twin of `create`."""
        given = split_options(options)
        async with AsyncClient(config=given.config) as client:
            made = await client.create(**given.spec)
        return cls._made(made, given)

    @classmethod
    def connect(cls, sandbox_id: str, **options: Unpack[BackendOptions]) -> Self:
        """Take an existing sandbox, which is not deleted at the end.

        Takes the options of this class.

        Raises:
            SandboxNotFoundError: There is no such sandbox.
        """
        given = split_options(options)
        with _closing_on_error(given) as client:
            return cls._made(client.get(sandbox_id), given, client)

    @classmethod
    async def aconnect(cls, sandbox_id: str, **options: Unpack[BackendOptions]) -> Self:
        """Async twin of `connect`."""
        given = split_options(options)
        async with AsyncClient(config=given.config) as client:
            made = await client.get(sandbox_id)
        return cls._made(made, given)

    @classmethod
    def _made(cls, made: Handle, given: SplitOptions, client: Client | None = None) -> Self:
        if made.created is None:
            raise ValueError("what the sandbox is like must be known")
        return cls._found(made.created, given, owned=made.owned, client=client)

    @classmethod
    def _found(
        cls, found: SandboxInfo, given: SplitOptions, *, owned: bool = False, client: Client | None = None
    ) -> Self:
        backend = cls(
            found.sandbox_id,
            incarnation=found.incarnation,
            working_directory=given.directory(found),
            access=given.narrowing(found),
            **given.own,
        )
        backend._owned, backend._from_pool = owned, found.from_pool
        if client is not None:
            backend._client = client  # it is connected, the backend's own is not yet
        return backend

    @property
    def from_pool(self) -> bool | None:
        """Whether the sandbox came from a pool; None: unknown, since no call was made."""
        return self._from_pool

    def _leave(self) -> None:
        try:
            if self._owned:
                self.stop()
        finally:
            self.close()

    async def _aleave(self) -> None:
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


@contextmanager
def _closing_on_error(given: SplitOptions) -> Iterator[Client]:
    """Give a client that stays open unless something fails."""
    client = Client(config=given.config)
    try:
        yield client
    except BaseException:
        client.close()
        raise
