"""Steps and plans: which calls to make, separate from how they are made.

A plan is a generator that yields steps and is sent their responses. The sync
and the async client each have one runner for plans, so that everything else
(building requests, reading responses, deciding what comes next) exists once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar

from google.protobuf.message import Message

from sandgate._gen.sandbox.v1 import sandbox_files_pb2 as files_pb
from sandgate._gen.sandbox.v1 import sandbox_forward_pb2 as forward_pb
from sandgate._gen.sandbox.v1 import sandbox_info_pb2 as info_pb
from sandgate._gen.sandbox.v1 import sandbox_lifecycle_pb2 as lifecycle_pb
from sandgate._gen.sandbox.v1 import sandbox_process_pb2 as process_pb
from sandgate._gen.sandbox.v1 import sandbox_search_pb2 as search_pb
from sandgate._gen.sandbox.v1 import sandbox_url_pb2 as url_pb
from sandgate._retry import Retry, is_break, is_renewable
from sandgate.errors import SandgateError

Q = TypeVar("Q", bound=Message)
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True)
class Call(Generic[Q, R]):
    """A unary call of the service, by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class UnaryStep:
    """Send one request, answer with the response."""

    name: str
    request: Message
    timeout: float | None
    """Seconds for all attempts; None: the client's `call_timeout`."""
    since: float
    """When the first attempt began, by `time.monotonic`."""


@dataclass(frozen=True, slots=True)
class UploadStep:
    """Send frames, answer with the `UploadResponse`."""

    frames: Callable[[], Iterator[files_pb.UploadRequest]]
    blocking: bool
    """Making frames reads files of this machine."""


@dataclass(frozen=True, slots=True)
class DownloadStep:
    """Hand every message to `sink`, answer with None."""

    request: files_pb.DownloadRequest
    sink: Callable[[files_pb.DownloadResponse], None]
    blocking: bool
    """The sink writes files of this machine."""


@dataclass(frozen=True, slots=True)
class ForwardStep:
    """Open a connection to a port, answer with its socket or its streams."""

    start: forward_pb.ForwardStart
    seconds: float
    """How long opening may take."""


@dataclass(frozen=True, slots=True)
class WaitStep:
    """Wait, answer with None."""

    seconds: float


@dataclass(frozen=True, slots=True)
class RetryStep:
    """Wait before the next attempt of a broken call, answer with True.

    Answer with False at once if there is no next attempt: the retry window, or the
    call's own timeout, ends before it.
    """

    retry: Retry
    error: SandgateError
    call: UnaryStep | None = None


Step: TypeAlias = UnaryStep | UploadStep | DownloadStep | ForwardStep | WaitStep | RetryStep
Plan: TypeAlias = Generator[Step, Any, T]


_UNARY_WINDOW: Final = 30.0
"""Seconds for which a unary call is retried at most."""

_IDEMPOTENT: Final = frozenset(
    {
        "GetServerInfo",
        "CreateSandbox",  # `create_request` generates an id if there is none
        "GetSandbox",
        "ListSandboxes",
        "UpdateSandbox",
        "DeleteSandbox",  # `_plans.delete` allows it to be missing
        "SuspendSandbox",
        "ResumeSandbox",
        "GetPoolStatus",
        "ListProcesses",
        "GetUpload",
        "WriteStdin",
        "ResizeTerminal",
        "StatFile",
        "ListDirectory",
        "ReadLines",
        "SearchFiles",
        "GlobFiles",
        "CreateSandboxUrl",
    }
)
"""Calls with the same effect when they are made twice, and WriteFile over an existing file."""


def call(what: Call[Q, R], request: Q, timeout: float | None = None) -> Plan[R]:
    """Plan one unary call, with its retries if it is idempotent.

    `timeout` in seconds, for all attempts; None: the client's.
    """
    step = UnaryStep(what.name, request, timeout, time.monotonic())
    retry = Retry(_UNARY_WINDOW)
    while True:
        try:
            response: R = yield step
        except SandgateError as e:
            # The server rejects a token before it begins the call, or says otherwise.
            not_begun = is_renewable(e) and e.metadata.get("outcome") != "unknown"
            if not ((_is_idempotent(step) or not_begun) and (yield from again(retry, e, step))):
                raise
        else:
            return response


def _is_idempotent(step: UnaryStep) -> bool:
    if isinstance(step.request, files_pb.WriteFileRequest):
        return not step.request.create_only
    return step.name in _IDEMPOTENT


def again(retry: Retry, error: SandgateError, step: UnaryStep | None = None) -> Plan[bool]:
    """Wait before the next attempt; False: the error is permanent, or the retry window ends."""
    if not (is_break(error) or is_renewable(error)):
        return False
    answer: bool = yield RetryStep(retry, error, step)
    return answer


GET_SERVER_INFO = Call[info_pb.GetServerInfoRequest, info_pb.GetServerInfoResponse]("GetServerInfo")
CREATE_SANDBOX = Call[lifecycle_pb.CreateSandboxRequest, lifecycle_pb.CreateSandboxResponse]("CreateSandbox")
GET_SANDBOX = Call[lifecycle_pb.GetSandboxRequest, lifecycle_pb.GetSandboxResponse]("GetSandbox")
LIST_SANDBOXES = Call[lifecycle_pb.ListSandboxesRequest, lifecycle_pb.ListSandboxesResponse]("ListSandboxes")
UPDATE_SANDBOX = Call[lifecycle_pb.UpdateSandboxRequest, lifecycle_pb.UpdateSandboxResponse]("UpdateSandbox")
DELETE_SANDBOX = Call[lifecycle_pb.DeleteSandboxRequest, lifecycle_pb.DeleteSandboxResponse]("DeleteSandbox")
CLEANUP_SANDBOXES = Call[lifecycle_pb.CleanupSandboxesRequest, lifecycle_pb.CleanupSandboxesResponse](
    "CleanupSandboxes"
)
SUSPEND_SANDBOX = Call[lifecycle_pb.SuspendSandboxRequest, lifecycle_pb.SuspendSandboxResponse](
    "SuspendSandbox"
)
RESUME_SANDBOX = Call[lifecycle_pb.ResumeSandboxRequest, lifecycle_pb.ResumeSandboxResponse]("ResumeSandbox")
GET_POOL_STATUS = Call[lifecycle_pb.GetPoolStatusRequest, lifecycle_pb.GetPoolStatusResponse]("GetPoolStatus")
WRITE_STDIN = Call[process_pb.WriteStdinRequest, process_pb.WriteStdinResponse]("WriteStdin")
SIGNAL_PROCESS = Call[process_pb.SignalProcessRequest, process_pb.SignalProcessResponse]("SignalProcess")
RESIZE_TERMINAL = Call[process_pb.ResizeTerminalRequest, process_pb.ResizeTerminalResponse]("ResizeTerminal")
LIST_PROCESSES = Call[process_pb.ListProcessesRequest, process_pb.ListProcessesResponse]("ListProcesses")
GET_UPLOAD = Call[files_pb.GetUploadRequest, files_pb.GetUploadResponse]("GetUpload")
CREATE_SANDBOX_URL = Call[url_pb.CreateSandboxUrlRequest, url_pb.CreateSandboxUrlResponse]("CreateSandboxUrl")
STAT_FILE = Call[files_pb.StatFileRequest, files_pb.StatFileResponse]("StatFile")
LIST_DIRECTORY = Call[files_pb.ListDirectoryRequest, files_pb.ListDirectoryResponse]("ListDirectory")
MAKE_DIRECTORY = Call[files_pb.MakeDirectoryRequest, files_pb.MakeDirectoryResponse]("MakeDirectory")
MOVE_FILE = Call[files_pb.MoveFileRequest, files_pb.MoveFileResponse]("MoveFile")
REMOVE_FILE = Call[files_pb.RemoveFileRequest, files_pb.RemoveFileResponse]("RemoveFile")
READ_LINES = Call[files_pb.ReadLinesRequest, files_pb.ReadLinesResponse]("ReadLines")
WRITE_FILE = Call[files_pb.WriteFileRequest, files_pb.WriteFileResponse]("WriteFile")
EDIT_FILE = Call[files_pb.EditFileRequest, files_pb.EditFileResponse]("EditFile")
SEARCH_FILES = Call[search_pb.SearchFilesRequest, search_pb.SearchFilesResponse]("SearchFiles")
GLOB_FILES = Call[search_pb.GlobFilesRequest, search_pb.GlobFilesResponse]("GlobFiles")
