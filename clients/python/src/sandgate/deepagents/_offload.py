"""Large output of a command: kept in a file of the sandbox, shown as an excerpt.

The output streams through the client anyway, for `on_output` and for LangGraph's
streams. So it is written back from here, and the image needs no shell tools.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from deepagents.backends.protocol import ExecuteOffloadResult, ExecuteResponse

from sandgate import _stream_plans
from sandgate.deepagents import _contract as contract
from sandgate.errors import SandgateError
from sandgate.files import UploadFile

if TYPE_CHECKING:
    from sandgate._calls import Plan
    from sandgate._plans import Target
    from sandgate.deepagents._run import Run

CAPTURE_BYTES: Final = 10 * 1024 * 1024
"""Bytes that are kept in the file, by default."""

_EDGE_LINES: Final = 5
_EDGE_BYTES: Final = 2000


def keep(
    target: Target, run: Run, response: ExecuteResponse, path: str, inline_bytes: int
) -> Plan[ExecuteOffloadResult]:
    """Leave output that is too large at `path`, and return an excerpt of it.

    Where it cannot be written, all of it is returned.
    """
    captured = run.captured
    if len(captured) <= inline_bytes:
        return ExecuteOffloadResult(offloaded=False, response=response)
    try:
        yield from _stream_plans.upload_one(target, UploadFile(path, captured))
    except SandgateError:
        return ExecuteOffloadResult(offloaded=False, response=response)
    shown, marked = excerpt(captured)
    shown += f"\n{run.note}" if run.note else ""
    return contract.build(
        ExecuteOffloadResult,
        offloaded=True,
        response=dataclasses.replace(response, output=shown),
        preview_has_truncation_marker=marked,
    )


def excerpt(captured: bytes) -> tuple[str, bool]:
    """Return the first and last lines, and whether lines between them are left out."""
    lines = captured.splitlines(keepends=True)
    omitted = len(lines) - 2 * _EDGE_LINES
    if omitted <= 0:
        shown = _text(captured[: 2 * _EDGE_BYTES])
        if len(captured) > 2 * _EDGE_BYTES:
            shown += f"\n... [output clipped here; {len(captured)} bytes in all, at the path above] ..."
        return shown, False
    first, last = b"".join(lines[:_EDGE_LINES]), b"".join(lines[-_EDGE_LINES:])
    clipped = len(first) > _EDGE_BYTES or len(last) > _EDGE_BYTES
    head = _text(first[:_EDGE_BYTES]).rstrip("\n")
    notice = "\n... [long lines clipped] ..." if clipped else ""
    return f"{head}{notice}\n... [{omitted} lines truncated] ...\n{_text(last[-_EDGE_BYTES:])}", True


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
