"""The sync client: one connection to one server."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Self, TypeVar

from sandgate import _plans
from sandgate._context import Managed
from sandgate._runner import Runner
from sandgate.config import Config
from sandgate.sandbox import Sandbox
from sandgate.watch import Watcher

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence
    from typing import Unpack

    from sandgate._calls import Plan
    from sandgate._follower import Followed
    from sandgate.config import Token
    from sandgate.info import CleanupResult, PoolStatus, SandboxInfo, SandboxPage, ServerInfo
    from sandgate.options import EgressRule, SandboxSpec, SandboxState
    from sandgate.watch import EventType, SandboxEvent

T = TypeVar("T")
E = TypeVar("E")


class Client(Managed):
    """A client of one server. Safe for several threads.

    What is not given is read from the environment: `SANDGATE_ADDRESS`,
    `SANDGATE_TOKEN` or `SANDGATE_TOKEN_FILE`, `SANDGATE_CA_FILE`, `SANDGATE_CERT_FILE`,
    `SANDGATE_KEY_FILE`, `SANDGATE_TEMPLATE`. The first call opens the connection.

    Args:
        address: `host:port`, `https://host:port` for TLS with the system's
            certificates, or `unix:///path`. Default: `127.0.0.1:7777`.
        token: Bearer token, or a callable that returns the current one. Without TLS
            it is sent to loopback and unix sockets only, unless `insecure`.
        token_file: File with the token, in place of `token`. It is read before every
            attempt of a call. If the server rejects a token that has changed since it
            was sent, the client makes the call once more, and reattaches to commands.
        ca_file: PEM file of what the server's certificate must come from; turns
            TLS on.
        cert_file: PEM file of the client's certificate; turns TLS on.
        key_file: PEM file of its key.
        insecure: Allow a token to be sent over a network without TLS.
        metadata: gRPC metadata of every call; `with_metadata` adds some to single ones.
        channels: Connections at most; default: 2. The next one is opened when
            those before have streams.
        config: All of this at once, with the timeouts, in place of the above.

    Raises:
        InvalidRequestError: The address or a file cannot be used, both a token and a
            token file are set, or a token would go over a network without TLS.
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
        self._runner = Runner(self.config)

    def server_info(self) -> ServerInfo:
        """Return what the server is, can do and enforces, and who the caller is."""
        return self.run(_plans.server_info())

    def create(self, **spec: Unpack[SandboxSpec]) -> Sandbox:
        """Create a sandbox, or return the one that has the id and the same spec.

        Returns when a command can run in it. As a context manager, the sandbox
        is deleted at the end if this call made it.

        Raises:
            SandboxExistsError: The id exists with another spec.
            SandboxStartError: The sandbox could not be started.
        """
        info, created = self.run(_plans.create(spec, self.config))
        return Sandbox(self, info.sandbox_id, info.incarnation, created=info, owned=created)

    def get(self, sandbox_id: str) -> Sandbox:
        """Return an existing sandbox. Does not count as activity.

        Raises:
            SandboxNotFoundError: There is no such sandbox.
        """
        info = self.run(_plans.get(sandbox_id))
        return Sandbox(self, info.sandbox_id, info.incarnation, created=info)

    def list(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        states: Sequence[SandboxState] = (),
        page_size: int = 0,
    ) -> Iterator[SandboxInfo]:
        """Yield the caller's sandboxes and fetch pages as needed.

        Args:
            labels: Only those that have all of these.
            states: Only those in one of these; empty: all.
            page_size: Sandboxes per page; 0: 100.
        """
        token = ""
        while True:
            page = self.list_page(labels=labels, states=states, page_size=page_size, page_token=token)
            yield from page.sandboxes
            token = page.next_page_token
            if not token:
                return

    def list_page(
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
        return self.run(_plans.list_page(labels, states, page_size, page_token))

    def watch(
        self,
        *,
        cursor: str = "",
        templates: Sequence[str] = (),
        labels: Mapping[str, str] | None = None,
        types: Sequence[EventType] = (),
    ) -> Generator[SandboxEvent, None, None]:
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

    def update(
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
        return self.run(
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

    def delete(self, sandbox_id: str) -> bool:
        """End a sandbox and everything in it; False when there was none."""
        return self.run(_plans.delete(_plans.Target(sandbox_id)))

    def cleanup(
        self,
        *,
        max_idle: float | None = None,
        labels: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> CleanupResult:
        """Delete sandboxes that were idle for longer than `max_idle` seconds.

        Without `max_idle`, only those past their own lifetime.
        """
        return self.run(_plans.cleanup(max_idle, labels, dry_run=dry_run))

    def pool_status(self, template: str = "") -> PoolStatus:
        """Return the counts of a template's pool; empty: that of `create`."""
        return self.run(_plans.pool_status(template, self.config))

    def sandbox(self, sandbox_id: str) -> Sandbox:
        """Return a handle without asking the server."""
        return Sandbox(self, sandbox_id)

    def with_metadata(self, metadata: Mapping[str, str]) -> Self:
        """Return this client with more metadata for its calls.

        It shares the connections; what it makes and finds sends the metadata too.
        Keys win over the client's own.
        """
        other = copy.copy(self)
        other._runner = self._runner.with_metadata(metadata)  # noqa: SLF001 - of this class
        return other

    def suspend(self, sandbox_id: str) -> SandboxInfo:
        """Stop a sandbox's processes and keep its disk, where the server can.

        Raises:
            UnsupportedError: The server's provider cannot.
        """
        return self.run(_plans.suspend(sandbox_id, self.config.create_timeout))

    def resume(self, sandbox_id: str) -> SandboxInfo:
        """Bring a suspended sandbox back; returns when a command can run."""
        return self.run(_plans.resume(sandbox_id, self.config.create_timeout))

    def close(self) -> None:
        """Close the connections, for good. Sandboxes stay, commands run for their grace.

        Calls in flight, in other threads or waiting for their retry, raise
        `CallCancelledError` at once, and so do later calls. `with_metadata` shares the
        connections, so it closes them too.
        """
        self._runner.close()

    def disconnect(self) -> None:
        """As `close`, but later calls open new connections; for this package's backends."""
        runner, self._runner = self._runner, self._runner.fresh()
        runner.close()

    def run(self, plan: Plan[T]) -> T:
        """Run a plan of this package to its end."""
        return self._runner.run(plan)

    def follow(self, follower: Followed[E]) -> Generator[E, None, None]:
        """Yield the events of a stream; kill its command when the caller gives up."""
        return self._runner.follow(follower)

    def _leave(self) -> None:
        self.close()
