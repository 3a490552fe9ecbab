"""The sync client: one connection to one server."""

from __future__ import annotations

import contextlib
import copy
import time
from typing import TYPE_CHECKING, Any, Self, TypeVar

import grpc

from sandgate import _plans
from sandgate._calls import DownloadStep, ForwardStep, RetryStep, UnaryStep, UploadStep, WaitStep
from sandgate._channels import Stripes, channel_maker
from sandgate._connect import Forwarding
from sandgate._context import Managed
from sandgate._reach import Reach
from sandgate._uploading import Sending
from sandgate.config import Config, joined
from sandgate.errors import SandgateError
from sandgate.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence
    from typing import Unpack

    from sandgate._calls import Plan, Step
    from sandgate._follower import Follower
    from sandgate.config import Metadata, Token
    from sandgate.info import CleanupResult, PoolStatus, SandboxInfo, SandboxPage, ServerInfo
    from sandgate.options import EgressRule, SandboxSpec, SandboxState
    from sandgate.process import Event

T = TypeVar("T")

KILL_TIMEOUT = 10.0
"""Seconds that an abandoned command's kill may take."""

START_TIMEOUT = 0.5
"""Seconds in which an abandoned command that is not known yet may still start."""


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
        self._channels = Stripes(channel_maker(self.config), self.config.channels)
        self._reach = Reach(self.config)
        self._metadata: Metadata = ()

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
        other._metadata = joined(self._metadata, metadata)  # noqa: SLF001 - of this class
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
        """Close the connections; a later call makes new ones. Sandboxes stay."""
        for channel in self._channels.take_all():
            channel.close()

    def _headers(self) -> Metadata:
        return self._reach.metadata(self._metadata)

    def _leave(self) -> None:
        self.close()

    def run(self, plan: Plan[T]) -> T:
        """Run a plan of this package to its end."""
        try:
            step = next(plan)
            while True:
                try:
                    answer = self._take(step)
                except SandgateError as e:
                    step = plan.throw(e)
                else:
                    step = plan.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    def follow(self, follower: Follower) -> Generator[Event, None, None]:
        """Drive a follower: yield events, resume the stream, kill on abandonment."""
        while not follower.done:
            name, request = follower.open()
            sent = self._headers()
            error: SandgateError | None = None
            with self._channels.stream() as stub:
                call = getattr(stub, name)(request, metadata=sent)
                try:
                    for message in call:
                        self._reach.reached = True
                        yield from follower.feed(message)
                except grpc.RpcError as e:
                    error = self._reach.error(e, sent)
                except BaseException:
                    self._abandon(follower, call)
                    raise
                finally:
                    call.cancel()
            if not follower.done:
                self._wait(follower, follower.broken(error, self._reach.window))

    def _wait(self, follower: Follower, seconds: float) -> None:
        try:
            time.sleep(seconds)
        except BaseException:
            self._abandon(follower, None)
            raise

    def _abandon(self, follower: Follower, call: grpc.Call | None) -> None:
        if not follower.kills:
            return
        # Best effort: the grace ends the command where this could not.
        with contextlib.suppress(SandgateError):
            if self.run(follower.kill(KILL_TIMEOUT, reached=self._reach.reached)):
                return
            # The command may be about to start: end the call, then look again.
            if call is not None:
                call.cancel()
            self.run(follower.kill(KILL_TIMEOUT, reached=self._reach.reached, starting=START_TIMEOUT))

    def _take(self, step: Step) -> Any:
        calls = not isinstance(step, WaitStep | RetryStep)
        sent = self._headers() if calls else ()
        try:
            answer = self._do(step, sent)
        except grpc.RpcError as e:
            raise self._reach.error(e, sent) from None
        self._reach.reached |= calls
        return answer

    def _do(self, step: Step, sent: Metadata) -> Any:
        match step:
            case UnaryStep():
                timeout = self._reach.left(step)
                call = getattr(self._channels.stub(), step.name)
                return call(step.request, timeout=timeout, metadata=sent)
            case UploadStep():
                with self._channels.stream() as stub:
                    return Sending(stub, step, sent).wait()
            case DownloadStep():
                with self._channels.stream() as stub:
                    return self._download(stub, step, sent)
            case ForwardStep():
                stream = self._channels.stream()
                return Forwarding(stream, step.start, sent, self._reach).wait(step.seconds)
            case WaitStep():
                time.sleep(step.seconds)
                return None
            case RetryStep():
                wait = self._reach.wait(step)
                if wait is not None:
                    time.sleep(wait)
                return wait is not None

    def _download(self, stub: Any, step: DownloadStep, sent: Metadata) -> None:
        call = stub.Download(step.request, metadata=sent)
        try:
            for message in call:
                step.sink(message)
        finally:
            call.cancel()
