"""File calls of the fake server, on this machine's own paths."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import grpc
from google.rpc import code_pb2, error_details_pb2, status_pb2

from sandgate._gen.sandbox.v1 import sandbox_errors_pb2 as errors_pb
from sandgate._gen.sandbox.v1 import sandbox_files_pb2 as pb
from sandgate._gen.sandbox.v1 import sandbox_search_pb2 as search_pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")


class Refused(Exception):
    """A call that ends with a reason of the API, or without one, as by a proxy."""

    def __init__(self, code: grpc.StatusCode, reason: str, message: str, **metadata: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.metadata = code, reason, message, metadata
        self.retry_after: int | None = None
        """Seconds of the RetryInfo; None: there is none."""

    def abort(self, context: grpc.ServicerContext) -> None:
        info = error_details_pb2.ErrorInfo(reason=self.reason, domain="sandgate", metadata=self.metadata)
        status = status_pb2.Status(code=code_pb2.Code.Value(self.code.name), message=self.message)
        if self.reason:
            status.details.add().Pack(info)
        if self.retry_after is not None:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.FromSeconds(self.retry_after)
            status.details.add().Pack(retry)
        context.set_trailing_metadata(
            (("grpc-status-details-bin", status.SerializeToString()), ("x-request-id", "req-1"))
        )
        context.abort(self.code, self.message)

    def file_error(self) -> pb.FileError:
        reason = errors_pb.ErrorReason.Value(f"ERROR_REASON_{self.reason}")
        return pb.FileError(reason=reason, message=self.message)


def checked(path: str) -> Path:
    if not path.startswith("/") or "\0" in path:
        raise Refused(
            grpc.StatusCode.INVALID_ARGUMENT, "PATH_INVALID", f"{path!r} is not absolute", path=path
        )
    return Path(path)


def guarded(work: Callable[[], T], path: str) -> T:
    """Do some work with a path and turn the system's errors into reasons."""
    table = {
        FileNotFoundError: (grpc.StatusCode.NOT_FOUND, "FILE_NOT_FOUND"),
        PermissionError: (grpc.StatusCode.PERMISSION_DENIED, "FILE_PERMISSION_DENIED"),
        IsADirectoryError: (grpc.StatusCode.FAILED_PRECONDITION, "FILE_IS_DIRECTORY"),
        NotADirectoryError: (grpc.StatusCode.FAILED_PRECONDITION, "FILE_NOT_DIRECTORY"),
        FileExistsError: (grpc.StatusCode.ALREADY_EXISTS, "FILE_ALREADY_EXISTS"),
    }
    try:
        return work()
    except tuple(table) as e:
        code, reason = table[type(e)]
        raise Refused(code, reason, f"{path}: {e.strerror}", path=path) from e


def describe(path: Path, shown: str) -> pb.FileInfo:
    status = path.lstat()
    kinds = {
        stat.S_IFREG: pb.FILE_TYPE_REGULAR,
        stat.S_IFDIR: pb.FILE_TYPE_DIRECTORY,
        stat.S_IFLNK: pb.FILE_TYPE_SYMLINK,
    }
    kind = kinds.get(stat.S_IFMT(status.st_mode), pb.FILE_TYPE_OTHER)
    return pb.FileInfo(path=shown, type=kind, size=status.st_size, mode=status.st_mode & 0o7777)


def put(path: str, content: bytes, *, create_only: bool) -> bool:
    """Write a file with its parents; True when there was none before."""

    def work() -> bool:
        target = checked(path)
        new = not target.exists()
        if create_only and not new:
            raise FileExistsError(17, "exists")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError as e:
            raise NotADirectoryError(20, "a parent is a file") from e
        target.write_bytes(content)
        return new

    return guarded(work, path)


def upload(requests: Iterator[pb.UploadRequest]) -> pb.UploadResponse:
    response = pb.UploadResponse()
    header: pb.UploadHeader | None = None
    content = bytearray()

    def finish(header: pb.UploadHeader) -> None:
        result = response.results.add(path=header.path)
        try:
            if header.HasField("size") and header.size != len(content):
                raise Refused(grpc.StatusCode.DATA_LOSS, "FILE_CHECKSUM_MISMATCH", "wrong size")
            put(header.path, bytes(content), create_only=header.create_only)
        except Refused as e:
            result.error.CopyFrom(e.file_error())
        else:
            result.size, result.sha256 = len(content), hashlib.sha256(content).digest()

    for request in requests:
        match request.WhichOneof("payload"):
            case "header" if header is None:
                header, content = request.header, bytearray()
            case "chunk":
                content += request.chunk
            case "trailer" if header is not None:
                finish(header)
                header = None
    if header is not None:
        raise Refused(
            grpc.StatusCode.INVALID_ARGUMENT, "UPLOAD_OUT_OF_ORDER", f"{header.path} has no trailer"
        )
    return response


def download(request: pb.DownloadRequest) -> Iterator[pb.DownloadResponse]:
    for index, item in enumerate(request.items):
        trailer = pb.DownloadTrailer(index=index)
        try:
            path = guarded(lambda item=item: checked(item.path), item.path)  # type: ignore[misc]
            content = guarded(path.read_bytes, item.path)
            yield pb.DownloadResponse(
                header=pb.DownloadHeader(index=index, info=describe(path.resolve(), item.path))
            )
            content = content[item.offset :][: item.limit if item.HasField("limit") else None]
            for start in range(0, len(content), 65536):
                yield pb.DownloadResponse(chunk=content[start : start + 65536])
            trailer.size, trailer.sha256 = len(content), hashlib.sha256(content).digest()
        except Refused as e:
            trailer.error.CopyFrom(e.file_error())
        yield pb.DownloadResponse(trailer=trailer)


def read_lines(request: pb.ReadLinesRequest) -> pb.ReadLinesResponse:
    path = checked(request.path)
    raw = guarded(path.read_bytes, request.path)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return pb.ReadLinesResponse(text=False, size=len(raw))
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if lines[-1] == "":
        lines.pop()
    end = request.offset + request.limit if request.HasField("limit") else len(lines)
    page = lines[request.offset : end]
    response = pb.ReadLinesResponse(
        content="\n".join(page).encode(), text=True, total_lines=len(lines), size=len(raw)
    )
    if page:
        response.start_line, response.end_line = request.offset + 1, request.offset + len(page)
        response.more = response.end_line < len(lines)
    return response


def list_directory(request: pb.ListDirectoryRequest) -> pb.ListDirectoryResponse:
    path = checked(request.path)
    names = sorted(guarded(lambda: os.listdir(path), request.path))  # noqa: PTH208 - names only
    start = int(request.page_token or 0)
    page = names[start : start + 2]
    entries = [describe(path / name, f"{path}/{name}") for name in page]
    token = str(start + 2) if start + 2 < len(names) else ""
    return pb.ListDirectoryResponse(entries=entries, next_page_token=token)


def remove(request: pb.RemoveFileRequest) -> pb.RemoveFileResponse:
    path = checked(request.path)
    if not os.path.lexists(path):
        if request.allow_missing:
            return pb.RemoveFileResponse(removed=False)
        raise Refused(grpc.StatusCode.NOT_FOUND, "FILE_NOT_FOUND", f"{path}: not there")
    if path.is_dir() and not path.is_symlink():
        guarded(lambda: shutil.rmtree(path) if request.recursive else path.rmdir(), request.path)
    else:
        guarded(path.unlink, request.path)
    return pb.RemoveFileResponse(removed=True)


def edit(request: pb.EditFileRequest) -> pb.EditFileResponse:
    path = checked(request.path)
    raw = guarded(path.read_bytes, request.path)
    count = raw.count(request.old_text)
    if count == 0:
        raise Refused(grpc.StatusCode.NOT_FOUND, "EDIT_TEXT_NOT_FOUND", "no such text")
    if count > 1 and not request.replace_all:
        raise Refused(grpc.StatusCode.FAILED_PRECONDITION, "EDIT_NOT_UNIQUE", "several")
    path.write_bytes(raw.replace(request.old_text, request.new_text))
    return pb.EditFileResponse(occurrences=count, size=path.stat().st_size)


def search(request: search_pb.SearchFilesRequest) -> search_pb.SearchFilesResponse:
    root = checked(request.path)
    guarded(root.stat, request.path)
    response = search_pb.SearchFilesResponse()
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root)
        if not path.is_file() or set(inside.parts) & set(request.exclude_dirs):
            continue
        if request.glob and not fnmatch.fnmatch(path.name, request.glob):
            continue
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            if request.pattern.encode() not in line:
                continue
            if len(response.matches) == (request.max_matches or 10_000):
                response.truncated = True
                response.truncation_reason = search_pb.TRUNCATION_REASON_COUNT
                return response
            response.matches.add(path=f"{request.path.rstrip('/')}/{inside}", line=number, text=line)
    return response


def glob(request: search_pb.GlobFilesRequest) -> search_pb.GlobFilesResponse:
    root = checked(request.path)
    guarded(root.stat, request.path)
    if ".." in request.pattern.split("/"):
        raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "PATTERN_INVALID", "the pattern has a .. segment")
    response = search_pb.GlobFilesResponse()
    pattern = request.pattern if "/" in request.pattern else f"**/{request.pattern}"
    for path in sorted(root.glob(pattern.lstrip("/"))):
        if path.is_file():
            shown = f"{request.path.rstrip('/')}/{path.relative_to(root)}"
            response.files.append(describe(path, shown))
    return response
