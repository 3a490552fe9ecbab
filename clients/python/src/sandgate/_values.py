"""Turning wire values into plain Python ones, and back."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from google.protobuf.duration_pb2 import Duration

if TYPE_CHECKING:
    from google.protobuf.descriptor import EnumDescriptor
    from google.protobuf.message import Message
    from google.protobuf.timestamp_pb2 import Timestamp


def duration(seconds: float | None) -> Duration | None:
    """Return seconds as a Duration; None stays None, which leaves a field unset.

    Raises:
        ValueError: The duration is negative or not a number.
    """
    if seconds is None:
        return None
    if not seconds >= 0:
        raise ValueError(f"a duration must not be negative: {seconds}")
    value = Duration()
    value.FromNanoseconds(round(seconds * 1e9))
    return value


def seconds(message: Message, field: str) -> float | None:
    """Return a Duration field in seconds; None when it is unset."""
    if not message.HasField(field):
        return None
    value: Duration = getattr(message, field)
    return value.ToNanoseconds() / 1e9


def time(message: Message, field: str) -> dt.datetime | None:
    """Return a Timestamp field as an aware datetime in UTC; None when it is unset."""
    if not message.HasField(field):
        return None
    value: Timestamp = getattr(message, field)
    return value.ToDatetime(tzinfo=dt.UTC)


def name(enum: EnumDescriptor, value: int, prefix: str) -> str:
    """Return an enum value's name without its prefix; an unknown one is UNSPECIFIED."""
    known = enum.values_by_number.get(value)
    return "UNSPECIFIED" if known is None else known.name.removeprefix(prefix)
