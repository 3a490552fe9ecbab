"""The state of a followed command, without any connection."""

from __future__ import annotations

import random

import pytest

from sandgate import CommandStartError, ConnectionLostError, InternalError, UnavailableError
from sandgate._follower import Follower
from sandgate._gen.sandbox.v1 import sandbox_process_pb2 as pb
from sandgate.process import Collector, Event, Exited, Gap, Output, Started


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _follower(clock: Clock | None = None) -> Follower:
    request = pb.ExecuteRequest(sandbox_id="s", exec_id="e", shell="x")
    return Follower(request, clock=clock or Clock())


def _started(position: int = 0) -> pb.ExecuteResponse:
    return pb.ExecuteResponse(started=pb.Started(exec_id="e", incarnation="i", position=position))


def _output(position: int, data: bytes, stream: pb.Stream.ValueType = pb.STREAM_STDOUT) -> pb.ExecuteResponse:
    return pb.ExecuteResponse(output=pb.Output(stream=stream, position=position, data=data))


def _gap(start: int, end: int) -> pb.ExecuteResponse:
    return pb.ExecuteResponse(gap=pb.Gap(start=start, end=end))


def _exited(code: int = 0) -> pb.ExecuteResponse:
    return pb.ExecuteResponse(exited=pb.Exited(reason=pb.EXIT_REASON_EXITED, exit_code=code))


def _feed(follower: Follower, *messages: pb.ExecuteResponse) -> list[Event]:
    return [event for message in messages for event in follower.feed(message)]


def test_the_events_of_a_command() -> None:
    follower = _follower()
    name, request = follower.open()
    assert name == "Execute"
    assert request.exec_id == "e"
    events = _feed(follower, _started(), _output(0, b"ab"), _output(2, b"c", pb.STREAM_STDERR), _exited(7))
    assert [type(e) for e in events] == [Started, Output, Output, Exited]
    assert follower.done
    collector = Collector()
    for event in events:
        collector.add(event)
    result = collector.result()
    assert (result.stdout, result.stderr, result.output, result.code) == ("ab", "c", "abc", 7)


def test_before_started_the_same_execute_is_sent_again() -> None:
    follower = _follower()
    first = follower.open()
    follower.broken(UnavailableError("gone", code="UNAVAILABLE"), 60)
    assert follower.open() == first


def test_after_started_it_attaches_where_it_was() -> None:
    follower = _follower()
    follower.open()
    _feed(follower, _started(), _output(0, b"abc"))
    follower.broken(UnavailableError("gone", code="UNAVAILABLE"), 60)
    name, request = follower.open()
    assert name == "Attach"
    assert isinstance(request, pb.AttachRequest)
    assert (request.position, request.expected_incarnation, request.exec_id) == (3, "i", "e")
    # A replay that begins earlier than asked adds nothing twice.
    events = _feed(follower, _started(), _output(1, b"bcd"), _exited())
    assert [e.data for e in events if isinstance(e, Output)] == [b"d"]
    assert not any(isinstance(e, Started) for e in events)


def test_a_stream_that_ends_early_without_an_error_is_resumed() -> None:
    follower = _follower()
    follower.open()
    _feed(follower, _started())
    assert follower.broken(None, 60) > 0


def test_a_stream_that_something_on_the_path_reset_is_resumed() -> None:
    follower = _follower()
    follower.open()
    _feed(follower, _started(), _output(0, b"abc"))
    follower.broken(InternalError("stream reset", code="INTERNAL"), 60)
    name, request = follower.open()
    assert (name, request.position) == ("Attach", 3)  # type: ignore[union-attr]
    with pytest.raises(InternalError):
        follower.broken(InternalError("a fault", code="INTERNAL", reason="INTERNAL"), 60)


def test_gaps_are_events() -> None:
    follower = _follower()
    follower.open()
    events = _feed(follower, _started(), _gap(0, 10), _output(10, b"x"), _exited())
    assert [e for e in events if isinstance(e, Gap)] == [Gap(0, 10)]
    follower = _follower()
    follower.open()
    events = _feed(follower, _started(5), _output(5, b"x"))
    assert [type(e) for e in events] == [Started, Gap, Output]


@pytest.mark.parametrize(
    "messages",
    [
        [_output(0, b"x")],
        [_exited()],
        [_started(), _started()],
        [_started(), _output(3, b"x")],
    ],
)
def test_events_out_of_order_are_an_internal_error(messages: list[pb.ExecuteResponse]) -> None:
    follower = _follower()
    follower.open()
    with pytest.raises(InternalError):
        _feed(follower, *messages)


def test_an_unknown_event_is_ignored() -> None:
    follower = _follower()
    follower.open()
    assert _feed(follower, _started(), pb.ExecuteResponse()) != []


def test_other_errors_than_a_broken_connection_are_final() -> None:
    with pytest.raises(CommandStartError):
        _follower().broken(CommandStartError("no such program"), 60)


def test_the_retry_window_ends_with_a_lost_connection() -> None:
    clock = Clock()
    follower = _follower(clock)
    follower.open()
    _feed(follower, _started(), _output(0, b"abc"))
    waits = list[float]()

    def retry() -> None:
        while True:
            waits.append(follower.broken(UnavailableError("gone", code="UNAVAILABLE"), 60))
            clock.now += waits[-1]

    with pytest.raises(ConnectionLostError) as caught:
        retry()
    assert 57 < clock.now <= 60
    assert max(waits) <= 2.5
    assert caught.value.metadata == {"exec_id": "e", "position": "3"}


def test_before_started_the_retry_window_ends_with_the_error_itself() -> None:
    clock = Clock()
    follower = _follower(clock)
    follower.broken(UnavailableError("gone", code="UNAVAILABLE"), 60)
    clock.now = 60
    with pytest.raises(UnavailableError):
        follower.broken(UnavailableError("gone", code="UNAVAILABLE"), 60)


def test_a_reader_that_was_too_slow_reattaches_at_once() -> None:
    follower = _follower()
    follower.open()
    _feed(follower, _started())
    too_slow = ConnectionLostError("too slow", code="ABORTED", reason="READER_TOO_SLOW")
    assert follower.broken(too_slow, 60) == 0


def test_received_data_restarts_the_retry_window() -> None:
    clock = Clock()
    follower = _follower(clock)
    follower.open()
    _feed(follower, _started())
    for _ in range(5):
        follower.broken(UnavailableError("gone", code="UNAVAILABLE"), 60)
        clock.now += 50
        follower.open()
        _feed(follower, _started())


def test_text_is_decoded_across_pieces_and_completed_at_the_end() -> None:
    follower = _follower()
    follower.open()
    raw = "é€😀\0".encode() + b"\xff" + b"\xe2\x82"
    pieces = [_output(i, raw[i : i + 1]) for i in range(len(raw))]
    events = _feed(follower, _started(), *pieces, _exited())
    text = "".join(e.text for e in events if isinstance(e, Output))
    assert text == raw.decode("utf-8", "replace")
    assert isinstance(events[-1], Exited)


@pytest.mark.parametrize("seed", range(50))
def test_any_number_of_breaks_gives_the_same_output(seed: int) -> None:
    choose = random.Random(seed)  # noqa: S311 - a repeatable one is wanted
    log = [(choose.choice([1, 2]), choose.randbytes(choose.randint(1, 9))) for _ in range(30)]
    follower, collector = _follower(), Collector()
    while not follower.done:
        _, request = follower.open()
        position = request.position if isinstance(request, pb.AttachRequest) else 0
        messages, at = [_started(position)], 0
        for stream, data in log:
            if rest := data[max(position - at, 0) :]:
                messages.append(_output(at + len(data) - len(rest), rest, pb.Stream.ValueType(stream)))
            at += len(data)
        messages.append(_exited(3))
        for message in messages[: choose.randint(0, len(messages))]:
            for event in follower.feed(message):
                collector.add(event)
        if not follower.done:
            follower.broken(UnavailableError("cut", code="UNAVAILABLE"), 60)
    result = collector.result()
    assert result.output_data == b"".join(data for _, data in log)
    assert result.stdout_data == b"".join(data for stream, data in log if stream == pb.STREAM_STDOUT)
    assert result.code == 3


@pytest.mark.parametrize(
    ("reason", "signal", "code"),
    [
        (pb.EXIT_REASON_TIMED_OUT, "SIGKILL", 124),
        (pb.EXIT_REASON_SIGNALED, "SIGSEGV", 139),
        (pb.EXIT_REASON_SIGNALED, "SIGTERM", 143),
        (pb.EXIT_REASON_OUT_OF_MEMORY, "SIGKILL", 137),
        (pb.EXIT_REASON_KILLED, "", 137),
        (pb.EXIT_REASON_SANDBOX_STOPPED, "", None),
        (pb.EXIT_REASON_LOST, "", None),
    ],
)
def test_every_exit_reason_has_an_exit_code(
    reason: pb.ExitReason.ValueType, signal: str, code: int | None
) -> None:
    follower = _follower()
    follower.open()
    end = pb.ExecuteResponse(exited=pb.Exited(reason=reason, signal=signal))
    exited = _feed(follower, _started(), end)[-1]
    assert isinstance(exited, Exited)
    assert exited.code == code
    assert exited.exit_code is None
