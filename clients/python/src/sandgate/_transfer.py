"""Frames of uploads and downloads, and what is known of them after a break."""

from __future__ import annotations

import errno
import hashlib
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from sandgate import _values
from sandgate._gen.sandbox.v1 import sandbox_files_pb2 as pb
from sandgate.errors import FileError, InternalError, SandgateError
from sandgate.files import (
    CHUNK_BYTES,
    DownloadResult,
    FileInfo,
    UploadFile,
    UploadResult,
    file_error,
    file_info,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Content:
    """What a file is made of: bytes, a local file, or an open one."""

    def __init__(self, file: UploadFile) -> None:
        source = file.source
        self._bytes: memoryview | None = None
        self._path: Path | None = None
        self._file: BinaryIO | None = None
        self._start = 0
        self.size: int | None = None
        self.again = True
        """True when it can be read more than once."""
        self.sent: tuple[int, bytes] = (0, b"")
        """Size and SHA-256 of the whole, known when `chunks` has ended."""
        if isinstance(source, bytes | bytearray | memoryview):
            self._bytes = memoryview(source).cast("B")
            self.size = len(self._bytes)
        elif isinstance(source, os.PathLike):
            self._path = Path(source)
            self.size = self._path.stat().st_size
        else:
            self._file, self.again = source, source.seekable()
            if self.again:
                self._start = source.tell()
                self.size = source.seek(0, io.SEEK_END) - self._start
                source.seek(self._start)

    @property
    def blocking(self) -> bool:
        """True when reading it reads files of this machine."""
        return self._bytes is None

    def whole(self) -> tuple[int, bytes] | None:
        """Return size and SHA-256 before it is sent; None: not known yet."""
        if self._bytes is not None and not self.sent[1]:
            self.sent = len(self._bytes), hashlib.sha256(self._bytes).digest()
        return self.sent if self._bytes is not None else None

    def chunks(self, offset: int) -> Iterator[bytes]:
        """Give its bytes from an offset on. An unreadable source raises `OSError`."""
        if self._bytes is not None:
            for start in range(offset, len(self._bytes), CHUNK_BYTES):
                yield bytes(self._bytes[start : start + CHUNK_BYTES])
        elif self._path is not None:
            with self._path.open("rb") as opened:
                yield from self._read(opened, offset)
        elif self._file is not None:
            if self.again:
                self._file.seek(self._start)
            yield from self._read(self._file, offset)

    def _read(self, opened: BinaryIO, offset: int) -> Iterator[bytes]:
        digest, size = hashlib.sha256(), 0
        while chunk := _some(opened, CHUNK_BYTES if size >= offset else min(CHUNK_BYTES, offset - size)):
            digest.update(chunk)
            size += len(chunk)
            if size > offset:
                yield chunk
        self.sent = size, digest.digest()


def _some(opened: BinaryIO, size: int) -> bytes:
    """Read at most so many bytes; empty: the end."""
    chunk: bytes | None = opened.read(size)
    if chunk is None:
        name = getattr(opened, "name", opened)
        raise BlockingIOError(
            errno.EAGAIN, f"the source {name!r} is non-blocking and has no bytes yet: make it blocking"
        )
    return chunk


class Upload:
    """The frames of one upload and the check of its results."""

    def __init__(
        self,
        addressed: pb.UploadHeader,
        files: Sequence[tuple[UploadFile, Content]],
        upload_id: str = "",
        offset: int = 0,
    ) -> None:
        self._addressed = addressed
        self._files = files
        self._upload_id = upload_id
        self._offset = offset

    @property
    def blocking(self) -> bool:
        """True when the frames are read from files of this machine."""
        return any(content.blocking for _, content in self._files)

    def frames(self) -> Iterator[pb.UploadRequest]:
        """Give the messages to send. An unreadable source raises `OSError`."""
        for index, (file, content) in enumerate(self._files):
            header = pb.UploadHeader()
            if index == 0:
                header.CopyFrom(self._addressed)
            header.path, header.create_only = file.path, file.create_only
            header.upload_id, header.offset = self._upload_id, self._offset
            if file.mode is not None:
                header.mode = file.mode
            if (known := content.whole()) is not None:
                header.size, header.sha256 = known
            # Read before its header is sent: a missing source sends nothing.
            chunks = content.chunks(self._offset)
            first = next(chunks, b"")
            yield pb.UploadRequest(header=header)
            if first:
                yield pb.UploadRequest(chunk=first)
            for chunk in chunks:
                yield pb.UploadRequest(chunk=chunk)
            size, sha256 = content.sent
            yield pb.UploadRequest(trailer=pb.UploadTrailer(size=size, sha256=sha256))

    def results(self, response: pb.UploadResponse) -> list[UploadResult]:
        """Read the response: one result per file, in order."""
        if len(response.results) != len(self._files):
            raise InternalError(
                f"the server answered for {len(response.results)} files of {len(self._files)}",
                code="DATA_LOSS",
            )
        results = []
        for (file, content), result in zip(self._files, response.results, strict=True):
            error = file_error(file.path, result.error) if result.HasField("error") else None
            if error is None and (result.size, result.sha256) != content.sent:
                error = _checksum_error(file.path)
            results.append(UploadResult(file.path, result.size, result.sha256, error))
        return results


class Download:
    """Puts the messages of a download together, over as many streams as it takes."""

    def __init__(
        self, paths: Sequence[str], targets: Sequence[BinaryIO] | None = None, limit: int | None = None
    ) -> None:
        self._paths = _values.texts("paths", paths)
        self._targets = targets
        self._limit = limit
        self._first = 0
        self._results: list[DownloadResult] = []
        self._begin()

    @property
    def done(self) -> bool:
        """True when there is a result for each path."""
        return len(self._results) == len(self._paths)

    @property
    def progress(self) -> tuple[int, int]:
        """Files that are over, and bytes of the next one that came."""
        return len(self._results), self._size

    def items(self) -> list[pb.DownloadItem]:
        """Return what is missing, and expect a stream of it."""
        self._first, self._open = len(self._results), False
        items = [pb.DownloadItem(path=p, limit=self._limit) for p in self._paths[self._first :]]
        items[0].offset = self._size
        if self._limit is not None:
            items[0].limit = self._limit - self._size
        return items

    def _begin(self) -> None:
        self._whole = self._part = hashlib.sha256()
        self._size = self._part_size = 0
        self._info: FileInfo | None = None
        self._open = False
        index = len(self._results)
        self._target: BinaryIO = (
            self._targets[index] if self._targets and index < len(self._paths) else io.BytesIO()
        )

    def take(self, message: pb.DownloadResponse) -> None:
        """Take one message.

        Raises:
            InternalError: The messages came in an impossible order.
            FileError: The file was changed while it was read.
        """
        match message.WhichOneof("payload"):
            case "header":
                self._header(message.header)
            case "chunk":
                if not self._open:
                    raise InternalError("the server sent a chunk before its header", code="DATA_LOSS")
                self._whole.update(message.chunk)
                if self._part is not self._whole:
                    self._part.update(message.chunk)
                self._size += len(message.chunk)
                self._part_size += len(message.chunk)
                self._target.write(message.chunk)
            case "trailer":
                self._end(message.trailer)

    def _header(self, header: pb.DownloadHeader) -> None:
        expected = len(self._results) - self._first
        if self._open or (header.index, header.offset) != (expected, self._size):
            raise InternalError("the server sent a header out of order", code="DATA_LOSS")
        was, now = self._info, file_info(header.info)
        self._open, self._info = True, now
        if self._size:
            if was is None or (was.size, was.modify_time) != (now.size, now.modify_time):
                path = self._paths[len(self._results)]
                raise FileError(f"{path} was changed while it was read", code="ABORTED", reason="FILE_IO")
            self._part, self._part_size = hashlib.sha256(), 0

    def _end(self, trailer: pb.DownloadTrailer) -> None:
        index = len(self._results)
        if index >= len(self._paths) or trailer.index != index - self._first:
            raise InternalError(f"the server sent file {trailer.index} in place of {index}", code="DATA_LOSS")
        path, error = self._paths[index], None
        if trailer.HasField("error"):
            error = file_error(path, trailer.error)
        elif (self._part_size, self._part.digest()) != (trailer.size, trailer.sha256):
            error = _checksum_error(path)
        keep = error is None and isinstance(self._target, io.BytesIO) and not self._targets
        content = self._target.getvalue() if keep and isinstance(self._target, io.BytesIO) else b""
        self._results.append(
            DownloadResult(path, content, self._size, self._whole.digest(), self._info, error)
        )
        self._begin()

    def results(self) -> list[DownloadResult]:
        """Return one result per path, in order; only after the last message."""
        if not self.done:
            raise InternalError(
                f"the server sent {len(self._results)} files of {len(self._paths)}", code="DATA_LOSS"
            )
        return self._results


def _checksum_error(path: str) -> SandgateError:
    return FileError(
        f"{path}: the bytes that arrived are not those that were sent",
        code="DATA_LOSS",
        reason="FILE_CHECKSUM_MISMATCH",
        metadata={"path": path},
    )
