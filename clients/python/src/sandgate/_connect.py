"""Connections to ports of a sandbox, as sockets of this machine.

A socket pair stands between the program and a Forward call: the caller gets one
end, and two threads copy between the other end and the call. The caller's end has
a file descriptor, so `select`, `ssl` and asyncio work with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import sys
import threading
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import TYPE_CHECKING, Any, Final, Self

import grpc

from sandgate._gen.sandbox.v1 import sandbox_forward_pb2 as pb
from sandgate.errors import DeadlineExceededError, InternalError, SandgateError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from _typeshed import WriteableBuffer

    from sandgate._connectivity import Connectivity
    from sandgate.config import Metadata

_CHUNK_BYTES: Final = 256 * 1024
_LINGER_SECONDS: Final = 30.0
"""How long a connection waits for the program's end after the caller closed its socket."""


class PortSocket(socket.socket):
    """A connection to a port of a sandbox.

    It is a socket in every way, half-close included. `recv` and `recv_into` raise
    `ConnectionResetError` if the connection broke; its `__cause__` is the
    `SandgateError`.
    """

    _forwarding: Forwarding | None = None

    @classmethod
    def _of(cls, own: socket.socket, forwarding: Forwarding) -> Self:
        made = cls(own.family, own.type, own.proto, fileno=own.detach())
        made._forwarding = forwarding
        return made

    def dup(self) -> Self:
        """Return a socket of the same connection."""
        other = super().dup()
        other._forwarding = self._forwarding  # noqa: SLF001 - of this class
        return other

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """Receive as `socket.recv` does."""
        data = super().recv(bufsize, flags)
        if not data:
            self._check()
        return data

    def recv_into(self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0) -> int:
        """Receive as `socket.recv_into` does."""
        size = super().recv_into(buffer, nbytes, flags)
        if not size:
            self._check()
        return size

    def _check(self) -> None:
        if self._forwarding is not None and self._forwarding.failure is not None:
            raise reset(self._forwarding.failure)


def reset(failure: SandgateError) -> ConnectionResetError:
    """Return the error of a socket whose connection broke."""
    error = ConnectionResetError(str(failure))
    error.__cause__ = failure
    return error


class Forwarding:
    """One Forward call and its end of the socket pair.

    Args:
        streams: Yields the stub; it is left when the connection has ended.
        start: Sandbox and port.
        metadata: The call's metadata.
        connectivity: Converts errors of gRPC.
        is_closed: Whether the client was closed.
    """

    def __init__(
        self,
        streams: AbstractContextManager[Any],
        start: pb.ForwardStart,
        metadata: Metadata,
        connectivity: Connectivity,
        is_closed: Callable[[], bool],
    ) -> None:
        self._start = start
        self.opened: Future[None] = Future()
        """Done when the port accepted the connection; the error if it did not."""
        self.failure: SandgateError | None = None
        """Why the connection broke; None: it did not, or both sides ended it."""
        self._connectivity = connectivity
        self._is_closed = is_closed
        self._metadata = metadata
        self._ended = threading.Event()
        self._closed_by_caller = False
        self._sending = False
        own, self._sink = socket.socketpair()
        # Each thread closes its own descriptor, so that none is used after its end.
        self._source = self._sink.dup()
        self._own: PortSocket | None = PortSocket._of(own, self)  # noqa: SLF001 - of this module
        self._streams = contextlib.ExitStack()
        stub = self._streams.enter_context(streams)
        self._call: Any = stub.Forward(self._requests(), metadata=metadata)
        threading.Thread(target=self._receive, name="sandgate-forward", daemon=True).start()

    def wait(self, timeout: float) -> PortSocket:
        """Return the socket of the open connection.

        Raises:
            SandgateError: The connection was refused, or not open in time.
        """
        try:
            self.opened.result(timeout)
        except TimeoutError:
            self.cancel()
            raise self.late(timeout) from None
        except BaseException:
            self.cancel()
            raise
        return self.take()

    def late(self, timeout: float) -> SandgateError:
        """Return the error of a connection that is not open in time."""
        return DeadlineExceededError(
            f"port {self._start.port} did not accept the connection within {timeout:g} s",
            code="DEADLINE_EXCEEDED",
        )

    def take(self) -> PortSocket:
        """Return the socket of the open connection, once: it ends with the caller's reference."""
        own, self._own = self._own, None
        if own is None:
            raise _lost("it broke at once")
        return own

    def cancel(self) -> None:
        """End the call, which resets the program's connection."""
        self._closed_by_caller = True
        self._call.cancel()

    def _requests(self) -> Iterator[pb.ForwardRequest]:
        """Yield what the caller sends. gRPC runs this in a thread of its own."""
        self._sending = True
        try:
            yield pb.ForwardRequest(start=self._start)
            if self.opened.exception() is not None:
                return
            while data := self._source.recv(_CHUNK_BYTES):
                yield pb.ForwardRequest(data=data)
            yield pb.ForwardRequest(eof=pb.ForwardEof())
            self._linger()
        except CancelledError:
            pass  # The caller did not wait for the connection.
        except OSError:
            # The caller closed its end with bytes that it had not read.
            self.cancel()
        finally:
            self._source.close()

    def _linger(self) -> None:
        """End the call if the caller has closed the socket and the program has not ended its direction."""
        if sys.platform != "linux":
            # Elsewhere POLLHUP means a half-close too. The program's end, or its
            # next bytes, end the call.
            return
        poll = select.poll()
        poll.register(self._source, 0)
        poll.poll()
        if not self._ended.wait(_LINGER_SECONDS):
            self.cancel()

    def _receive(self) -> None:
        try:
            failure = self._copy()
        except grpc.RpcError as e:
            failure = self._connectivity.error(e, self._metadata, closed=self._is_closed())
        except OSError:
            failure = None
            self.cancel()
        except InvalidStateError:
            failure = None  # The caller no longer waits for the connection.
            self.cancel()
        except SandgateError as e:
            failure = e
            self._call.cancel()
        if not self._closed_by_caller:
            self.failure = failure
        with contextlib.suppress(InvalidStateError):  # It was open, or the caller no longer waits.
            self.opened.set_exception(failure or _lost("it was never open"))
        self._ended.set()
        with contextlib.suppress(OSError):  # It is closed if the caller closed its end.
            self._sink.shutdown(socket.SHUT_RDWR)
        self._sink.close()
        if not self._sending:
            self._source.close()
        if self.opened.cancelled() or self.opened.exception() is not None:
            own, self._own = self._own, None
            if own is not None:
                own.close()
        self._streams.close()

    def _copy(self) -> SandgateError | None:
        """Copy the program's bytes to the caller's socket, until both sides have ended."""
        ended = False
        for message in self._call:
            match message.WhichOneof("payload"):
                case "opened":
                    self._connectivity.reached = True
                    self.opened.set_result(None)
                case "data" if self.opened.done() and not ended:
                    self._sink.sendall(message.data)
                case "eof" if self.opened.done() and not ended:
                    ended = True
                    self._sink.shutdown(socket.SHUT_WR)
                case None:
                    pass
                case other:
                    raise InternalError(
                        f"the server broke the protocol: {other} came in the wrong place", code="DATA_LOSS"
                    )
        return None if ended else _lost("the stream ended early")


def _lost(why: str) -> UnavailableError:
    return UnavailableError(f"the connection to the port was lost: {why}", code="UNAVAILABLE")


class _Reader(asyncio.StreamReader):
    """Raises `ConnectionResetError` at the end of a connection that broke."""

    def __init__(self, forwarding: Forwarding) -> None:
        super().__init__()
        self._forwarding = forwarding

    def feed_eof(self) -> None:
        if self._forwarding.failure is not None:
            self.set_exception(reset(self._forwarding.failure))
        super().feed_eof()


async def open_streams(
    forwarding: Forwarding, seconds: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Async twin of `Forwarding.wait`.

    Raises:
        SandgateError: The connection was refused, or not open in time.
    """
    try:
        await asyncio.wait_for(asyncio.wrap_future(forwarding.opened), seconds)
        own = forwarding.take()
    except TimeoutError:
        forwarding.cancel()
        raise forwarding.late(seconds) from None
    except BaseException:
        forwarding.cancel()
        raise
    # A plain socket: not every event loop receives with the socket's own methods.
    plain = socket.socket(own.family, own.type, own.proto, fileno=own.detach())
    reader = _Reader(forwarding)
    protocol = asyncio.StreamReaderProtocol(reader)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(lambda: protocol, sock=plain)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
