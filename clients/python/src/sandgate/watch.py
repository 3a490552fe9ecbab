"""Events of sandboxes, and the stream of them that is resumed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from sandgate import _values
from sandgate._gen.sandbox.v1 import sandbox_events_pb2 as pb
from sandgate._gen.sandbox.v1 import sandbox_lifecycle_pb2 as lifecycle_pb
from sandgate._retry import Retry, is_break, is_renewable
from sandgate.errors import ConnectionLostError, InvalidRequestError

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Mapping, Sequence

    from sandgate.errors import SandgateError

EventType: TypeAlias = Literal["CREATED", "STATE_CHANGED", "EXPIRING", "ENDED", "RESYNC"]
"""What happened. RESYNC: events are missing, list the sandboxes."""


@dataclass(frozen=True, slots=True)
class SandboxEvent:
    """A change of one sandbox. It may come more than once, with the same id."""

    event_id: str
    type: str
    """An `EventType`, or `"UNSPECIFIED"` from a newer server."""
    cursor: str
    """Where `watch` continues after this event."""
    time: dt.datetime | None
    sandbox_id: str
    """Empty with RESYNC."""
    incarnation: str
    template: str
    labels: Mapping[str, str]
    state: str
    """The state after the event; `"UNSPECIFIED"` once it has ended."""
    reason: str
    """`"REQUESTED"`, `"TTL"`, `"IDLE_TTL"`, `"OUT_OF_MEMORY"`, `"REPLACED"`, or `"UNSPECIFIED"`: unknown."""
    principal: str
    """The caller who asked for it, with REQUESTED."""
    message: str
    expire_time: dt.datetime | None
    """With EXPIRING: when the sandbox expires without further activity."""


class Watcher:
    """Follows the events over any number of broken connections, as `Follower` does a command."""

    done = False

    def __init__(
        self,
        cursor: str,
        templates: Sequence[str],
        labels: Mapping[str, str] | None,
        types: Sequence[EventType],
    ) -> None:
        known = pb.EventType.DESCRIPTOR.values_by_name
        for t in types:
            if f"EVENT_TYPE_{t}" not in known:
                raise InvalidRequestError(f"types: {t!r} is not a type of events")
        self._request = pb.WatchSandboxesRequest(
            cursor=_values.text("cursor", cursor),
            templates=_values.texts("templates", templates),
            labels=_values.mapping("labels", labels),
            types=[pb.EventType.Value(f"EVENT_TYPE_{t}") for t in types],
        )
        self._retry = Retry()

    def open(self) -> tuple[Literal["WatchSandboxes"], pb.WatchSandboxesRequest]:
        """Return the call to make and its request."""
        return "WatchSandboxes", self._request

    def feed(self, message: pb.WatchSandboxesResponse) -> Iterator[SandboxEvent]:
        """Take one message and give its event."""
        self._retry.progress()
        self._request.cursor = message.cursor
        if message.HasField("event"):
            yield sandbox_event(message)

    def broken(self, error: SandgateError | None, window: float) -> float:
        """Take what ended the call and return the seconds to wait before the next.

        Raises:
            SandgateError: The error is permanent, or the retry window ends.
        """
        if error is None:
            error = ConnectionLostError("the stream ended early", code="UNAVAILABLE")
        wait = self._retry.next(error, window) if is_break(error) or is_renewable(error) else None
        if wait is None:
            raise error
        return wait


def sandbox_event(message: pb.WatchSandboxesResponse) -> SandboxEvent:
    """Read a message that has an event."""
    e = message.event
    return SandboxEvent(
        event_id=e.event_id,
        type=_values.name(pb.EventType.DESCRIPTOR, e.type, "EVENT_TYPE_"),
        cursor=message.cursor,
        time=_values.time(e, "time"),
        sandbox_id=e.sandbox_id,
        incarnation=e.incarnation,
        template=e.template,
        labels=dict(e.labels),
        state=_values.name(lifecycle_pb.SandboxState.DESCRIPTOR, e.state, "SANDBOX_STATE_"),
        reason=_values.name(pb.EventReason.DESCRIPTOR, e.reason, "EVENT_REASON_"),
        principal=e.principal,
        message=e.message,
        expire_time=_values.time(e, "expire_time"),
    )
