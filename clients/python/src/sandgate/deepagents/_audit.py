"""Telling an audit log of the caller's what was done."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandgate.deepagents._options import AuditLog


@contextmanager
def audited(log: AuditLog | None, operation: str, target: str, **known: Any) -> Iterator[dict[str, Any]]:
    """Report an operation when it has ended, with the fields of the record.

    An operation that was cut short by an exception has its name as the error.
    """
    record: dict[str, Any] = {**known, "error": None}
    try:
        yield record
    except BaseException as e:
        record["error"] = type(e).__name__
        raise
    finally:
        if log is not None:
            log(operation, target, record)
