"""A server of the public API on this machine, with faults to order.

It runs commands and touches files without any isolation, so it listens on a
unix socket only. What clients do when things go wrong is tested against it;
what a server does is tested against the real one.
"""

from __future__ import annotations

import hashlib
import threading
import time
from concurrent import futures
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from sandgate._gen.sandbox.v1 import sandbox_events_pb2 as events_pb
from sandgate._gen.sandbox.v1 import sandbox_files_pb2 as files_pb
from sandgate._gen.sandbox.v1 import sandbox_forward_pb2 as forward_pb
from sandgate._gen.sandbox.v1 import sandbox_info_pb2 as info_pb
from sandgate._gen.sandbox.v1 import sandbox_lifecycle_pb2 as lifecycle_pb
from sandgate._gen.sandbox.v1 import sandbox_process_pb2 as pb
from sandgate._gen.sandbox.v1 import sandbox_search_pb2 as search_pb
from sandgate._gen.sandbox.v1 import sandbox_service_pb2_grpc as service
from sandgate._gen.sandbox.v1 import sandbox_url_pb2 as url_pb
from tests import fake_files
from tests.fake_command import INCARNATION, Command
from tests.fake_files import Refused
from tests.fake_forward import FakeForward

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

R = TypeVar("R")


def revoked() -> Refused:
    """Return the error of a call whose credentials ended while it ran."""
    text = "the credentials of this call expired or were revoked while it ran"
    return Refused(grpc.StatusCode.UNAUTHENTICATED, "CREDENTIALS_INVALID", text, outcome="unknown")


class FakeServer(FakeForward, service.SandboxServiceServicer):
    """The service. `calls` counts calls by name; `faults` break them."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.address = f"unix://{directory}/fake.sock"
        self.sandboxes: dict[str, lifecycle_pb.Sandbox] = {}
        self.commands: dict[str, Command] = {}
        self.calls: list[str] = []
        self.created: list[lifecycle_pb.CreateSandboxRequest] = []
        self.listed: list[lifecycle_pb.ListSandboxesRequest] = []
        self.metadata: dict[str, str] = {}
        """That of the last call."""
        self.headers: list[tuple[str, dict[str, str]]] = []
        """Name and metadata of every call, in order."""
        self.faults: dict[str, list[Refused]] = {}
        """Errors to end the next calls of a name with."""
        self.lost: dict[str, list[Refused]] = {}
        """As `faults`, once the call has had its effect."""
        self.after: dict[str, Callable[[], None]] = {}
        """What happens once, after the next call of a name was answered."""
        self.cut_after: list[int] = []
        """Bytes of output after which the next streams break."""
        self.on_call: Callable[[], None] | None = None
        """Called with each call, before it has any effect."""
        self.corrupt = False
        self.urls: list[url_pb.CreateSandboxUrlRequest] = []
        """The requests for URLs."""
        self.token = ""
        """The only accepted token; empty: all calls are accepted."""
        self.rejected: list[str] = []
        """Names of the calls with another token, in order."""
        self.on_rejected: Callable[[], None] | None = None
        """Called before the error of such a call is sent."""
        self.start()

    def start(self) -> None:
        """Serve, also after `pause`."""
        sizes = [(f"grpc.max_{way}_message_length", 16 << 20) for way in ("receive", "send")]
        self._server = grpc.server(futures.ThreadPoolExecutor(32), options=sizes)
        service.add_SandboxServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(self.address)
        self._server.start()

    def pause(self) -> None:
        """Break every connection and refuse new ones, until `start`."""
        self._server.stop(None).wait()

    def stop(self) -> None:
        for command in self.commands.values():
            command.kill()
        self.pause()

    def _answer(self, name: str, context: grpc.ServicerContext, work: Callable[[], R]) -> R:
        self.calls.append(name)
        if self.on_call is not None:
            self.on_call()
        self.metadata = {k: v for k, v in context.invocation_metadata() if isinstance(v, str)}
        self.headers.append((name, self.metadata))
        try:
            self._authenticate(name, self.metadata)
            if waiting := self.faults.get(name):
                raise waiting.pop(0)
            answer = work()
            if lost := self.lost.get(name):
                raise lost.pop(0)
            if after := self.after.pop(name, None):
                after()
        except Refused as e:
            e.abort(context)
            raise
        return answer

    def _authenticate(self, name: str, metadata: dict[str, str]) -> None:
        if self.token and metadata.get("authorization") != f"Bearer {self.token}":
            self.rejected.append(name)
            if self.on_rejected is not None:
                self.on_rejected()
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, "CREDENTIALS_INVALID", "unknown token")

    def Forward(self, requests: Any, context: Any) -> Iterator[forward_pb.ForwardResponse]:
        try:
            self._authenticate("Forward", dict(context.invocation_metadata()))
        except Refused as e:
            e.abort(context)
        yield from super().Forward(requests, context)

    def _sandbox(self, sandbox_id: str) -> lifecycle_pb.Sandbox:
        if sandbox_id not in self.sandboxes:
            raise Refused(
                grpc.StatusCode.NOT_FOUND,
                "SANDBOX_NOT_FOUND",
                f"there is no sandbox {sandbox_id!r}",
                sandbox_id=sandbox_id,
            )
        return self.sandboxes[sandbox_id]

    def _active(self, sandbox_id: str) -> lifecycle_pb.Sandbox:
        sandbox = self._sandbox(sandbox_id)
        if sandbox.state == lifecycle_pb.SANDBOX_STATE_FAILED:
            raise Refused(
                grpc.StatusCode.FAILED_PRECONDITION,
                "SANDBOX_NOT_ACTIVE",
                "the sandbox failed; delete it and create another",
                sandbox_id=sandbox_id,
                state="FAILED",
            )
        return sandbox

    def GetServerInfo(self, request: Any, context: Any) -> info_pb.GetServerInfoResponse:
        return self._answer(
            "GetServerInfo",
            context,
            lambda: info_pb.GetServerInfoResponse(
                version="0.1.0", provider="fake", principal=info_pb.Principal(tenant="default")
            ),
        )

    def CreateSandbox(
        self, request: lifecycle_pb.CreateSandboxRequest, context: Any
    ) -> lifecycle_pb.CreateSandboxResponse:
        def work() -> lifecycle_pb.CreateSandboxResponse:
            self.created.append(request)
            created = request.sandbox_id not in self.sandboxes
            self.sandboxes.setdefault(
                request.sandbox_id,
                lifecycle_pb.Sandbox(
                    sandbox_id=request.sandbox_id,
                    incarnation=INCARNATION,
                    state=lifecycle_pb.SANDBOX_STATE_ACTIVE,
                    labels=request.labels,
                    spec=lifecycle_pb.SandboxSpec(working_directory=str(self.directory)),
                ),
            )
            return lifecycle_pb.CreateSandboxResponse(
                sandbox=self._active(request.sandbox_id), created=created
            )

        return self._answer("CreateSandbox", context, work)

    def GetSandbox(self, request: Any, context: Any) -> lifecycle_pb.GetSandboxResponse:
        return self._answer(
            "GetSandbox",
            context,
            lambda: lifecycle_pb.GetSandboxResponse(sandbox=self._sandbox(request.sandbox_id)),
        )

    def ListSandboxes(self, request: Any, context: Any) -> lifecycle_pb.ListSandboxesResponse:
        def work() -> lifecycle_pb.ListSandboxesResponse:
            self.listed.append(request)
            index = int(request.page_token or 0)
            every = list(self.sandboxes.values())
            token = str(index + 1) if index + 1 < len(every) else ""
            return lifecycle_pb.ListSandboxesResponse(
                sandboxes=every[index : index + 1], next_page_token=token
            )

        return self._answer("ListSandboxes", context, work)

    def WatchSandboxes(self, request: Any, context: Any) -> Iterator[events_pb.WatchSandboxesResponse]:
        """Send two events after the cursor, whose cursors are their numbers, and break."""

        def work() -> int:
            if not request.cursor.isdecimal() and request.cursor:
                raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "REQUEST_INVALID", "cursor: malformed")
            return int(request.cursor or 0)

        begin = self._answer("WatchSandboxes", context, work)
        yield events_pb.WatchSandboxesResponse(cursor=str(begin))
        for i in range(begin + 1, begin + 3):
            event = events_pb.SandboxEvent(
                event_id=f"e{i}", type=events_pb.EVENT_TYPE_CREATED, labels=request.labels
            )
            yield events_pb.WatchSandboxesResponse(cursor=str(i), event=event)
        Refused(grpc.StatusCode.UNAVAILABLE, "", "the connection broke").abort(context)

    def DeleteSandbox(self, request: Any, context: Any) -> lifecycle_pb.DeleteSandboxResponse:
        def work() -> lifecycle_pb.DeleteSandboxResponse:
            sandbox = self.sandboxes.get(request.sandbox_id)
            if sandbox and request.expected_incarnation not in ("", sandbox.incarnation):
                raise Refused(grpc.StatusCode.FAILED_PRECONDITION, "SANDBOX_REPLACED", "another incarnation")
            return lifecycle_pb.DeleteSandboxResponse(
                deleted=self.sandboxes.pop(request.sandbox_id, None) is not None
            )

        return self._answer("DeleteSandbox", context, work)

    def SuspendSandbox(self, request: Any, context: Any) -> lifecycle_pb.SuspendSandboxResponse:
        def work() -> lifecycle_pb.SuspendSandboxResponse:
            sandbox = self._sandbox(request.sandbox_id)
            sandbox.state = lifecycle_pb.SANDBOX_STATE_SUSPENDED
            return lifecycle_pb.SuspendSandboxResponse(sandbox=sandbox)

        return self._answer("SuspendSandbox", context, work)

    def ResumeSandbox(self, request: Any, context: Any) -> lifecycle_pb.ResumeSandboxResponse:
        def work() -> lifecycle_pb.ResumeSandboxResponse:
            sandbox = self._sandbox(request.sandbox_id)
            if sandbox.state == lifecycle_pb.SANDBOX_STATE_SUSPENDED:
                sandbox.incarnation += "'"
            sandbox.state = lifecycle_pb.SANDBOX_STATE_ACTIVE
            return lifecycle_pb.ResumeSandboxResponse(sandbox=sandbox)

        return self._answer("ResumeSandbox", context, work)

    def Execute(self, request: pb.ExecuteRequest, context: Any) -> Iterator[pb.ExecuteResponse]:
        def work() -> Command:
            self._active(request.sandbox_id)
            if request.exec_id not in self.commands:
                self.commands[request.exec_id] = Command(request, self.directory)
            return self.commands[request.exec_id]

        command = self._answer("Execute", context, work)
        for event in self._events(command, 0, context):
            yield pb.ExecuteResponse(**event)

    def Attach(self, request: pb.AttachRequest, context: Any) -> Iterator[pb.AttachResponse]:
        def work() -> Command:
            if request.exec_id not in self.commands:
                raise Refused(grpc.StatusCode.NOT_FOUND, "EXEC_NOT_FOUND", "no such command")
            return self.commands[request.exec_id]

        command = self._answer("Attach", context, work)
        for event in self._events(command, request.position, context):
            yield pb.AttachResponse(**event)

    def _events(self, command: Command, position: int, context: Any) -> Iterator[dict[str, Any]]:
        left = self.cut_after.pop(0) if self.cut_after else None
        token = self.token
        for event in command.events(position, lambda: context.is_active() and self.token == token):
            if self.token != token:
                break
            if left is not None and (data := event.get("output")) is not None:
                if len(data.data) > left:
                    data.data = data.data[:left]
                    if left:
                        yield event
                    Refused(grpc.StatusCode.UNAVAILABLE, "", "the connection broke").abort(context)
                left -= len(data.data)
            yield event
        if self.token != token:
            revoked().abort(context)

    def SignalProcess(self, request: pb.SignalProcessRequest, context: Any) -> pb.SignalProcessResponse:
        def work() -> pb.SignalProcessResponse:
            command = self.commands.get(request.exec_id)
            if command is None:
                raise Refused(grpc.StatusCode.NOT_FOUND, "EXEC_NOT_FOUND", "no such command")
            # Before the kill: what waits for the end asks for it then.
            command.killed.set()
            return pb.SignalProcessResponse(delivered=command.kill())

        return self._answer("SignalProcess", context, work)

    def ListProcesses(self, request: Any, context: Any) -> pb.ListProcessesResponse:
        def work() -> pb.ListProcessesResponse:
            found = [
                pb.Process(exec_id=c.exec_id, exited=c.exited)
                for c in self.commands.values()
                if request.include_ended or c.exited is None
            ]
            return pb.ListProcessesResponse(processes=found, incarnation=INCARNATION)

        return self._answer("ListProcesses", context, work)

    def Upload(self, request_iterator: Any, context: Any) -> files_pb.UploadResponse:
        response = self._answer("Upload", context, lambda: fake_files.upload(request_iterator))
        if self.corrupt:
            response.results[0].sha256 = b"\0" * 32
        return response

    def GetUpload(self, request: Any, context: Any) -> files_pb.GetUploadResponse:
        def work() -> files_pb.GetUploadResponse:
            raise Refused(grpc.StatusCode.NOT_FOUND, "UPLOAD_NOT_FOUND", "nothing was kept")

        return self._answer("GetUpload", context, work)

    def Download(self, request: Any, context: Any) -> Iterator[files_pb.DownloadResponse]:
        for message in self._answer("Download", context, lambda: fake_files.download(request)):
            if self.corrupt and message.WhichOneof("payload") == "chunk":
                message.chunk = b"x" + message.chunk[1:]
            yield message

    def ListDirectory(self, request: Any, context: Any) -> files_pb.ListDirectoryResponse:
        return self._answer("ListDirectory", context, lambda: fake_files.list_directory(request))

    def ReadLines(self, request: Any, context: Any) -> files_pb.ReadLinesResponse:
        return self._answer("ReadLines", context, lambda: fake_files.read_lines(request))

    def WriteFile(self, request: Any, context: Any) -> files_pb.WriteFileResponse:
        def work() -> files_pb.WriteFileResponse:
            created = fake_files.put(request.path, request.content, create_only=request.create_only)
            sha256 = b"\0" * 32 if self.corrupt else hashlib.sha256(request.content).digest()
            return files_pb.WriteFileResponse(size=len(request.content), sha256=sha256, created=created)

        return self._answer("WriteFile", context, work)

    def MakeDirectory(self, request: Any, context: Any) -> files_pb.MakeDirectoryResponse:
        def work() -> files_pb.MakeDirectoryResponse:
            path = fake_files.checked(request.path)
            new = not path.exists()
            fake_files.guarded(lambda: path.mkdir(parents=True, exist_ok=True), request.path)
            return files_pb.MakeDirectoryResponse(created=new)

        return self._answer("MakeDirectory", context, work)

    def CreateSandboxUrl(self, request: Any, context: Any) -> url_pb.CreateSandboxUrlResponse:
        def work() -> url_pb.CreateSandboxUrlResponse:
            self.urls.append(request)
            reply = url_pb.CreateSandboxUrlResponse(url="http://x/?t", base_url="http://x/", token="t")  # noqa: S106
            reply.expire_time.FromSeconds(60)
            return reply

        return self._answer("CreateSandboxUrl", context, work)

    def RemoveFile(self, request: Any, context: Any) -> files_pb.RemoveFileResponse:
        return self._answer("RemoveFile", context, lambda: fake_files.remove(request))

    def EditFile(self, request: Any, context: Any) -> files_pb.EditFileResponse:
        return self._answer("EditFile", context, lambda: fake_files.edit(request))

    def SearchFiles(self, request: Any, context: Any) -> search_pb.SearchFilesResponse:
        return self._answer("SearchFiles", context, lambda: fake_files.search(request))

    def GlobFiles(self, request: Any, context: Any) -> search_pb.GlobFilesResponse:
        return self._answer("GlobFiles", context, lambda: fake_files.glob(request))


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until a condition that nothing announces holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about in time"
        threading.Event().wait(0.01)
