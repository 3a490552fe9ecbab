"""Runs the plans of the sync client over its connections."""

from __future__ import annotations

import contextlib
import copy
import threading
from typing import TYPE_CHECKING, Any, Self, TypeVar

import grpc

from sandgate._calls import DownloadStep, ForwardStep, RetryStep, UnaryStep, UploadStep, WaitStep
from sandgate._channels import ChannelPool, channel_maker
from sandgate._connect import Forwarding
from sandgate._connectivity import Connectivity, closed_error
from sandgate._follower import Follower
from sandgate._upload_call import UploadCall
from sandgate.config import joined
from sandgate.errors import SandgateError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from sandgate._calls import Plan, Step
    from sandgate._follower import Followed
    from sandgate.config import Config, Metadata

T = TypeVar("T")
E = TypeVar("E")

KILL_TIMEOUT = 10.0
"""Seconds that an abandoned command's kill may take."""

START_TIMEOUT = 0.5
"""Seconds in which an abandoned command that is not known yet may still start."""


class Runner:
    """The connections of a client, and its calls. Safe for several threads."""

    def __init__(self, config: Config) -> None:
        self._channels = ChannelPool(channel_maker(config), config.channels)
        self._connectivity = Connectivity(config)
        self._metadata: Metadata = ()
        self._closed = threading.Event()

    def with_metadata(self, metadata: Mapping[str, str]) -> Self:
        """Return a runner with more metadata, over the same connections."""
        other = copy.copy(self)
        other._metadata = joined(self._metadata, metadata)  # noqa: SLF001 - of this class
        return other

    def fresh(self) -> Self:
        """Return a runner with connections of its own."""
        other = copy.copy(self)
        other._channels, other._closed = self._channels.fresh(), threading.Event()  # noqa: SLF001 - as above
        return other

    def close(self) -> None:
        """End all calls, those that wait for their retry too, and refuse further ones."""
        self._closed.set()
        for channel in self._channels.close():
            channel.close()

    def run(self, plan: Plan[T]) -> T:
        """Run a plan to its end."""
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

    def follow(self, follower: Followed[E]) -> Generator[E, None, None]:
        """Drive a follower: yield events, resume the stream, kill on abandonment."""
        while not follower.done:
            name, request = follower.open()
            sent = self._headers()
            error: SandgateError | None = None
            with self._channels.stream() as stub:
                call = self._begin(getattr(stub, name), request, metadata=sent)
                try:
                    for message in call:
                        self._connectivity.reached = True
                        yield from follower.feed(message)
                except grpc.RpcError as e:
                    error = self._error(e, sent)
                except BaseException:
                    self._abandon(follower, call)
                    raise
                finally:
                    call.cancel()
            if not follower.done:
                self._wait(follower, follower.broken(error, self._connectivity.window))

    def _headers(self) -> Metadata:
        return self._connectivity.metadata(self._metadata)

    def _begin(self, call: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Begin a call on a channel that another thread may close at this moment."""
        try:
            return call(*arguments, **options)
        except ValueError:
            # gRPC's error for a closed channel.
            if self._closed.is_set():
                raise closed_error() from None
            raise

    def _error(self, raised: grpc.RpcError, sent: Metadata) -> SandgateError:
        return self._connectivity.error(raised, sent, closed=self._closed.is_set())

    def _pause(self, seconds: float) -> None:
        if self._closed.wait(seconds):
            raise closed_error()

    def _wait(self, follower: Followed[Any], seconds: float) -> None:
        try:
            self._pause(seconds)
        except BaseException:
            self._abandon(follower, None)
            raise

    def _abandon(self, follower: Followed[Any], call: grpc.Call | None) -> None:
        if not isinstance(follower, Follower) or not follower.kills:
            return
        reached = self._connectivity.reached
        # Best effort: the grace ends the command where this could not.
        with contextlib.suppress(SandgateError):
            if self.run(follower.kill(KILL_TIMEOUT, reached=reached)):
                return
            # The command may be about to start: end the call, then look again.
            if call is not None:
                call.cancel()
            self.run(follower.kill(KILL_TIMEOUT, reached=reached, starting=START_TIMEOUT))

    def _take(self, step: Step) -> Any:
        calls = not isinstance(step, WaitStep | RetryStep)
        sent = self._headers() if calls else ()
        try:
            answer = self._do(step, sent)
        except grpc.RpcError as e:
            raise self._error(e, sent) from None
        self._connectivity.reached |= calls
        return answer

    def _do(self, step: Step, sent: Metadata) -> Any:
        match step:
            case UnaryStep():
                timeout = self._connectivity.left(step)
                stub = self._channels.stub()
                unary = getattr(stub, step.name)
                return self._begin(unary, step.request, timeout=timeout, metadata=sent)
            case UploadStep():
                with self._channels.stream() as stub:
                    return self._begin(UploadCall, stub, step, sent).wait()
            case DownloadStep():
                with self._channels.stream() as stub:
                    return self._download(stub, step, sent)
            case ForwardStep():
                streams, is_closed = self._channels.stream(), self._closed.is_set
                forwarding = self._begin(Forwarding, streams, step.start, sent, self._connectivity, is_closed)
                return forwarding.wait(step.seconds)
            case WaitStep():
                self._pause(step.seconds)
                return None
            case RetryStep():
                wait = self._connectivity.wait(step)
                if wait is not None:
                    self._pause(wait)
                return wait is not None

    def _download(self, stub: Any, step: DownloadStep, sent: Metadata) -> None:
        call = self._begin(stub.Download, step.request, metadata=sent)
        try:
            for message in call:
                step.sink(message)
        finally:
            call.cancel()
