"""Runs the plans of the async client, over connections of each event loop."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import threading
import weakref
from typing import TYPE_CHECKING, Any, Self, TypeVar

import grpc
import grpc.aio

from sandgate._calls import DownloadStep, ForwardStep, RetryStep, UnaryStep, UploadStep, WaitStep
from sandgate._channels import ChannelPool, aio_channel_maker, channel_maker
from sandgate._connect import Forwarding, open_streams
from sandgate._connectivity import Connectivity, closed_error
from sandgate._follower import Follower
from sandgate._runner import KILL_TIMEOUT, START_TIMEOUT
from sandgate._upload_call import UploadCall
from sandgate.config import joined
from sandgate.errors import SandgateError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping

    from sandgate._calls import Plan, Step
    from sandgate._follower import Followed
    from sandgate.config import Config, Metadata

T = TypeVar("T")
E = TypeVar("E")


class _Loop:
    """The connections of one event loop, and its calls in flight."""

    def __init__(self, channels: ChannelPool[grpc.aio.Channel]) -> None:
        self.channels = channels
        self.closed = asyncio.Event()
        self._calls = set[Any]()

    @contextlib.contextmanager
    def in_flight(self, call: Any) -> Iterator[None]:
        """Let `close` end a call while the context lasts."""
        self._calls.add(call)
        try:
            yield
        except asyncio.CancelledError:
            if self.closed.is_set() and not _is_cancelled():
                raise closed_error() from None
            raise
        finally:
            self._calls.discard(call)

    async def pause(self, seconds: float) -> None:
        """Wait, or raise the error of a closed client."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.closed.wait()
        if self.closed.is_set():
            raise closed_error()

    async def close(self) -> None:
        """End all calls, those that wait for their retry too, and refuse further ones."""
        self.closed.set()
        channels = self.channels.close()
        # Closing a channel does not end the streams that are read at this moment.
        for call in [*self._calls]:
            call.cancel()
        for channel in channels:
            await channel.close()


class AsyncRunner:
    """The connections of an async client, and its calls."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._make = aio_channel_maker(config)
        self._connectivity = Connectivity(config)
        self._metadata: Metadata = ()
        self._lock = threading.Lock()
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop] = weakref.WeakKeyDictionary()
        self._uploads = ChannelPool(channel_maker(config), config.channels)

    def with_metadata(self, metadata: Mapping[str, str]) -> Self:
        """Return a runner with more metadata, over the same connections."""
        other = copy.copy(self)
        other._metadata = joined(self._metadata, metadata)  # noqa: SLF001 - of this class
        return other

    async def close(self) -> None:
        """End the running loop's calls and connections, and refuse further calls in it.

        Uploads of other loops lose their connection too, and are retried.
        """
        await self._close(self._loop)

    async def disconnect(self) -> None:
        """As `close`, but later calls open new connections."""
        with self._lock:
            loop = self._loops.pop(asyncio.get_running_loop(), None)
        if loop is not None:
            await self._close(loop)

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan to its end."""
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

    async def follow(self, follower: Followed[E]) -> AsyncGenerator[E, None]:
        """Drive a follower: yield events, resume the stream, kill on abandonment."""
        loop = self._loop
        try:
            while not follower.done:
                name, request = follower.open()
                sent = self._headers()
                error: SandgateError | None = None
                with loop.channels.stream() as stub:
                    call = getattr(stub, name)(request, metadata=sent)
                    try:
                        with loop.in_flight(call):
                            async for message in call:
                                self._connectivity.reached = True
                                for event in follower.feed(message):
                                    yield event
                    except grpc.RpcError as e:
                        error = self._error(loop, e, sent)
                    except asyncio.CancelledError:
                        error = self._error(loop, await _server_status(call), sent)
                    finally:
                        call.cancel()
                if not follower.done:
                    await loop.pause(follower.broken(error, self._connectivity.window))
        except SandgateError:
            raise
        except BaseException:
            await self._abandon(follower)
            raise

    @property
    def _loop(self) -> _Loop:
        running = asyncio.get_running_loop()
        with self._lock:
            known = self._loops.get(running)
            if known is None:
                known = self._loops[running] = _Loop(ChannelPool(self._make, self._config.channels))
            return known

    async def _close(self, loop: _Loop) -> None:
        loop.closed.set()
        for channel in self._uploads.take_all():
            channel.close()
        await loop.close()

    def _headers(self) -> Metadata:
        return self._connectivity.metadata(self._metadata)

    def _error(self, loop: _Loop, raised: grpc.RpcError, sent: Metadata) -> SandgateError:
        return self._connectivity.error(raised, sent, closed=loop.closed.is_set())

    async def _abandon(self, follower: Followed[Any]) -> None:
        if not isinstance(follower, Follower) or not follower.kills:
            return
        kill = asyncio.ensure_future(self._kill(follower))
        # A second cancellation must not leave the command running.
        try:
            await asyncio.shield(kill)
        except asyncio.CancelledError:
            await kill
            raise

    async def _kill(self, follower: Follower) -> None:
        reached = self._connectivity.reached
        plan = follower.kill(KILL_TIMEOUT, reached=reached, starting=START_TIMEOUT)
        # Best effort: the grace ends the command where this could not.
        with contextlib.suppress(SandgateError):
            await self.run(plan)

    async def _take(self, step: Step) -> Any:
        loop = self._loop
        calls = not isinstance(step, WaitStep | RetryStep)
        sent = self._headers() if calls else ()
        try:
            answer = await self._do(loop, step, sent)
        except grpc.RpcError as e:
            raise self._error(loop, e, sent) from None
        self._connectivity.reached |= calls
        return answer

    async def _do(self, loop: _Loop, step: Step, sent: Metadata) -> Any:
        match step:
            case UnaryStep():
                timeout = self._connectivity.left(step)
                call = getattr(loop.channels.stub(), step.name)(step.request, timeout=timeout, metadata=sent)
                with loop.in_flight(call):
                    return await call
            case UploadStep():
                with self._sync_stream(loop) as stub:
                    return await UploadCall(stub, step, sent).wait_async()
            case DownloadStep():
                with loop.channels.stream() as stub:
                    return await self._download(loop, stub, step, sent)
            case ForwardStep():
                # On the sync stack, as uploads: it reports the server's status in any case.
                streams = self._sync_stream(loop)
                forwarding = Forwarding(streams, step.start, sent, self._connectivity, loop.closed.is_set)
                return await open_streams(forwarding, step.seconds)
            case WaitStep():
                await loop.pause(step.seconds)
                return None
            case RetryStep():
                wait = self._connectivity.wait(step)
                if wait is not None:
                    await loop.pause(wait)
                return wait is not None

    @contextlib.contextmanager
    def _sync_stream(self, loop: _Loop) -> Iterator[Any]:
        if loop.closed.is_set():
            raise closed_error()
        with self._uploads.stream() as stub:
            yield stub

    async def _download(self, loop: _Loop, stub: Any, step: DownloadStep, sent: Metadata) -> None:
        call = stub.Download(step.request, metadata=sent)
        try:
            with loop.in_flight(call):
                async for message in call:
                    if step.blocking:
                        await asyncio.to_thread(step.sink, message)
                    else:
                        step.sink(message)
        except asyncio.CancelledError:
            raise await _server_status(call) from None
        finally:
            call.cancel()


def _is_cancelled() -> bool:
    """Return whether the running task was cancelled."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def _server_status(call: Any) -> grpc.aio.AioRpcError:
    """Return the error of a call that the server, or a proxy, ended with CANCELLED.

    While a stream is read, grpc.aio raises `CancelledError` for that as well as for a
    cancelled task.

    Raises:
        asyncio.CancelledError: It was the task.
    """
    if _is_cancelled() or not call.done():
        raise asyncio.CancelledError
    return grpc.aio.AioRpcError(
        await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details()
    )
