"""One command of the backend: its options, and its events as a response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deepagents.backends.protocol import ExecuteResponse

from sandgate.deepagents import _contract as contract
from sandgate.errors import InvalidRequestError, SandgateError
from sandgate.process import TIMED_OUT_CODE, Event, Exited, Output

if TYPE_CHECKING:
    from sandgate.options import ExecuteOptions

_REFUSED_CODE: Final = 126
"""What a command that a policy refuses counts as: a shell's code for one that
may not be run."""

_NOTES: Final = {
    "OUT_OF_MEMORY": "Command was killed: out of memory",
    "KILLED": "Command was killed",
    "SANDBOX_STOPPED": "Error: the sandbox was stopped while the command ran",
    "LOST": "Error: the sandbox lost the command; whether it finished is unknown",
}


def command_options(
    timeout: float | None, default_timeout: float | None, max_output_size: int
) -> ExecuteOptions:
    """Return the options of a command.

    Raises:
        ValueError: The timeout is negative.
    """
    if timeout is not None and timeout < 0:
        raise ValueError(f"timeout must be non-negative, got {timeout}")
    options: ExecuteOptions = {"merged": True, "max_output_bytes": max_output_size}
    chosen = default_timeout if timeout is None else timeout
    if chosen is not None:
        options["timeout"] = chosen
    return options


class Run:
    """Turns the events of one command into an `ExecuteResponse`."""

    def __init__(self, options: ExecuteOptions, *, raise_on_transport_error: bool) -> None:
        self.options = options
        self.note = ""
        """The text below the output."""
        self._raise = raise_on_transport_error
        self._pieces: list[str] = []
        self._data: list[bytes] = []
        self._exited: Exited | None = None

    @property
    def captured(self) -> bytes:
        """The output as it came, without the text below it."""
        return b"".join(self._data)

    def take(self, event: Event) -> str:
        """Take one event and return the text that it adds."""
        match event:
            case Output():
                self._pieces.append(event.text)
                self._data.append(event.data)
                return event.text
            case Exited():
                self._exited = event
        return ""

    def failed(self, error: SandgateError) -> ExecuteResponse:
        """Return the response for a command that could not be run or followed.

        Raises:
            ValueError: The server does not allow the timeout.
            SandgateError: `raise_on_transport_error` is set.
        """
        if isinstance(error, InvalidRequestError) and any(v.field == "timeout" for v in error.violations):
            raise ValueError(str(error)) from error
        if self._raise:
            raise error
        if error.reason == "POLICY_DENIED":
            return self._response(f"Error: {error.message}", _REFUSED_CODE)
        return self._response(f"Error: {contract.describe(error)}", None)

    def response(self) -> ExecuteResponse:
        """Return the response for a command that ended."""
        exited = self._exited
        if exited is None:
            return self._response("Error: the command's end was not reported", None)
        note = _NOTES.get(exited.reason, "")
        if exited.reason == "TIMED_OUT":
            seconds = self.options.get("timeout") or round(exited.wall_time, 1)
            note = f"Command timed out after {seconds:g} seconds"
        code = TIMED_OUT_CODE if exited.timed_out else exited.code
        return self._response(note, code, truncated=exited.stdout_truncated or exited.stderr_truncated)

    def _response(self, note: str, code: int | None, *, truncated: bool = False) -> ExecuteResponse:
        output = "".join(self._pieces)
        self.note = note
        if note:
            separator = "\n" if output and not output.endswith("\n") else ""
            output = f"{output}{separator}{note}"
        return ExecuteResponse(output=output, exit_code=code, truncated=truncated)
