"""Streams of commands that are resumed."""

from __future__ import annotations

import codecs
import time
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar

from sandgate import _calls, _values
from sandgate._gen.sandbox.v1 import sandbox_process_pb2 as pb
from sandgate._retry import Retry, is_break, is_renewable
from sandgate.errors import (
    ConnectionLostError,
    ExecNotFoundError,
    InternalError,
    SandgateError,
    UnavailableError,
)
from sandgate.process import Event, Gap, Output, Started, StreamName, exited_event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from google.protobuf.message import Message

    from sandgate._calls import Plan


E_co = TypeVar("E_co", covariant=True)


class Followed(Protocol[E_co]):
    """A stream that is resumed. The client that drives it makes the calls."""

    @property
    def done(self) -> bool:
        """True when no call is left to make."""

    def open(self) -> tuple[str, Message]:
        """Return the call to make and its request."""

    def feed(self, message: Any) -> Iterator[E_co]:
        """Take one message and give the events that are new."""

    def broken(self, error: SandgateError | None, window: float) -> float:
        """Take what ended the call and return the seconds to wait before the next."""


class Follower:
    """Follows one command over any number of broken connections.

    It keeps the state; the client that drives it makes the calls: `open` returns
    the call to make, `feed` takes each message, `broken` takes the error and
    returns how long to wait before the next `open`.
    """

    _KILL_WAIT: Final = 0.05

    def __init__(
        self,
        request: pb.ExecuteRequest | pb.AttachRequest,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request = request
        self._retry = Retry(clock=clock)
        self._position = request.position if isinstance(request, pb.AttachRequest) else 0
        self._incarnation = request.expected_incarnation
        self._started = False
        self._first_of_call = True
        self._decoders = {
            s: codecs.getincrementaldecoder("utf-8")("replace") for s in (pb.STREAM_STDOUT, pb.STREAM_STDERR)
        }
        self.done = False

    @property
    def kills(self) -> bool:
        """True when the command must not outlive its caller."""
        return isinstance(self._request, pb.ExecuteRequest) and not self._request.detach and not self.done

    @property
    def exec_id(self) -> str:
        """The command's id."""
        return self._request.exec_id

    def kill(self, window: float, *, reached: bool, starting: float = 0.0) -> Plan[bool]:
        """Plan the kill of the command's whole tree; False when it is not known.

        Over a broken connection it is repeated: to kill twice does no harm.

        Args:
            window: Seconds that all of it may take.
            reached: The server was reached before, so it may come back.
            starting: Seconds in which a command that is not known may still start.
        """
        begun = time.monotonic()
        request = pb.SignalProcessRequest(
            sandbox_id=self._request.sandbox_id,
            expected_incarnation=self._incarnation,
            exec_id=self.exec_id,
            signal="SIGKILL",
            scope=pb.SIGNAL_SCOPE_TREE,
        )
        while True:
            left = max(begun + window - time.monotonic(), self._KILL_WAIT)
            try:
                yield from _calls.call(_calls.SIGNAL_PROCESS, request, left)
            except ExecNotFoundError:
                if self._started or time.monotonic() + self._KILL_WAIT - begun >= starting:
                    return False
            except UnavailableError:
                if not reached or time.monotonic() + self._KILL_WAIT - begun >= window:
                    raise
            else:
                return True
            yield _calls.WaitStep(self._KILL_WAIT)

    def open(self) -> tuple[Literal["Execute", "Attach"], pb.ExecuteRequest | pb.AttachRequest]:
        """Return the call to make and its request."""
        self._first_of_call = True
        if not self._started and isinstance(self._request, pb.ExecuteRequest):
            return "Execute", self._request
        request = pb.AttachRequest(
            sandbox_id=self._request.sandbox_id,
            expected_incarnation=self._incarnation,
            exec_id=self._request.exec_id,
            position=self._position,
            follow_until=self._request.follow_until,
        )
        return "Attach", request

    def feed(self, message: pb.ExecuteResponse | pb.AttachResponse) -> Iterator[Event]:
        """Take one message and give the events that are new.

        Raises:
            InternalError: The messages came in an impossible order.
        """
        kind = message.WhichOneof("event")
        if self._first_of_call != (kind == "started") and kind is not None:
            raise _protocol_error(f"{kind} came in the wrong place")
        self._retry.progress()
        if kind == "started":
            self._first_of_call = False
            yield from self._on_started(message.started)
        elif kind == "output":
            yield from self._on_output(message.output)
        elif kind == "gap":
            yield from self._on_gap(message.gap)
        elif kind == "exited":
            yield from self._on_exited(message.exited)

    def broken(self, error: SandgateError | None, window: float) -> float:
        """Take what ended the call and return the seconds to wait before the next.

        Args:
            error: None: the stream ended early.
            window: The retry window in seconds.

        Raises:
            SandgateError: The stream cannot be resumed: the error itself if it is
                permanent or the command has not started, `ConnectionLostError` at the
                end of the retry window.
        """
        if error is None:
            error = ConnectionLostError("the stream ended early", code="UNAVAILABLE")
        if error.reason == "READER_TOO_SLOW":
            return 0
        renewable = is_renewable(error)
        if not (is_break(error) or renewable):
            raise error
        wait = self._retry.next(error, window)
        if wait is not None:
            return wait
        if renewable or not self._started:
            raise error
        raise ConnectionLostError(
            f"the connection was lost at position {self._position} of command {self.exec_id} "
            f"and did not come back within {window:g} s: {error}",
            code="UNAVAILABLE",
            metadata={"exec_id": self.exec_id, "position": str(self._position)},
        ) from error

    def _on_started(self, started: pb.Started) -> Iterator[Event]:
        if not self._started:
            self._started = True
            self._incarnation = started.incarnation
            self._request.exec_id = started.exec_id
            yield Started(
                exec_id=started.exec_id,
                incarnation=started.incarnation,
                pid=started.pid,
                start_time=_values.time(started, "start_time"),
                position=started.position,
                joined=started.joined,
            )
        if started.position > self._position:
            yield from self._lose(started.position)

    def _on_output(self, output: pb.Output) -> Iterator[Event]:
        if output.position > self._position:
            raise _protocol_error(f"output at {output.position} follows {self._position} without a gap")
        # A replay may begin before what is known already.
        data = output.data[self._position - output.position :]
        if not data:
            return
        known = output.stream if output.stream in self._decoders else pb.STREAM_STDOUT
        position, self._position = self._position, self._position + len(data)
        yield Output(_stream(known), position, data, self._decoders[known].decode(data))

    def _on_gap(self, gap: pb.Gap) -> Iterator[Event]:
        end = gap.end
        if end > self._position:
            yield from self._lose(end)

    def _lose(self, end: int) -> Iterator[Event]:
        start, self._position = self._position, end
        for decoder in self._decoders.values():
            decoder.reset()
        yield Gap(start, end)

    def _on_exited(self, exited: pb.Exited) -> Iterator[Event]:
        self.done = True
        for stream, decoder in self._decoders.items():
            if rest := decoder.decode(b"", final=True):
                yield Output(_stream(stream), self._position, b"", rest)
        yield exited_event(exited)


def _stream(value: pb.Stream.ValueType) -> StreamName:
    return "stderr" if value == pb.STREAM_STDERR else "stdout"


def _protocol_error(what: str) -> InternalError:
    return InternalError(f"the server broke the protocol: {what}", code="DATA_LOSS")
