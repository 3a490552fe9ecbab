"""Forward to real listeners of this machine, for the fake server."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Any

import grpc

from sandgate._gen.sandbox.v1 import sandbox_forward_pb2 as pb
from tests.fake_files import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator


class FakeForward:
    """The call Forward."""

    def __init__(self) -> None:
        self.forwards = 0
        """Forward calls that have not ended."""
        self.forwarded: list[tuple[pb.ForwardStart, dict[str, Any]]] = []
        """The start and the metadata of every call."""
        self.faults_of_forward: list[str] = []
        """Reasons to end the next calls with."""
        self._forwards_changed = threading.Condition()
        self._stopped = threading.Event()

    def Forward(self, requests: Iterator[pb.ForwardRequest], context: Any) -> Iterator[pb.ForwardResponse]:
        start = next(requests).start
        self.forwarded.append((start, dict(context.invocation_metadata())))
        if self.faults_of_forward:
            reason = self.faults_of_forward.pop()
            down = reason == "SERVER_SHUTTING_DOWN"
            code = grpc.StatusCode.UNAVAILABLE if down else grpc.StatusCode.FAILED_PRECONDITION
            Refused(code, reason, "refused").abort(context)
        self._count(1)
        context.add_callback(lambda: self._count(-1))
        if start.host == "slow":
            context.add_callback(self._stopped.set)
            self._stopped.wait()
            return
        try:
            program = socket.create_connection(("127.0.0.1", start.port))
        except OSError as e:
            Refused(grpc.StatusCode.FAILED_PRECONDITION, "PORT_CLOSED", str(e)).abort(context)
        # A cancelled call resets the program's connection.
        context.add_callback(lambda: _end(program))
        sender = threading.Thread(target=_send, args=(requests, program), daemon=True)
        yield pb.ForwardResponse(opened=pb.ForwardOpened(incarnation="inc-1"))
        sender.start()
        try:
            while data := program.recv(1 << 16):
                yield pb.ForwardResponse(data=data)
        except OSError as e:
            Refused(grpc.StatusCode.ABORTED, "CONNECTION_RESET", str(e)).abort(context)
        yield pb.ForwardResponse(eof=pb.ForwardEof())
        sender.join()

    def _count(self, change: int) -> None:
        with self._forwards_changed:
            self.forwards += change
            self._forwards_changed.notify_all()

    def wait_for_forwards(self, count: int) -> bool:
        """Wait until so many calls are open."""
        with self._forwards_changed:
            return self._forwards_changed.wait_for(lambda: self.forwards == count, 10)


def _end(program: socket.socket) -> None:
    with contextlib.suppress(OSError):
        program.shutdown(socket.SHUT_RDWR)
    program.close()


def _send(requests: Iterator[pb.ForwardRequest], program: socket.socket) -> None:
    try:
        for request in requests:
            if request.WhichOneof("payload") == "eof":
                program.shutdown(socket.SHUT_WR)
                return
            program.sendall(request.data)
    except (OSError, grpc.RpcError):
        pass
