"""Plans for calls that stream bytes: uploads and downloads that are resumed, connections."""

from __future__ import annotations

import hashlib
import time
import uuid
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NoReturn

from sandgate import _calls, _plans, _values
from sandgate._gen.sandbox.v1 import sandbox_files_pb2 as files_pb
from sandgate._gen.sandbox.v1 import sandbox_forward_pb2 as forward_pb
from sandgate._retry import Retry
from sandgate._transfer import Content, Download, Upload
from sandgate.errors import (
    DeadlineExceededError,
    InternalError,
    SandgateError,
)
from sandgate.files import UploadResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandgate._calls import Plan
    from sandgate._plans import Target
    from sandgate.files import DownloadResult, UploadFile

RESUME_ABOVE: Final = 1024 * 1024
"""Size from which an upload is made resumable: below, it is cheaper to send it
all again than to keep a part."""

_MAX_DOWNLOAD_ITEMS: Final = 1000

# The other side still has to do with a stream of this very upload that broke:
# it has not noticed that yet, or did so a moment ago.
_BEHIND: Final = ("UPLOAD_BUSY", "UPLOAD_OFFSET_MISMATCH")


def upload(target: Target, wanted: Sequence[UploadFile]) -> Plan[list[UploadResult]]:
    """Write files: large ones one by one, the others together."""
    results: list[UploadResult] = []
    together: list[tuple[UploadFile, Content]] = []
    for file in wanted:
        content = Content(file)
        if _resumable(content):
            results += yield from _upload_together(target, together)
            together = []
            results.append((yield from _upload_large(target, file, content)))
        else:
            together.append((file, content))
    results += yield from _upload_together(target, together)
    return results


def upload_one(target: Target, file: UploadFile) -> Plan[UploadResult]:
    """Write one file; raise the error of its result."""
    (result,) = yield from upload(target, [file])
    if result.error is not None:
        raise result.error
    return result


def upload_message(target: Target, path: str, content: bytes) -> Plan[UploadResult | None]:
    """Write one file in one message; None: it must be uploaded.

    An upload has no deadline, and has its bytes checked before they are in place.
    """
    whole = len(content), hashlib.sha256(content).digest()
    try:
        written = yield from _plans.write_file(target, path, content, mode=None, create_only=False)
    except SandgateError as e:
        if _is_of_file(e, path):
            return UploadResult(path, 0, b"", e)
        if isinstance(e, DeadlineExceededError):
            return None
        raise
    return UploadResult(path, *whole) if (written.size, written.sha256) == whole else None


def _is_of_file(error: SandgateError, path: str) -> bool:
    """Return whether an error belongs to the file, not to the whole upload.

    The latter may name a path too, such as that of a root that is missing. Of a
    path that is too long, the server names the beginning.
    """
    named = error.metadata.get("path")
    return error.reason == "POLICY_DENIED" or bool(named and path.startswith(named))


def _resumable(content: Content) -> bool:
    return content.again and content.size is not None and content.size > RESUME_ABOVE


def _upload_together(
    target: Target, wanted: Sequence[tuple[UploadFile, Content]]
) -> Plan[list[UploadResult]]:
    if not wanted:
        return []
    # To write the same once more does no harm; to make a file does not go twice.
    repeatable = all(content.again and not file.create_only for file, content in wanted)
    retry = Retry()
    while True:
        transfer = Upload(files_pb.UploadHeader(**target.scope()), wanted)
        try:
            response = yield _calls.UploadStep(transfer.frames, transfer.blocking)
            return transfer.results(response)
        except SandgateError as e:
            if not (repeatable and (yield from _calls.again(retry, e))):
                raise


def _upload_large(target: Target, file: UploadFile, content: Content) -> Plan[UploadResult]:
    upload_id, offset = f"up-{uuid.uuid4().hex}", 0
    retry = Retry()
    while True:
        result: UploadResult | None = None
        try:
            transfer = Upload(files_pb.UploadHeader(**target.scope()), [(file, content)], upload_id, offset)
            (result,) = transfer.results((yield _calls.UploadStep(transfer.frames, transfer.blocking)))
            failure = result.error
        except SandgateError as e:
            failure = e
        if result is not None and failure is None:
            return result
        if upload_id and failure is not None and failure.reason == "FEATURE_UNSUPPORTED":
            upload_id, offset = "", 0
            continue
        last = offset
        while failure is not None:
            once = not upload_id and file.create_only
            if once or not (yield from _again(retry, failure)):
                return result or _raise(failure)
            try:
                offset, failure = (yield from _confirmed(target, upload_id)), None
            except SandgateError as e:
                result, failure = None, e
        if offset > last:
            retry.progress()


def _again(retry: Retry, error: SandgateError) -> Plan[bool]:
    """Wait as `_calls.again` does, also while the server has not noticed the break."""
    if error.reason in _BEHIND:
        answer: bool = yield _calls.RetryStep(retry, error)
        return answer
    return (yield from _calls.again(retry, error))


def _raise(error: SandgateError) -> NoReturn:
    raise error


def _confirmed(target: Target, upload_id: str) -> Plan[int]:
    """Return how many bytes of the upload the server has kept."""
    if not upload_id:
        return 0
    request = files_pb.GetUploadRequest(
        sandbox_id=target.sandbox_id, expected_incarnation=target.incarnation, upload_id=upload_id
    )
    try:
        response = yield from _calls.call(_calls.GET_UPLOAD, request)
    except SandgateError as e:
        if e.reason == "UPLOAD_NOT_FOUND":
            return 0
        raise
    return response.offset


def download(target: Target, paths: Sequence[str]) -> Plan[list[DownloadResult]]:
    """Read files into memory."""
    results: list[DownloadResult] = []
    for start in range(0, len(paths), _MAX_DOWNLOAD_ITEMS):
        transfer = Download(paths[start : start + _MAX_DOWNLOAD_ITEMS])
        yield from _download(target, transfer, blocking=False)
        results += transfer.results()
    return results


def download_file(target: Target, path: str, limit: int | None = None) -> Plan[DownloadResult]:
    """Read one file into memory."""
    return (yield from _download_one(target, Download([path], limit=limit), blocking=False))


def download_to(target: Target, path: str, opened: BinaryIO) -> Plan[DownloadResult]:
    """Read one file into an open one."""
    return (yield from _download_one(target, Download([path], [opened]), blocking=True))


def _download_one(target: Target, transfer: Download, *, blocking: bool) -> Plan[DownloadResult]:
    yield from _download(target, transfer, blocking=blocking)
    (result,) = transfer.results()
    if result.error is not None:
        raise result.error
    return result


def _download(target: Target, transfer: Download, *, blocking: bool) -> Plan[None]:
    retry, last = Retry(), transfer.progress
    while not transfer.done:
        request = files_pb.DownloadRequest(
            **target.scope(),
            items=transfer.items(),
        )
        try:
            yield _calls.DownloadStep(request, transfer.take, blocking)
            if transfer.done:
                return
            failure: SandgateError = InternalError("the download ended before its end", code="DATA_LOSS")
        except SandgateError as e:
            failure = e
        if transfer.progress > last:
            last = transfer.progress
            retry.progress()
        if not (yield from _calls.again(retry, failure)):
            raise failure


def connect(target: Target, port: int, host: str, seconds: float) -> Plan[Any]:
    """Open a connection to a port; answer with what the client makes of it.

    Opening is retried: nothing was sent yet. `seconds` bound all of it.
    """
    start = forward_pb.ForwardStart(
        sandbox_id=target.sandbox_id,
        expected_incarnation=target.incarnation,
        host=_values.text("host", host),
        port=port,
    )
    end, left = time.monotonic() + seconds, seconds
    retry = Retry()
    while True:
        try:
            return (yield _calls.ForwardStep(start, left))
        except SandgateError as e:
            if not (yield from _calls.again(retry, e)) or (left := end - time.monotonic()) <= 0:
                raise
