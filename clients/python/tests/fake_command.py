"""Commands of the fake server, which run on this machine without any isolation."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import grpc

from sandgate._gen.sandbox.v1 import sandbox_process_pb2 as pb
from tests.fake_files import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

INCARNATION = "inc-1"
"""That of every sandbox of the fake server."""


class Command:
    """One running command and its log."""

    def __init__(self, request: pb.ExecuteRequest, cwd: Path) -> None:
        self.exec_id = request.exec_id
        self.log: list[tuple[pb.Stream.ValueType, bytes]] = []
        self.exited: pb.Exited | None = None
        self.changed = threading.Condition()
        self.killed = threading.Event()
        self._timed_out = False
        argv = list(request.argv.args) or ["/bin/sh", "-c", request.shell]
        merged = request.output_mode == pb.OUTPUT_MODE_MERGED
        try:
            self.process = subprocess.Popen(
                argv,
                cwd=request.cwd or cwd,
                env={**os.environ, **request.env},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if merged else subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError as e:
            raise Refused(grpc.StatusCode.NOT_FOUND, "COMMAND_NOT_FOUND", str(e)) from e
        self._left = request.max_output_bytes if request.HasField("max_output_bytes") else None
        self._truncated = False
        self._readers = [threading.Thread(target=self._read, args=(self.process.stdout, pb.STREAM_STDOUT))]
        if not merged:
            self._readers.append(
                threading.Thread(target=self._read, args=(self.process.stderr, pb.STREAM_STDERR))
            )
        threading.Thread(target=self._wait, args=(request,)).start()

    def _read(self, pipe: Any, stream: pb.Stream.ValueType) -> None:
        with pipe:
            while data := pipe.read1(65536):
                with self.changed:
                    if self._left is not None:
                        self._truncated |= len(data) > self._left
                        data = data[: self._left]
                        self._left -= len(data)
                    if data:
                        self.log.append((stream, data))
                    self.changed.notify_all()

    def _wait(self, request: pb.ExecuteRequest) -> None:
        for reader in self._readers:
            reader.start()
        timer = None
        if request.HasField("timeout") and request.timeout.ToNanoseconds():
            timer = threading.Timer(request.timeout.ToNanoseconds() / 1e9, self._time_out)
            timer.start()
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:
                pipe.write(request.stdin)
        code = self.process.wait()
        if timer is not None:
            timer.cancel()
        for reader in self._readers:
            reader.join()
        exited = pb.Exited(reason=pb.EXIT_REASON_EXITED, stdout_truncated=self._truncated)
        if code >= 0:
            exited.exit_code = code
        else:
            exited.signal = signal.Signals(-code).name
            exited.reason = pb.EXIT_REASON_SIGNALED
        if self._timed_out:
            exited.reason = pb.EXIT_REASON_TIMED_OUT
        elif self.killed.is_set():
            exited.reason = pb.EXIT_REASON_KILLED
        with self.changed:
            exited.position = sum(len(d) for _, d in self.log)
            self.exited = exited
            self.changed.notify_all()

    def _time_out(self) -> None:
        # However slowly a busy machine starts it: its first output is part of the answer.
        with self.changed:
            self.changed.wait_for(lambda: self.log or self.exited)
        self._timed_out = True
        self.kill()

    def kill(self) -> bool:
        if self.exited is not None:
            return False  # Its number may be another's by now.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
            return True
        return False

    def events(self, position: int, alive: Callable[[], bool]) -> Iterator[dict[str, Any]]:
        yield {"started": pb.Started(exec_id=self.exec_id, incarnation=INCARNATION, position=position)}
        index, at = 0, 0
        while alive():
            with self.changed:
                if index == len(self.log) and self.exited is None:
                    self.changed.wait(0.05)
                pieces, exited = self.log[index:], self.exited
            index += len(pieces)
            for stream, data in pieces:
                rest = data[max(position - at, 0) :]
                if rest:
                    yield {"output": pb.Output(stream=stream, position=at + len(data) - len(rest), data=rest)}
                at += len(data)
            if exited is not None and not pieces:
                yield {"exited": exited}
                return
