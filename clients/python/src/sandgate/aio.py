"""The async client: one connection to one server for each event loop."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Self, TypeVar

from sandgate import _plans
from sandgate._aio_runner import AsyncRunner
from sandgate._context import AsyncManaged
from sandgate.aio_sandbox import AsyncSandbox
from sandgate.config import Config
from sandgate.watch import Watcher

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
    from typing import Unpack

    from sandgate._calls import Plan
    from sandgate._follower import Followed
    from sandgate.config import Token
    from sandgate.info import CleanupResult, PoolStatus, SandboxInfo, SandboxPage, ServerInfo
    from sandgate.options import EgressRule, SandboxSpec, SandboxState
    from sandgate.watch import EventType, SandboxEvent

T = TypeVar("T")
E = TypeVar("E")


class AsyncClient(AsyncManaged):
    """A client of one server, for asyncio.

    It may be made anywhere and used in several event loops, one after the other
    or at once: each gets a connection of its own with its first call. Arguments
    and errors are those of `sandgate.Client`.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        token: Token | None = None,
        token_file: str | None = None,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        insecure: bool = False,
        metadata: Mapping[str, str] | None = None,
        channels: int | None = None,
        config: Config | None = None,
    ) -> None:
        self.config = config or Config.load(
            address,
            token=token,
            token_file=token_file,
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
            insecure=insecure,
            metadata=metadata,
            channels=channels,
        )
        self._runner = AsyncRunner(self.config)

    async def server_info(self) -> ServerInfo:
        """Return what the server is, can do and enforces, and who the caller is."""
        return await self.run(_plans.server_info())

    async def create(self, **spec: Unpack[SandboxSpec]) -> AsyncSandbox:
        """Create a sandbox, or return the one that has the id and the same spec.

        Returns when a command can run in it. As a context manager, the sandbox
        is deleted at the end if this call made it.

        Raises:
            SandboxExistsError: The id exists with another spec.
            SandboxStartError: The sandbox could not be started.
        """
        info, created = await self.run(_plans.create(spec, self.config))
        return AsyncSandbox(self, info.sandbox_id, info.incarnation, created=info, owned=created)

    async def get(self, sandbox_id: str) -> AsyncSandbox:
        """Return an existing sandbox. Does not count as activity.

        Raises:
            SandboxNotFoundError: There is no such sandbox.
        """
        info = await self.run(_plans.get(sandbox_id))
        return AsyncSandbox(self, info.sandbox_id, info.incarnation, created=info)

    async def list(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        states: Sequence[SandboxState] = (),
        page_size: int = 0,
    ) -> AsyncIterator[SandboxInfo]:
        """Yield the caller's sandboxes and fetch pages as needed.

        Args:
            labels: Only those that have all of these.
            states: Only those in one of these; empty: all.
            page_size: Sandboxes per page; 0: 100.
        """
        token = ""
        while True:
            page = await self.list_page(labels=labels, states=states, page_size=page_size, page_token=token)
            for info in page.sandboxes:
                yield info
            token = page.next_page_token
            if not token:
                return

    async def list_page(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        states: Sequence[SandboxState] = (),
        page_size: int = 0,
        page_token: str = "",
    ) -> SandboxPage:
        """Return one page of the caller's sandboxes.

        Args:
            labels: Only those that have all of these.
            states: Only those in one of these; empty: all.
            page_size: Sandboxes per page; 0: 100.
            page_token: `next_page_token` of the page before, with the same labels
                and states. Empty: the first page.

        Raises:
            InvalidRequestError: The token is malformed, or has expired
                (PAGE_TOKEN_EXPIRED): start again without one.
        """
        return await self.run(_plans.list_page(labels, states, page_size, page_token))

    def watch(
        self,
        *,
        cursor: str = "",
        templates: Sequence[str] = (),
        labels: Mapping[str, str] | None = None,
        types: Sequence[EventType] = (),
    ) -> AsyncGenerator[SandboxEvent, None]:
        """Yield what happens to the caller's sandboxes, until the caller stops iterating.

        The client reconnects transparently: after a broken connection or a restart of
        the server the watch continues after the last event.

        Args:
            cursor: `SandboxEvent.cursor` of the last event that was handled, also by
                another client. Empty: from now on.
            templates: Only sandboxes from one of these; empty: all.
            labels: Only sandboxes that have all of these.
            types: Only events of these types, and RESYNC; empty: all.

        Raises:
            InvalidRequestError: The cursor is malformed.
        """
        return self.follow(Watcher(cursor, templates, labels, types))

    async def update(
        self,
        sandbox_id: str,
        *,
        set_labels: Mapping[str, str] | None = None,
        remove_labels: Sequence[str] = (),
        ttl: float | None = None,
        idle_ttl: float | None = None,
        renew: bool = False,
        network_allow: Sequence[EgressRule] | None = None,
    ) -> SandboxInfo:
        """Change labels, lifetimes (seconds; 0: none) and network rules, and renew idleness.

        `network_allow` replaces the rules of a sandbox with the network mode PROXY;
        an empty sequence leaves it those of its template.
        """
        return await self.run(
            _plans.update(
                sandbox_id,
                set_labels=set_labels,
                remove_labels=remove_labels,
                ttl=ttl,
                idle_ttl=idle_ttl,
                renew=renew,
                network_allow=network_allow,
            )
        )

    async def delete(self, sandbox_id: str) -> bool:
        """End a sandbox and everything in it; False when there was none."""
        return await self.run(_plans.delete(_plans.Target(sandbox_id)))

    async def cleanup(
        self,
        *,
        max_idle: float | None = None,
        labels: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> CleanupResult:
        """Delete sandboxes that were idle for longer than `max_idle` seconds.

        Without `max_idle`, only those past their own lifetime.
        """
        return await self.run(_plans.cleanup(max_idle, labels, dry_run=dry_run))

    async def pool_status(self, template: str = "") -> PoolStatus:
        """Return the counts of a template's pool; empty: that of `create`."""
        return await self.run(_plans.pool_status(template, self.config))

    def sandbox(self, sandbox_id: str) -> AsyncSandbox:
        """Return a handle without asking the server."""
        return AsyncSandbox(self, sandbox_id)

    def with_metadata(self, metadata: Mapping[str, str]) -> Self:
        """Return this client with more metadata for its calls.

        It shares the connections; what it makes and finds sends the metadata too.
        Keys win over the client's own.
        """
        other = copy.copy(self)
        other._runner = self._runner.with_metadata(metadata)  # noqa: SLF001 - of this class
        return other

    async def suspend(self, sandbox_id: str) -> SandboxInfo:
        """Stop a sandbox's processes and keep its disk, where the server can.

        Raises:
            UnsupportedError: The server's provider cannot.
        """
        return await self.run(_plans.suspend(sandbox_id, self.config.create_timeout))

    async def resume(self, sandbox_id: str) -> SandboxInfo:
        """Bring a suspended sandbox back; returns when a command can run."""
        return await self.run(_plans.resume(sandbox_id, self.config.create_timeout))

    async def close(self) -> None:
        """Close the running loop's connections, for good. Sandboxes stay.

        This loop's calls in flight raise `CallCancelledError` at once, and so do its later
        calls. Other loops' calls go on; of their uploads and connections to ports, which
        share connections, the former are retried and the latter end.
        """
        await self._runner.close()

    async def disconnect(self) -> None:
        """As `close`, but later calls open new connections; for this package's backends."""
        await self._runner.disconnect()

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan of this package to its end."""
        return await self._runner.run(plan)

    def follow(self, follower: Followed[E]) -> AsyncGenerator[E, None]:
        """Yield the events of a stream; kill its command when the caller gives up."""
        return self._runner.follow(follower)

    async def _aleave(self) -> None:
        await self.close()
