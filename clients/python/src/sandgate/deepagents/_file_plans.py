"""File operations with deepagents' results, as plans: sync and async share them."""

from __future__ import annotations

import base64
import posixpath
import re
from typing import TYPE_CHECKING, Final, TypeVar

from deepagents.backends.protocol import (
    INVALID_PATH,
    DeleteResult,
    EditResult,
    FileDownloadResponse,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadResult,
    WriteResult,
)
from deepagents.backends.sandbox import MAX_BINARY_BYTES, MAX_OUTPUT_BYTES, TRUNCATION_MSG

from sandgate import _plans, _stream_plans, files
from sandgate.deepagents import _contract as contract
from sandgate.errors import DeadlineExceededError, FileError, InvalidRequestError, SandgateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandgate._calls import Plan
    from sandgate._plans import Target

T = TypeVar("T")

_INLINE_BYTES: Final = 1024 * 1024
"""Content up to this size is written in one message."""

_MESSAGE_BYTES: Final = files.CHUNK_BYTES
"""A single file up to this size is uploaded in one message. A larger one is sooner
there in pieces, since the server passes them on as they come."""

_EDIT_BYTES: Final = 16 * 1024 * 1024 - 64 * 1024
"""Texts of an edit up to this size are sent in one message."""

_PAGE_BYTES: Final = MAX_OUTPUT_BYTES - len(TRUNCATION_MSG.encode())


def ls(target: Target, path: str) -> Plan[LsResult]:
    try:
        check(path)
        found = yield from _plans.list_directory(target, path)
    except SandgateError as e:
        return LsResult(error=contract.walk_error(path, e), entries=None)
    return LsResult(
        entries=[
            {"path": posixpath.join(path, posixpath.basename(entry.path)), "is_dir": entry.is_dir}
            for entry in found
        ]
    )


def read(target: Target, path: str, offset: int, limit: int) -> Plan[ReadResult]:
    offset, limit = max(int(offset), 0), max(int(limit), 0)
    try:
        check(path)
        if contract.is_binary(path):
            return (yield from _read_binary(target, path))
        lines = yield from _plans.read_lines(target, path, offset=offset, limit=limit, max_bytes=_PAGE_BYTES)
        if not lines.text and lines.size:
            return (yield from _read_binary(target, path))
    except SandgateError as e:
        return ReadResult(error=contract.read_error(path, e))
    return _page(path, lines, offset, limit)


def _page(path: str, lines: files.Lines, offset: int, limit: int) -> ReadResult:
    if not lines.size and not lines.content:
        return _text(contract.EMPTY_FILE)
    if limit == 0:
        empty = {"content": "", "encoding": "utf-8"}
        return contract.build(ReadResult, file_data=empty, no_lines_requested=True)
    if lines.start_line == 0:
        total = lines.total_lines or 0
        return ReadResult(error=f"File '{path}': Line offset {offset} exceeds file length ({total} lines)")
    content = lines.content.decode("utf-8", "replace") + (TRUNCATION_MSG if lines.truncated else "")
    try:
        return contract.build(
            ReadResult,
            file_data={"content": content, "encoding": "utf-8"},
            start_line=lines.start_line,
            end_line=lines.end_line,
            total_lines=lines.total_lines,
            next_offset=lines.end_line if lines.more else None,
        )
    except ValueError as e:
        return ReadResult(error=f"File '{path}': unexpected server response: {e}")


def _read_binary(target: Target, path: str) -> Plan[ReadResult]:
    result = yield from _stream_plans.download_file(target, path, limit=MAX_BINARY_BYTES + 1)
    if result.size > MAX_BINARY_BYTES:
        return ReadResult(
            error=f"File '{path}': Binary file exceeds maximum preview size of {MAX_BINARY_BYTES} bytes"
        )
    if not result.size:
        return _text(contract.EMPTY_FILE)
    return ReadResult(
        file_data={"content": base64.b64encode(result.content).decode("ascii"), "encoding": "base64"}
    )


def _text(content: str) -> ReadResult:
    return ReadResult(file_data={"content": content, "encoding": "utf-8"})


def write(target: Target, path: str, content: str) -> Plan[WriteResult]:
    try:
        check(path)
        data = content.encode("utf-8")
        if len(data) <= _INLINE_BYTES:
            yield from _plans.write_file(target, path, data, mode=None, create_only=False)
        else:
            yield from _stream_plans.upload_one(target, files.UploadFile(path, data))
    except UnicodeEncodeError as e:
        return WriteResult(error=f"Failed to write file '{path}': {e}")
    except SandgateError as e:
        return WriteResult(error=f"Failed to write file '{path}': {contract.change_error(e)}")
    return WriteResult(path=path)


def edit(target: Target, path: str, old: str, new: str, *, replace_all: bool) -> Plan[EditResult]:
    if not old:
        return EditResult(error=contract.EMPTY_OLD_STRING)
    try:
        old_bytes, new_bytes = old.encode("utf-8"), new.encode("utf-8")
    except UnicodeEncodeError as e:
        return EditResult(error=f"Error editing file '{path}': {e}")
    apply = _edit_in_place if len(old_bytes) + len(new_bytes) <= _EDIT_BYTES else _edit_by_transfer
    try:
        check(path)
        occurrences = yield from apply(target, path, old_bytes, new_bytes, replace_all=replace_all)
    except SandgateError as e:
        return EditResult(error=contract.edit_error(path, old, e))
    return EditResult(path=path, occurrences=occurrences)


def _edit_in_place(target: Target, path: str, old: bytes, new: bytes, *, replace_all: bool) -> Plan[int]:
    result = yield from _plans.edit_file(
        target, path, old, new, replace_all=replace_all, allow_empty_old=False
    )
    return result.occurrences


def _edit_by_transfer(target: Target, path: str, old: bytes, new: bytes, *, replace_all: bool) -> Plan[int]:
    """Edit here what is too large for one message.

    The file is replaced as a whole, but what another writer did to it in the
    meantime is lost.
    """
    raw = (yield from _stream_plans.download_file(target, path)).content
    old_lf, new_lf = old.replace(b"\r\n", b"\n"), new.replace(b"\r\n", b"\n")
    old_crlf, new_crlf = old_lf.replace(b"\n", b"\r\n"), new_lf.replace(b"\n", b"\r\n")
    for was, becomes in ((old, new), (old_crlf, new_crlf), (old_lf, new_lf)):
        count = raw.count(was)
        if count > 1 and not replace_all:
            raise FileError("the text occurs more than once", reason="EDIT_NOT_UNIQUE")
        if count:
            yield from _stream_plans.upload_one(target, files.UploadFile(path, raw.replace(was, becomes)))
            return count
    raise FileError("the text does not occur", reason="EDIT_TEXT_NOT_FOUND")


def delete(target: Target, path: str) -> Plan[DeleteResult]:
    try:
        check(path)
        yield from _plans.remove_file(target, path, recursive=True, allow_missing=False)
    except SandgateError as e:
        if e.reason in ("FILE_NOT_FOUND", "FILE_NOT_DIRECTORY"):
            return DeleteResult(error=f"Error: '{path}' not found")
        return DeleteResult(error=f"Error deleting file '{path}': {contract.change_error(e)}")
    return DeleteResult(path=path)


def grep(
    target: Target,
    pattern: str,
    path: str,
    glob: str | None,
    *,
    max_count: int | None,
    exclude_dirs: Sequence[str],
) -> Plan[GrepResult]:
    # grep's fixed strings: an empty one is in every line, and lines of the
    # pattern are alternatives. The API's literal is one text within a line.
    regexp = not pattern or "\n" in pattern
    wanted = "|".join(re.escape(p) for p in pattern.split("\n")) if regexp else pattern
    try:
        check(path)
        check(pattern, "PATTERN_INVALID")
        check(glob or "", "PATTERN_INVALID")
        found = yield from _plans.search_files(
            target,
            path,
            f"(?:{wanted})" if regexp else wanted,
            regexp=regexp,
            glob=glob or "",
            exclude_dirs=exclude_dirs,
            max_matches=0 if max_count is None else max(max_count, 1),
            timeout=contract.GREP_TIMEOUT,
        )
    except DeadlineExceededError:
        return GrepResult(error=_too_slow("grep", contract.GREP_TIMEOUT))
    except SandgateError as e:
        return GrepResult(error=contract.walk_error(path, e))
    matches = found.matches if max_count is None else found.matches[: max(max_count, 0)]
    return contract.build(
        GrepResult,
        matches=[
            {"path": m.path, "line": m.line, "text": m.text.decode("utf-8", "replace")} for m in matches
        ],
        truncated=found.truncated or len(matches) < len(found.matches),
    )


def search_root(working_directory: str, path: str | None) -> str:
    """Return where a search begins. An absolute path stays as it was given."""
    if path is not None and path.startswith("/"):
        return path
    return posixpath.normpath(posixpath.join(working_directory, path or "."))


def glob(target: Target, pattern: str, path: str | None) -> Plan[GlobResult]:
    if not pattern:
        return GlobResult(matches=[])
    # A relative root would give relative matches, which no deny rule sees.
    path = path if path is not None and path.startswith("/") else f"/{path or ''}"
    try:
        check(path)
        check(pattern, "PATTERN_INVALID")
        found = yield from _plans.glob_files(
            target, path, pattern, include_links=True, timeout=contract.GLOB_TIMEOUT
        )
    except DeadlineExceededError:
        return GlobResult(error=_too_slow("glob", contract.GLOB_TIMEOUT))
    except SandgateError as e:
        if e.reason == "PATTERN_INVALID":
            climbs = ".." in re.split(r"[/\\]", pattern)
            return GlobResult(error=f"Path '{path}': {'invalid_pattern' if climbs else 'pattern_too_broad'}")
        return GlobResult(error=contract.walk_error(path, e))
    return contract.build(
        GlobResult,
        matches=[{"path": f.path, "is_dir": f.is_dir} for f in found.files],
        truncated=found.truncated,
        truncation_reason=contract.truncation_reason(found.truncation_reason) if found.truncated else None,
    )


def _too_slow(what: str, seconds: float) -> str:
    return f"Error: {what} timed out after {seconds:g}s. Try a more specific pattern or a narrower path."


def make_parents(target: Target, path: str) -> Plan[WriteResult | None]:
    try:
        check(path)
        yield from _plans.make_directory(target, posixpath.dirname(path) or "/", parents=True, mode=None)
    except SandgateError as e:
        return WriteResult(error=f"Failed to write file '{path}': {contract.change_error(e)}")
    return None


def upload_files(target: Target, wanted: Sequence[tuple[str, bytes]]) -> Plan[list[FileUploadResponse]]:
    sendable = [files.UploadFile(path, content) for path, content in wanted if _is_absolute(path)]
    try:
        results = yield from _send(target, sendable)
        errors = [contract.transfer_error(r.error) if r.error else None for r in results]
    except SandgateError as e:
        errors = [contract.describe(e)] * len(sendable)
    remaining = iter(errors)
    return [
        FileUploadResponse(path=path, error=next(remaining) if _is_absolute(path) else INVALID_PATH)
        for path, _ in wanted
    ]


def _send(target: Target, wanted: Sequence[files.UploadFile]) -> Plan[list[files.UploadResult]]:
    match wanted:
        case [files.UploadFile(path=path, source=bytes() as content)] if len(content) <= _MESSAGE_BYTES:
            if (result := (yield from _stream_plans.upload_message(target, path, content))) is not None:
                return [result]
    return (yield from _stream_plans.upload(target, wanted))


def download_files(target: Target, paths: Sequence[str]) -> Plan[list[FileDownloadResponse]]:
    sendable = [path for path in paths if _is_absolute(path)]
    try:
        results = yield from _stream_plans.download(target, sendable)
        outcomes = [
            (None, contract.transfer_error(r.error)) if r.error else (r.content, None) for r in results
        ]
    except SandgateError as e:
        outcomes = [(None, contract.describe(e))] * len(sendable)
    remaining = iter(outcomes)
    responses = []
    for path in paths:
        content, error = next(remaining) if _is_absolute(path) else (None, INVALID_PATH)
        responses.append(FileDownloadResponse(path=path, content=content, error=error))
    return responses


def strict(plan: Plan[T]) -> Plan[T]:
    """Let errors of the infrastructure pass by a plan's own handling."""
    try:
        step = next(plan)
        while True:
            try:
                answer = yield step
            except SandgateError as e:
                if not contract.is_about_file(e):
                    plan.close()
                    raise
                step = plan.throw(e)
            else:
                step = plan.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def _is_absolute(path: str) -> bool:
    return path.startswith("/") and "\0" not in path and _is_sendable(path)


def _is_sendable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def check(text: str, reason: str = "PATH_INVALID") -> None:
    """Refuse here what cannot be sent at all: a lone surrogate.

    Raises:
        InvalidRequestError: It holds one.
    """
    if not _is_sendable(text):
        raise InvalidRequestError("it is not valid Unicode", code="INVALID_ARGUMENT", reason=reason)
