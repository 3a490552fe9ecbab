"""Turning wire values into plain Python ones, and back."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

from google.protobuf.duration_pb2 import Duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from google.protobuf.descriptor import EnumDescriptor
    from google.protobuf.message import Message
    from google.protobuf.timestamp_pb2 import Timestamp

_PREVIEW_BYTES: Final = 200


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


def text(field: str, value: object) -> str:
    """Return a string that fits on the wire.

    Raises:
        TypeError: It is no string. The error names the field.
        ValueError: It holds a lone surrogate, which UTF-8 cannot carry.
    """
    if not isinstance(value, str):
        raise TypeError(f"{field} must be a str, not {type(value).__name__}: {value!r:.100}")
    try:
        value.encode()
    except UnicodeEncodeError as e:
        raise ValueError(f"{field} is not valid Unicode: {value!r:.100}") from e
    return value


def texts(field: str, values: Iterable[object]) -> list[str]:
    """Return a list of such strings.

    Raises:
        TypeError: It is no list of strings.
    """
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise TypeError(f"{field} must be a list of str, not {type(values).__name__}: {values!r:.100}")
    return [text(f"{field}[{i}]", value) for i, value in enumerate(values)]


def mapping(field: str, values: Mapping[str, object] | None) -> dict[str, str] | None:
    """Return a map of such strings; None stays None, which leaves a field unset.

    Raises:
        TypeError: A key or a value is no string. The error names the key.
    """
    if values is None:
        return None
    if not hasattr(values, "items"):
        raise TypeError(f"{field} must be a mapping of str to str, not {type(values).__name__}")
    return {text(f"a key of {field}", key): text(f"{field}[{key!r}]", value) for key, value in values.items()}


def preview(data: bytes) -> str:
    """Return the beginning of bytes, for a representation that people read."""
    shown = data[:_PREVIEW_BYTES]
    return f"{shown!r}…, {len(data)} bytes" if len(data) > len(shown) else f"{shown!r}"


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
