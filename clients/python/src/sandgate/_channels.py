"""A pool of connections: each call takes the one with the fewest streams."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import grpc
import grpc.aio

from sandgate._connectivity import closed_error
from sandgate._gen.sandbox.v1 import sandbox_service_pb2_grpc as service
from sandgate.config import Config, channel_credentials, channel_options, parse_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

C = TypeVar("C")


@dataclass(slots=True)
class _PooledChannel(Generic[C]):
    channel: C
    stub: Any
    streams: int = 0


class ChannelPool(Generic[C]):
    """Up to `count` channels, each made when the others are in use.

    Safe for several threads. A stream holds its channel from `stream`; a unary
    call only looks for one with `stub`.
    """

    def __init__(self, make: Callable[[], C], count: int) -> None:
        self._make = make
        self._count = count
        self._lock = threading.Lock()
        self._open: list[_PooledChannel[C]] = []
        self._closed = False

    def stub(self) -> Any:
        """Return the stub of the channel that has the fewest streams."""
        with self._lock:
            return self._least_used().stub

    @contextmanager
    def stream(self) -> Iterator[Any]:
        """Give a stub and count a stream on it while the context lasts."""
        with self._lock:
            pooled = self._least_used()
            pooled.streams += 1
        try:
            yield pooled.stub
        finally:
            with self._lock:
                pooled.streams -= 1

    def take_all(self) -> list[C]:
        """Forget the channels and return them, for the caller to close."""
        with self._lock:
            taken, self._open = self._open, []
        return [pooled.channel for pooled in taken]

    def fresh(self) -> Self:
        """Return a pool without channels that makes the same ones."""
        return type(self)(self._make, self._count)

    def close(self) -> list[C]:
        """As `take_all`; from now on, calls raise the error of a closed client."""
        with self._lock:
            self._closed = True
        return self.take_all()

    def _least_used(self) -> _PooledChannel[C]:
        if self._closed:
            raise closed_error()
        least_used = min(self._open, key=lambda pooled: pooled.streams, default=None)
        if least_used is not None and (not least_used.streams or len(self._open) == self._count):
            return least_used
        channel: Any = self._make()
        made: _PooledChannel[C] = _PooledChannel(channel, service.SandboxServiceStub(channel))
        self._open.append(made)
        return made


def channel_maker(config: Config) -> Callable[[], grpc.Channel]:
    """Return what makes sync channels, each of which connects with its first call.

    Raises:
        InvalidRequestError: The address or a file cannot be used.
    """
    endpoint = parse_address(config.address)
    credentials, options = channel_credentials(config, endpoint), channel_options(config)
    if credentials is None:
        return lambda: grpc.insecure_channel(endpoint.target, options)
    return lambda: grpc.secure_channel(endpoint.target, credentials, options)


def aio_channel_maker(config: Config) -> Callable[[], grpc.aio.Channel]:
    """Async twin of `channel_maker`; what it returns is called in a running loop."""
    endpoint = parse_address(config.address)
    credentials, options = channel_credentials(config, endpoint), channel_options(config)
    if credentials is None:
        return lambda: grpc.aio.insecure_channel(endpoint.target, options)
    return lambda: grpc.aio.secure_channel(endpoint.target, credentials, options)
