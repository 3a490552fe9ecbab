"""Commands: their events and their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from sandgate import _values
from sandgate._gen.sandbox.v1 import sandbox_process_pb2 as pb
from sandgate.errors import InternalError

if TYPE_CHECKING:
    import datetime as dt

StreamName = Literal["stdout", "stderr"]

# Linux numbers: the sandbox's, whatever machine this runs on.
SIGNALS: Final = {
    name: number
    for number, name in enumerate(
        [
            "HUP",
            "INT",
            "QUIT",
            "ILL",
            "TRAP",
            "ABRT",
            "BUS",
            "FPE",
            "KILL",
            "USR1",
            "SEGV",
            "USR2",
            "PIPE",
            "ALRM",
            "TERM",
            "STKFLT",
            "CHLD",
            "CONT",
            "STOP",
            "TSTP",
            "TTIN",
            "TTOU",
            "URG",
            "XCPU",
            "XFSZ",
            "VTALRM",
            "PROF",
            "WINCH",
            "IO",
            "PWR",
            "SYS",
        ],
        start=1,
    )
}
"""Number of each signal of a sandbox, by its name without "SIG"."""

TIMED_OUT_CODE: Final = 124
"""What a command that ran out of time counts as."""


@dataclass(frozen=True, slots=True)
class Started:
    """First event: the command runs."""

    exec_id: str
    incarnation: str
    pid: int
    start_time: dt.datetime | None
    position: int
    joined: bool
    """True when the command was there already and this call joined it."""


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of output."""

    stream: StreamName
    position: int
    """Bytes of both streams before this piece."""
    data: bytes
    """The bytes as they were written. Empty only in a last piece that completes
    `text` after output that ended within a character."""
    text: str
    """The same, decoded as UTF-8 across pieces; what is malformed is U+FFFD."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Output that was dropped before it could be read."""

    start: int
    """First missing position."""
    end: int
    """First position that follows."""


@dataclass(frozen=True, slots=True)
class Exited:
    """Last event: how the command ended. Durations in seconds."""

    reason: str
    """`"EXITED"`, `"SIGNALED"`, `"TIMED_OUT"`, `"OUT_OF_MEMORY"`, `"KILLED"`,
    `"SANDBOX_STOPPED"` or `"LOST"`."""
    exit_code: int | None
    """Set only when the reason is EXITED."""
    signal: str
    """Such as `"SIGSEGV"`; empty when no signal ended it."""
    inferred: bool
    """The reason was concluded from signs, not known for certain."""
    end_time: dt.datetime | None
    wall_time: float
    user_time: float
    system_time: float
    peak_memory_bytes: int
    """0: unknown."""
    memory_scope: str
    """What was measured: `"COMMAND"`, `"LARGEST_PROCESS"` or `"SANDBOX"`."""
    stdout_bytes: int
    """Written to standard output, dropped bytes included."""
    stderr_bytes: int
    stdout_truncated: bool
    stderr_truncated: bool
    position: int
    output_open: bool
    """A background child still held the output open; see `attach`."""
    message: str

    @property
    def timed_out(self) -> bool:
        """True when the command's timeout ended it."""
        return self.reason == "TIMED_OUT"

    @property
    def code(self) -> int | None:
        """One number, as a shell has it: 124 timed out, 128+n after signal n.

        None when the end is unknown: the sandbox stopped or the agent died.
        """
        if self.exit_code is not None:
            return self.exit_code
        if self.reason == "TIMED_OUT":
            return TIMED_OUT_CODE
        if self.reason in ("SIGNALED", "OUT_OF_MEMORY", "KILLED"):
            return 128 + SIGNALS.get(self.signal.removeprefix("SIG"), SIGNALS["KILL"])
        return None


Event: TypeAlias = Started | Output | Gap | Exited


@dataclass(frozen=True, slots=True)
class Result:
    """A command that ended, with its output."""

    exec_id: str
    stdout_data: bytes
    stderr_data: bytes
    output_data: bytes
    """Both streams, in the order in which they came."""
    missing_bytes: int
    """Output that was dropped before it could be read; 0 unless `evict`."""
    exited: Exited

    def __repr__(self) -> str:
        """Show the beginning of the output: it may have gigabytes."""
        return (
            f"Result(exec_id={self.exec_id!r}, output={_values.preview(self.output_data)}, "
            f"missing_bytes={self.missing_bytes}, exited={self.exited!r})"
        )

    @property
    def stdout(self) -> str:
        """Standard output as text; what is not UTF-8 is U+FFFD."""
        return self.stdout_data.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error as text; what is not UTF-8 is U+FFFD."""
        return self.stderr_data.decode("utf-8", "replace")

    @property
    def output(self) -> str:
        """Both streams as text, in the order in which they came."""
        return self.output_data.decode("utf-8", "replace")

    @property
    def exit_code(self) -> int | None:
        """The command's own exit code; None when it did not end by itself."""
        return self.exited.exit_code

    @property
    def code(self) -> int | None:
        """One number, as a shell has it; see `Exited.code`."""
        return self.exited.code

    @property
    def reason(self) -> str:
        """Why it ended; see `Exited.reason`."""
        return self.exited.reason

    @property
    def signal(self) -> str:
        """The signal that ended it, such as `"SIGSEGV"`; empty: none."""
        return self.exited.signal

    @property
    def timed_out(self) -> bool:
        """True when the command's timeout ended it."""
        return self.exited.timed_out

    @property
    def truncated(self) -> bool:
        """True when output is missing, cut by `max_output_bytes` or dropped."""
        return self.exited.stdout_truncated or self.exited.stderr_truncated or self.missing_bytes > 0


@dataclass(frozen=True, slots=True)
class Process:
    """One command as `processes` lists it."""

    exec_id: str
    pid: int
    """0 once it ended."""
    command: str
    start_time: dt.datetime | None
    exited: Exited | None
    detached: bool
    attached: int
    live_processes: int
    position: int
    first_position: int
    terminal: bool


class Collector:
    """Gathers events into a `Result`."""

    def __init__(self) -> None:
        self._exec_id = ""
        self._both: list[tuple[StreamName, bytes]] = []
        self._missing = 0
        self._exited: Exited | None = None

    def add(self, event: Event) -> None:
        """Take one event."""
        match event:
            case Started():
                self._exec_id = event.exec_id
            case Output():
                self._both.append((event.stream, event.data))
            case Gap():
                self._missing += event.end - event.start
            case Exited():
                self._exited = event

    def result(self) -> Result:
        """Return the result; only after the last event."""
        if self._exited is None:
            raise InternalError("the stream of a command ended without its end")
        return Result(
            exec_id=self._exec_id,
            stdout_data=b"".join(data for stream, data in self._both if stream == "stdout"),
            stderr_data=b"".join(data for stream, data in self._both if stream == "stderr"),
            output_data=b"".join(data for _, data in self._both),
            missing_bytes=self._missing,
            exited=self._exited,
        )


def exited_event(message: pb.Exited) -> Exited:
    """Read an `Exited` message."""
    return Exited(
        reason=_values.name(pb.ExitReason.DESCRIPTOR, message.reason, "EXIT_REASON_"),
        exit_code=message.exit_code if message.HasField("exit_code") else None,
        signal=message.signal,
        inferred=message.inferred,
        end_time=_values.time(message, "end_time"),
        wall_time=_values.seconds(message, "wall_time") or 0.0,
        user_time=_values.seconds(message, "user_time") or 0.0,
        system_time=_values.seconds(message, "system_time") or 0.0,
        peak_memory_bytes=message.peak_memory_bytes,
        memory_scope=_values.name(pb.MemoryScope.DESCRIPTOR, message.memory_scope, "MEMORY_SCOPE_"),
        stdout_bytes=message.stdout_bytes,
        stderr_bytes=message.stderr_bytes,
        stdout_truncated=message.stdout_truncated,
        stderr_truncated=message.stderr_truncated,
        position=message.position,
        output_open=message.output_open,
        message=message.message,
    )


def process(message: pb.Process) -> Process:
    """Read a `Process` message."""
    return Process(
        exec_id=message.exec_id,
        pid=message.pid,
        command=message.command,
        start_time=_values.time(message, "start_time"),
        exited=exited_event(message.exited) if message.HasField("exited") else None,
        detached=message.detached,
        attached=message.attached,
        live_processes=message.live_processes,
        position=message.position,
        first_position=message.first_position,
        terminal=message.terminal,
    )
