"""Files: what the server tells about them, and how they are moved."""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, TypeAlias

from sandgate import _values
from sandgate._gen.sandbox.v1 import sandbox_errors_pb2 as errors_pb
from sandgate._gen.sandbox.v1 import sandbox_files_pb2 as pb
from sandgate._gen.sandbox.v1 import sandbox_search_pb2 as search_pb
from sandgate.errors import FileError, InternalError, SandgateError, from_file

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Sequence

CHUNK_BYTES: Final = 256 * 1024
"""Size of the pieces that an upload is sent in."""

Source: TypeAlias = bytes | bytearray | memoryview | os.PathLike[str] | BinaryIO
"""Content to upload: bytes, the path of a file of this machine, or an open
binary file, which is read from where it stands to its end."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file, not following a link at its name."""

    path: str
    type: str
    """`"REGULAR"`, `"DIRECTORY"`, `"SYMLINK"` or `"OTHER"`."""
    size: int
    mode: int
    modify_time: dt.datetime | None
    symlink_target: str
    target_type: str
    """Type of what a link points to; `"UNSPECIFIED"` for a dangling one."""

    @property
    def is_dir(self) -> bool:
        """True for a directory; False for a link to one."""
        return self.type == "DIRECTORY"


@dataclass(frozen=True, slots=True)
class UploadFile:
    """One file of an upload."""

    path: str
    """Absolute path in the sandbox; parents are created."""
    source: Source
    mode: int | None = None
    """Permission bits. None: the replaced file's, 0644 for a new one."""
    create_only: bool = False
    """An existing file is not replaced but is FILE_ALREADY_EXISTS."""


@dataclass(frozen=True, slots=True)
class UploadResult:
    """What became of one uploaded file."""

    path: str
    size: int
    sha256: bytes
    error: SandgateError | None = None
    """Set when the file was not written; it is then as it was before."""


@dataclass(frozen=True, slots=True)
class DownloadResult:
    """What became of one downloaded file."""

    path: str
    content: bytes
    """Empty when the file was written to a target of the caller's."""
    size: int
    sha256: bytes
    info: FileInfo | None = None
    error: SandgateError | None = None


@dataclass(frozen=True, slots=True)
class Lines:
    """A window of lines of a text file."""

    content: bytes
    """The lines joined by a newline, without one after the last."""
    text: bool
    """False when the file is not UTF-8 text; content is empty then."""
    start_line: int
    """From 1; 0: no line."""
    end_line: int
    total_lines: int | None
    """None when the file was not read to its end."""
    more: bool
    truncated: bool
    size: int


@dataclass(frozen=True, slots=True)
class WriteResult:
    """A file that was written."""

    size: int
    sha256: bytes
    created: bool
    """False when a file was replaced."""


@dataclass(frozen=True, slots=True)
class EditResult:
    """A file that was edited."""

    occurrences: int
    size: int


@dataclass(frozen=True, slots=True)
class SearchMatch:
    """One matching line, with its neighbours where they were asked for."""

    path: str
    line: int
    text: bytes
    before: tuple[bytes, ...]
    after: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Matching lines, by path, then line."""

    matches: tuple[SearchMatch, ...]
    truncated: bool
    truncation_reason: str
    """`"COUNT"`, `"TIME"` or `"UNREADABLE"`; `"UNSPECIFIED"` when not truncated."""
    files_searched: int


@dataclass(frozen=True, slots=True)
class GlobResult:
    """Files by name, sorted by path."""

    files: tuple[FileInfo, ...]
    truncated: bool
    truncation_reason: str
    """As in `SearchResult`."""


class Upload:
    """The frames of one upload and the check of its results."""

    def __init__(self, sandbox_id: str, incarnation: str, files: Sequence[UploadFile]) -> None:
        self._sandbox_id = sandbox_id
        self._incarnation = incarnation
        self._files = files
        self._sent: list[tuple[int, bytes]] = []

    @property
    def blocking(self) -> bool:
        """True when the frames are read from files of this machine."""
        return any(not isinstance(f.source, bytes | bytearray | memoryview) for f in self._files)

    def frames(self) -> Iterator[pb.UploadRequest]:
        """Give the messages to send. An unreadable source raises `OSError`."""
        self._sent = []
        for index, file in enumerate(self._files):
            header = pb.UploadHeader(path=file.path, mode=file.mode, create_only=file.create_only)
            if index == 0:
                header.sandbox_id, header.expected_incarnation = self._sandbox_id, self._incarnation
            if isinstance(file.source, bytes | bytearray | memoryview):
                view = memoryview(file.source).cast("B")
                header.size, header.sha256 = len(view), hashlib.sha256(view).digest()
                yield pb.UploadRequest(header=header)
                for start in range(0, len(view), CHUNK_BYTES):
                    yield pb.UploadRequest(chunk=bytes(view[start : start + CHUNK_BYTES]))
                self._sent.append((header.size, header.sha256))
            elif isinstance(file.source, os.PathLike):
                with Path(file.source).open("rb") as opened:
                    yield from self._from_file(header, opened)
            else:
                yield from self._from_file(header, file.source)

    def _from_file(self, header: pb.UploadHeader, source: BinaryIO) -> Iterator[pb.UploadRequest]:
        # Opened before its header is sent: a missing source sends nothing.
        yield pb.UploadRequest(header=header)
        digest, size = hashlib.sha256(), 0
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
            yield pb.UploadRequest(chunk=chunk)
        self._sent.append((size, digest.digest()))

    def results(self, response: pb.UploadResponse) -> list[UploadResult]:
        """Read the response: one result per file, in order."""
        if len(response.results) != len(self._files):
            raise InternalError(
                f"the server answered for {len(response.results)} files of {len(self._files)}",
                code="DATA_LOSS",
            )
        results = []
        for file, result, sent in zip(self._files, response.results, self._sent, strict=False):
            error = _file_error(file.path, result.error) if result.HasField("error") else None
            if error is None and (result.size, result.sha256) != sent:
                error = _checksum_error(file.path)
            results.append(UploadResult(file.path, result.size, result.sha256, error))
        return results


class Download:
    """Puts the messages of a download together again."""

    def __init__(self, paths: Sequence[str], targets: Sequence[BinaryIO] | None = None) -> None:
        self._paths = paths
        self._targets = targets
        self._results: list[DownloadResult] = []
        self._info: FileInfo | None = None
        self._begin()

    def _begin(self) -> None:
        self._digest = hashlib.sha256()
        self._size = 0
        self._info = None
        index = len(self._results)
        self._target: BinaryIO = (
            self._targets[index] if self._targets and index < len(self._paths) else io.BytesIO()
        )

    def take(self, message: pb.DownloadResponse) -> None:
        """Take one message.

        Raises:
            InternalError: The messages came in an impossible order.
        """
        match message.WhichOneof("payload"):
            case "header":
                self._info = file_info(message.header.info)
            case "chunk":
                self._digest.update(message.chunk)
                self._size += len(message.chunk)
                self._target.write(message.chunk)
            case "trailer":
                self._end(message.trailer)

    def _end(self, trailer: pb.DownloadTrailer) -> None:
        index = len(self._results)
        if trailer.index != index or index >= len(self._paths):
            raise InternalError(f"the server sent file {trailer.index} in place of {index}", code="DATA_LOSS")
        path, error = self._paths[index], None
        if trailer.HasField("error"):
            error = _file_error(path, trailer.error)
        elif (self._size, self._digest.digest()) != (trailer.size, trailer.sha256):
            error = _checksum_error(path)
        keep = error is None and isinstance(self._target, io.BytesIO) and not self._targets
        content = self._target.getvalue() if keep and isinstance(self._target, io.BytesIO) else b""
        self._results.append(
            DownloadResult(path, content, self._size, self._digest.digest(), self._info, error)
        )
        self._begin()

    def results(self) -> list[DownloadResult]:
        """Return one result per path, in order; only after the last message."""
        if len(self._results) != len(self._paths):
            raise InternalError(
                f"the server sent {len(self._results)} files of {len(self._paths)}", code="DATA_LOSS"
            )
        return self._results


def file_info(message: pb.FileInfo) -> FileInfo:
    """Read a `FileInfo` message."""
    return FileInfo(
        path=message.path,
        type=_values.name(pb.FileType.DESCRIPTOR, message.type, "FILE_TYPE_"),
        size=message.size,
        mode=message.mode,
        modify_time=_values.time(message, "modify_time"),
        symlink_target=message.symlink_target,
        target_type=_values.name(pb.FileType.DESCRIPTOR, message.target_type, "FILE_TYPE_"),
    )


def lines(message: pb.ReadLinesResponse) -> Lines:
    """Read a `ReadLinesResponse` message."""
    return Lines(
        content=message.content,
        text=message.text,
        start_line=message.start_line,
        end_line=message.end_line,
        total_lines=message.total_lines if message.HasField("total_lines") else None,
        more=message.more,
        truncated=message.truncated,
        size=message.size,
    )


def search_result(message: search_pb.SearchFilesResponse) -> SearchResult:
    """Read a `SearchFilesResponse` message."""
    return SearchResult(
        matches=tuple(
            SearchMatch(m.path, m.line, m.text, tuple(m.before), tuple(m.after)) for m in message.matches
        ),
        truncated=message.truncated,
        truncation_reason=_truncation(message.truncation_reason),
        files_searched=message.files_searched,
    )


def glob_result(message: search_pb.GlobFilesResponse) -> GlobResult:
    """Read a `GlobFilesResponse` message."""
    return GlobResult(
        files=tuple(file_info(f) for f in message.files),
        truncated=message.truncated,
        truncation_reason=_truncation(message.truncation_reason),
    )


def _truncation(value: int) -> str:
    return _values.name(search_pb.TruncationReason.DESCRIPTOR, value, "TRUNCATION_REASON_")


def _file_error(path: str, error: pb.FileError) -> SandgateError:
    reason = _values.name(errors_pb.ErrorReason.DESCRIPTOR, error.reason, "ERROR_REASON_")
    return from_file(path, reason, error.message or f"{path}: {reason}")


def _checksum_error(path: str) -> FileError:
    return FileError(
        f"{path}: the bytes that arrived are not those that were sent",
        code="DATA_LOSS",
        reason="FILE_CHECKSUM_MISMATCH",
        metadata={"path": path},
    )
