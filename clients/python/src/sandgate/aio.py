"""The async client: one connection to one server for each event loop."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import threading
import weakref
from typing import TYPE_CHECKING, Any, Self, TypeVar

import grpc
import grpc.aio

from sandgate import _plans
from sandgate._calls import DownloadStep, ForwardStep, RetryStep, UnaryStep, UploadStep, WaitStep
from sandgate._channels import Stripes, aio_channel_maker, channel_maker
from sandgate._connect import Forwarding, open_streams
from sandgate._context import AsyncManaged
from sandgate._reach import Reach
from sandgate._uploading import Sending
from sandgate.aio_sandbox import AsyncSandbox
from sandgate.client import KILL_TIMEOUT, START_TIMEOUT
from sandgate.config import Config, joined
from sandgate.errors import CallCancelledError, SandgateError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
    from typing import Unpack

    from sandgate._calls import Plan, Step
    from sandgate._follower import Follower
    from sandgate.config import Metadata, Token
    from sandgate.info import CleanupResult, PoolStatus, SandboxInfo, SandboxPage, ServerInfo
    from sandgate.options import EgressRule, SandboxSpec, SandboxState
    from sandgate.process import Event

T = TypeVar("T")


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
        self._make = aio_channel_maker(self.config)
        self._reach = Reach(self.config)
        self._metadata: Metadata = ()
        self._lock = threading.Lock()
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Stripes[grpc.aio.Channel]] = (
            weakref.WeakKeyDictionary()
        )
        self._uploads = Stripes(channel_maker(self.config), self.config.channels)

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
        other._metadata = joined(self._metadata, metadata)  # noqa: SLF001 - of this class
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
        """Close the running loop's connections. Sandboxes stay.

        Other loops' connections stay too; uploads are over in all of them.
        """
        for uploading in self._uploads.take_all():
            uploading.close()
        with self._lock:
            known = self._loops.pop(asyncio.get_running_loop(), None)
        for channel in () if known is None else known.take_all():
            await channel.close()

    def _headers(self) -> Metadata:
        return self._reach.metadata(self._metadata)

    async def _aleave(self) -> None:
        await self.close()

    @property
    def _channels(self) -> Stripes[grpc.aio.Channel]:
        loop = asyncio.get_running_loop()
        with self._lock:
            known = self._loops.get(loop)
            if known is None:
                known = self._loops[loop] = Stripes(self._make, self.config.channels)
            return known

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan of this package to its end."""
        try:
            step = next(plan)
            while True:
                try:
                    answer = await self._take(step)
                except SandgateError as e:
                    step = plan.throw(e)
                else:
                    step = plan.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    async def follow(self, follower: Follower) -> AsyncGenerator[Event, None]:
        """Drive a follower: yield events, resume the stream, kill on abandonment."""
        try:
            while not follower.done:
                name, request = follower.open()
                sent = self._headers()
                error: SandgateError | None = None
                with self._channels.stream() as stub:
                    call = getattr(stub, name)(request, metadata=sent)
                    try:
                        async for message in call:
                            self._reach.reached = True
                            for event in follower.feed(message):
                                yield event
                    except grpc.RpcError as e:
                        error = self._reach.error(e, sent)
                    except asyncio.CancelledError:
                        error = _cancelled_by_server()
                    finally:
                        call.cancel()
                if not follower.done:
                    await asyncio.sleep(follower.broken(error, self._reach.window))
        except SandgateError:
            raise
        except BaseException:
            await self._abandon(follower)
            raise

    async def _abandon(self, follower: Follower) -> None:
        if not follower.kills:
            return
        kill = asyncio.ensure_future(self._kill(follower))
        # A second cancellation must not leave the command running.
        try:
            await asyncio.shield(kill)
        except asyncio.CancelledError:
            await kill
            raise

    async def _kill(self, follower: Follower) -> None:
        plan = follower.kill(KILL_TIMEOUT, reached=self._reach.reached, starting=START_TIMEOUT)
        # Best effort: the grace ends the command where this could not.
        with contextlib.suppress(SandgateError):
            await self.run(plan)

    async def _take(self, step: Step) -> Any:
        calls = not isinstance(step, WaitStep | RetryStep)
        sent = self._headers() if calls else ()
        try:
            answer = await self._do(step, sent)
        except grpc.RpcError as e:
            raise self._reach.error(e, sent) from None
        self._reach.reached |= calls
        return answer

    async def _do(self, step: Step, sent: Metadata) -> Any:
        match step:
            case UnaryStep():
                timeout = self._reach.left(step)
                call = getattr(self._channels.stub(), step.name)
                return await call(step.request, timeout=timeout, metadata=sent)
            case UploadStep():
                with self._uploads.stream() as stub:
                    return await Sending(stub, step, sent).wait_async()
            case DownloadStep():
                with self._channels.stream() as stub:
                    return await self._download(stub, step, sent)
            case ForwardStep():
                # On the sync stack, as uploads: it reports the server's status in any case.
                forwarding = Forwarding(self._uploads.stream(), step.start, sent, self._reach)
                return await open_streams(forwarding, step.seconds)
            case WaitStep():
                await asyncio.sleep(step.seconds)
                return None
            case RetryStep():
                wait = self._reach.wait(step)
                if wait is not None:
                    await asyncio.sleep(wait)
                return wait is not None

    async def _download(self, stub: Any, step: DownloadStep, sent: Metadata) -> None:
        call = stub.Download(step.request, metadata=sent)
        try:
            async for message in call:
                if step.blocking:
                    await asyncio.to_thread(step.sink, message)
                else:
                    step.sink(message)
        except asyncio.CancelledError:
            raise _cancelled_by_server() from None
        finally:
            call.cancel()


def _cancelled_by_server() -> CallCancelledError:
    """Distinguish a CANCELLED status of the server from a cancelled task.

    grpc.aio raises `CancelledError` for both while a stream is read.

    Raises:
        asyncio.CancelledError: It was the task.
    """
    task = asyncio.current_task()
    if task is None or task.cancelling():
        raise asyncio.CancelledError
    return CallCancelledError("the server cancelled the call", code="CANCELLED", reason="CALL_CANCELLED")
