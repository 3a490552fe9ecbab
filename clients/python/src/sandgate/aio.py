"""The async client: one connection to one server for each event loop."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from typing import TYPE_CHECKING, Any, Self, TypeVar

import grpc
import grpc.aio

from sandgate import _plans
from sandgate._calls import DownloadStep, UnaryStep, UploadStep
from sandgate._gen.sandbox.v1 import sandbox_service_pb2_grpc as service
from sandgate._uploading import Sending
from sandgate.aio_sandbox import AsyncSandbox
from sandgate.client import KILL_TIMEOUT, open_channel
from sandgate.config import Config, channel_credentials, channel_options, parse_address
from sandgate.errors import CallCancelledError, ExecNotFoundError, SandgateError, from_rpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
    from types import TracebackType
    from typing import Unpack

    from sandgate._calls import Plan, Step
    from sandgate._follower import Follower
    from sandgate.info import CleanupResult, PoolStatus, SandboxInfo, ServerInfo
    from sandgate.options import SandboxSpec, SandboxState
    from sandgate.process import Event

T = TypeVar("T")


class AsyncClient:
    """A client of one server, for asyncio.

    It may be made anywhere and used in several event loops, one after the other
    or at once: each gets a connection of its own with its first call. Arguments
    and errors are those of `sandgate.Client`.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        insecure: bool = False,
        metadata: Mapping[str, str] | None = None,
        config: Config | None = None,
    ) -> None:
        self.config = config or Config.load(
            address,
            token=token,
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
            insecure=insecure,
            metadata=metadata,
        )
        self._endpoint = parse_address(self.config.address)
        self._credentials = channel_credentials(self.config, self._endpoint)
        self._metadata = self.config.call_metadata
        self._channels: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[grpc.aio.Channel, Any]] = (
            weakref.WeakKeyDictionary()
        )
        self._uploads: tuple[grpc.Channel, Any] | None = None

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
        info, created = await self.run(_plans.create(spec, self.config.create_timeout))
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
        """Give the caller's sandboxes, fetched page by page.

        Args:
            labels: Only those that have all of these.
            states: Only those in one of these; empty: all.
            page_size: Sandboxes per page; 0: 100.
        """
        token = ""
        while True:
            page, token = await self.run(_plans.list_page(labels, states, page_size, token))
            for info in page:
                yield info
            if not token:
                return

    async def update(
        self,
        sandbox_id: str,
        *,
        set_labels: Mapping[str, str] | None = None,
        remove_labels: Sequence[str] = (),
        ttl: float | None = None,
        idle_ttl: float | None = None,
        renew: bool = False,
    ) -> SandboxInfo:
        """Change labels and lifetimes (seconds; 0: none), and renew idleness."""
        return await self.run(
            _plans.update(
                sandbox_id,
                set_labels=set_labels,
                remove_labels=remove_labels,
                ttl=ttl,
                idle_ttl=idle_ttl,
                renew=renew,
            )
        )

    async def delete(self, sandbox_id: str) -> bool:
        """End a sandbox and everything in it; False when there was none."""
        return await self.run(_plans.delete(_plans.Target(sandbox_id), allow_missing=True))

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
        """Return the counts of a template's pool; empty: `default`."""
        return await self.run(_plans.pool_status(template))

    def sandbox(self, sandbox_id: str) -> AsyncSandbox:
        """Return a handle without asking the server."""
        return AsyncSandbox(self, sandbox_id)

    async def close(self) -> None:
        """Close the running loop's connection. Sandboxes stay.

        Other loops' connections stay too; uploads are over in all of them.
        """
        if self._uploads is not None:
            self._uploads[0].close()
            self._uploads = None
        channel, _ = self._channels.pop(asyncio.get_running_loop(), (None, None))
        if channel is not None:
            await channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def _stub(self) -> Any:
        loop = asyncio.get_running_loop()
        known = self._channels.get(loop)
        if known is None:
            target, options = self._endpoint.target, channel_options()
            channel = (
                grpc.aio.insecure_channel(target, options)
                if self._credentials is None
                else grpc.aio.secure_channel(target, self._credentials, options)
            )
            known = channel, service.SandboxServiceStub(channel)
            self._channels[loop] = known
        return known[1]

    @property
    def _upload_stub(self) -> Any:
        if self._uploads is None:
            channel = open_channel(self.config)
            self._uploads = channel, service.SandboxServiceStub(channel)
        return self._uploads[1]

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
        """Drive a follower: give events, mend the stream, kill on abandonment."""
        try:
            while not follower.done:
                name, request = follower.open()
                call = getattr(self._stub, name)(request, metadata=self._metadata)
                error: SandgateError | None = None
                try:
                    async for message in call:
                        for event in follower.feed(message):
                            yield event
                except grpc.RpcError as e:
                    error = from_rpc(e)
                except asyncio.CancelledError:
                    error = _cancelled_by_server()
                finally:
                    call.cancel()
                if not follower.done:
                    await asyncio.sleep(follower.broken(error))
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
        try:
            await self.run(follower.kill(KILL_TIMEOUT))
        except ExecNotFoundError:
            # The command may have been about to start: look again.
            with contextlib.suppress(SandgateError):
                await self.run(follower.kill(KILL_TIMEOUT))
        except SandgateError:
            # Best effort: the grace ends the command where this could not.
            return

    async def _take(self, step: Step) -> Any:
        try:
            match step:
                case UnaryStep():
                    timeout = self.config.call_timeout if step.timeout is None else step.timeout
                    return await getattr(self._stub, step.name)(
                        step.request, timeout=timeout, metadata=self._metadata
                    )
                case UploadStep():
                    return await Sending(self._upload_stub, step, self._metadata).wait_async()
                case DownloadStep():
                    await self._download(step)
                    return None
        except grpc.RpcError as e:
            raise from_rpc(e) from None

    async def _download(self, step: DownloadStep) -> None:
        call = self._stub.Download(step.request, metadata=self._metadata)
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
    """Tell a CANCELLED status of the server from a cancelled task.

    grpc.aio raises `CancelledError` for both while a stream is read.

    Raises:
        asyncio.CancelledError: It was the task.
    """
    task = asyncio.current_task()
    if task is None or task.cancelling():
        raise asyncio.CancelledError
    return CallCancelledError("the server cancelled the call", code="CANCELLED", reason="CALL_CANCELLED")
