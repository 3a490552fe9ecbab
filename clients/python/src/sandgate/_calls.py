"""Steps and plans: what to ask the server, apart from how it is asked.

A plan is a generator that yields steps and is sent their responses. The sync
and the async client each have one runner for plans, so that everything else
(building requests, reading responses, deciding what comes next) exists once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from google.protobuf.message import Message

from sandgate._gen.sandbox.v1 import sandbox_files_pb2 as files_pb
from sandgate._gen.sandbox.v1 import sandbox_forward_pb2 as forward_pb
from sandgate._gen.sandbox.v1 import sandbox_info_pb2 as info_pb
from sandgate._gen.sandbox.v1 import sandbox_lifecycle_pb2 as lifecycle_pb
from sandgate._gen.sandbox.v1 import sandbox_process_pb2 as process_pb
from sandgate._gen.sandbox.v1 import sandbox_search_pb2 as search_pb

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
    timeout: float | None = None


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
    """Wait before a repetition, answer with True.

    Answer with False at once when the retry window, which began at `since`, would be
    over after the wait.
    """

    seconds: float
    since: float
    """When trying began, by `time.monotonic`."""
    window: float | None = None
    """Seconds from `since`; None: the client's reconnect timeout."""


Step: TypeAlias = UnaryStep | UploadStep | DownloadStep | ForwardStep | WaitStep
Plan: TypeAlias = Generator[Step, Any, T]


def call(what: Call[Q, R], request: Q, timeout: float | None = None) -> Plan[R]:
    """Plan one unary call. `timeout` in seconds; None: the client's."""
    response: R = yield UnaryStep(what.name, request, timeout)
    return response


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
