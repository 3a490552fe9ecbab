"""Files: their metadata, and options and results of transfers."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, Final, TypeAlias

from sandgate import _values
from sandgate._gen.sandbox.v1 import sandbox_errors_pb2 as errors_pb
from sandgate._gen.sandbox.v1 import sandbox_files_pb2 as pb
from sandgate._gen.sandbox.v1 import sandbox_search_pb2 as search_pb
from sandgate.errors import SandgateError, from_file

if TYPE_CHECKING:
    import datetime as dt

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

    def __post_init__(self) -> None:
        if isinstance(self.source, str):
            raise TypeError(
                f"the source of {self.path} is a str, which could be a path or text: "
                "give pathlib.Path(...) for a local file, or text.encode() for its content"
            )
        if not isinstance(self.source, bytes | bytearray | memoryview | os.PathLike) and not hasattr(
            self.source, "read"
        ):
            raise TypeError(
                f"the source of {self.path} must be bytes, a pathlib.Path or an open binary file, "
                f"not {type(self.source).__name__}"
            )


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
    content: bytes = field(repr=False)
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
    """One matching line, with its context lines if they were requested."""

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


def file_error(path: str, error: pb.FileError) -> SandgateError:
    """Read a `FileError` message."""
    reason = _values.name(errors_pb.ErrorReason.DESCRIPTOR, error.reason, "ERROR_REASON_")
    return from_file(path, reason, error.message or f"{path}: {reason}")
