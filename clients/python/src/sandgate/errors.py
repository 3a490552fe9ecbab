"""The errors that this package raises; the same names as in the other clients.

Every failed call raises a `SandgateError` or one of its subclasses. The class
follows from the error's reason, and where there is none, from its gRPC code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import grpc

_DOMAIN: Final = "sandgate"
_DETAILS_KEY: Final = "grpc-status-details-bin"
_REQUEST_ID_KEY: Final = "x-request-id"


@dataclass(frozen=True, slots=True)
class Violation:
    """One field of a request that was refused."""

    field: str
    description: str


class SandgateError(Exception):
    """Every error of this package.

    Attributes:
        message: One line for people.
        code: The canonical gRPC code, such as `"NOT_FOUND"`.
        reason: The exact reason, such as `"SANDBOX_NOT_FOUND"`; empty when the
            server did not answer, or is not Sandgate.
        metadata: The facts behind the message, such as `"sandbox_id"`.
        violations: The refused fields of a malformed request.
        request_id: Finds the call in the server's logs; empty if unknown.
        retry_after: Seconds until it may be worth trying again; None: unknown.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "UNKNOWN",
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        violations: Iterable[Violation] = (),
        request_id: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.metadata: dict[str, str] = dict(metadata or {})
        self.violations: tuple[Violation, ...] = tuple(violations)
        self.request_id = request_id
        self.retry_after = retry_after

    def __str__(self) -> str:
        parts = [self.message]
        parts += [f"{v.field}: {v.description}" for v in self.violations if v.description not in self.message]
        text = "; ".join(parts)
        return f"{text} ({self.reason})" if self.reason else text


class AuthenticationError(SandgateError):
    """No credentials, or none that the server accepts."""

    token_changed: bool = False
    """The token has changed since it was sent, so another attempt may succeed."""


class PermissionDeniedError(SandgateError):
    """A policy or the template forbids it."""


class InvalidRequestError(SandgateError):
    """A field is missing or malformed; see `violations`."""


class SandboxNotFoundError(SandgateError):
    """There is no such sandbox, or its lifetime ended."""


class SandboxExistsError(SandgateError):
    """The id exists with another spec."""


class SandboxReplacedError(SandgateError):
    """The sandbox lost its disk and processes since the expected incarnation."""


class SandboxNotActiveError(SandgateError):
    """The sandbox is not in a state in which this can be done."""


class SandboxStartError(SandgateError):
    """The sandbox could not be started."""


class TemplateNotFoundError(SandgateError):
    """There is no such template."""


class ExecNotFoundError(SandgateError):
    """There is no such command, or it is no longer retained."""


class ExecStateError(SandgateError):
    """The command is there, but not in a state for this."""


class CommandStartError(SandgateError):
    """The command could not be started."""


class FileError(SandgateError):
    """A file operation failed; `reason` says why."""


class PortClosedError(SandgateError):
    """No program in the sandbox accepts connections on the port."""


class UnsupportedError(SandgateError):
    """The server or this sandbox does not support the call."""


class QuotaExceededError(SandgateError):
    """A quota or limit is used up."""


class UnavailableError(SandgateError):
    """The server, the substrate or the agent cannot be reached now.

    Raised when a call got no result: nothing answered at the address, or the server
    answered that a part it needs is away; `reason` then names the part, such as
    `"AGENT_UNAVAILABLE"`, and `retry_after` the seconds to wait. The client has retried
    the call for its retry window if that is safe and the server answered before.

    Without a `reason`, check the address and whether the server runs. A call that is not
    safe to repeat, such as `edit`, may have had its effect: look before you repeat it. A
    command whose start fails with this error does not run, or ends with its disconnect
    grace; executing it again with the same `exec_id` joins it.
    """


class ConnectionLostError(SandgateError):
    """A stream broke after it had begun, and could not be resumed.

    Raised while a command is followed, if the connection does not come back within the
    retry window. The command has started, and runs on for its disconnect grace. `metadata`
    has its `"exec_id"` and the `"position"` of the output that was received: go on with
    `Sandbox.attach(exec_id, position)`. Do not execute it again: that would run it twice,
    unless it is with the same `exec_id`.

    It is also the cause of the `ConnectionResetError` of a connection to a port that the
    program in the sandbox reset (CONNECTION_RESET). Such a connection cannot be resumed:
    open another.
    """


class BuildError(SandgateError):
    """`build_image` could not run the program, or the build failed.

    `metadata` of a failed build has the `"exit_code"`, and the last lines of the
    `"output"`.
    """


class CallCancelledError(SandgateError):
    """The caller cancelled the call, or closed the client."""


class DeadlineExceededError(SandgateError):
    """The call's deadline ended."""


class InternalError(SandgateError):
    """A fault of Sandgate; `request_id` finds it in its logs."""


REASONS: Final[Mapping[str, type[SandgateError]]] = {
    "AGENT_CANNOT_START": SandboxStartError,
    "AGENT_MISBEHAVED": InternalError,
    "AGENT_UNAVAILABLE": UnavailableError,
    "AGENT_VERSION_UNSUPPORTED": UnsupportedError,
    "AUTHENTICATION_UNAVAILABLE": UnavailableError,
    "CALL_CANCELLED": CallCancelledError,
    "CALL_DEADLINE_EXCEEDED": DeadlineExceededError,
    "CALL_FORBIDDEN": PermissionDeniedError,
    "COMMAND_NOT_EXECUTABLE": CommandStartError,
    "COMMAND_NOT_FOUND": CommandStartError,
    "CONNECTION_RESET": ConnectionLostError,
    "CREDENTIALS_INVALID": AuthenticationError,
    "DIRECTORY_NOT_EMPTY": FileError,
    "DISK_FULL": FileError,
    "EDIT_NOT_UNIQUE": FileError,
    "EDIT_TEXT_NOT_FOUND": FileError,
    "EXEC_ENDED": ExecStateError,
    "EXEC_ID_REUSED": ExecStateError,
    "EXEC_NOT_FOUND": ExecNotFoundError,
    "FEATURE_UNSUPPORTED": UnsupportedError,
    "FILE_ALREADY_EXISTS": FileError,
    "FILE_CHECKSUM_MISMATCH": FileError,
    "FILE_CROSS_DEVICE": FileError,
    "FILE_IO": FileError,
    "FILE_IS_DIRECTORY": FileError,
    "FILE_NOT_DIRECTORY": FileError,
    "FILE_NOT_FOUND": FileError,
    "FILE_NOT_REGULAR": FileError,
    "FILE_NOT_TEXT": FileError,
    "FILE_PERMISSION_DENIED": FileError,
    "FILE_READ_ONLY": FileError,
    "FILE_TOO_LARGE": FileError,
    "INTERNAL": InternalError,
    "MESSAGE_TOO_LARGE": InvalidRequestError,
    "NO_TERMINAL": ExecStateError,
    "PAGE_TOKEN_EXPIRED": InvalidRequestError,
    "PAGE_TOKEN_INVALID": InvalidRequestError,
    "PATH_INVALID": InvalidRequestError,
    "PATTERN_INVALID": InvalidRequestError,
    "POLICY_DENIED": PermissionDeniedError,
    "PORT_CLOSED": PortClosedError,
    "POSITION_INVALID": ExecStateError,
    "PROVIDER_UNAVAILABLE": UnavailableError,
    "QUOTA_EXCEEDED": QuotaExceededError,
    "READER_TOO_SLOW": ConnectionLostError,
    "REQUEST_INVALID": InvalidRequestError,
    "SANDBOX_EXPIRED": SandboxNotFoundError,
    "SANDBOX_NOT_ACTIVE": SandboxNotActiveError,
    "SANDBOX_NOT_FOUND": SandboxNotFoundError,
    "SANDBOX_REPLACED": SandboxReplacedError,
    "SANDBOX_RESOURCES_EXHAUSTED": CommandStartError,
    "SANDBOX_SPEC_DIFFERS": SandboxExistsError,
    "SANDBOX_START_FAILED": SandboxStartError,
    "SANDBOX_START_TIMEOUT": SandboxStartError,
    "SERVER_SHUTTING_DOWN": UnavailableError,
    "STDIN_CLOSED": ExecStateError,
    "STDIN_OFFSET_MISMATCH": ExecStateError,
    "TEMPLATE_FORBIDS": PermissionDeniedError,
    "TEMPLATE_NOT_FOUND": TemplateNotFoundError,
    "TOO_MANY_CONNECTIONS": QuotaExceededError,
    "UPLOAD_BUSY": FileError,
    "UPLOAD_NOT_FOUND": FileError,
    "UPLOAD_OFFSET_MISMATCH": FileError,
    "UPLOAD_OUT_OF_ORDER": FileError,
    "WORKING_DIRECTORY_INVALID": CommandStartError,
}
"""Class of each reason; the same table in every client."""

CODES: Final[Mapping[str, type[SandgateError]]] = {
    "CANCELLED": CallCancelledError,
    "DATA_LOSS": InternalError,
    "DEADLINE_EXCEEDED": DeadlineExceededError,
    "INTERNAL": InternalError,
    "INVALID_ARGUMENT": InvalidRequestError,
    "OUT_OF_RANGE": InvalidRequestError,
    "PERMISSION_DENIED": PermissionDeniedError,
    "RESOURCE_EXHAUSTED": QuotaExceededError,
    "UNAUTHENTICATED": AuthenticationError,
    "UNAVAILABLE": UnavailableError,
    "UNIMPLEMENTED": UnsupportedError,
    "UNKNOWN": InternalError,
}
"""Class of each code, for an error without a known reason; also shared."""


def class_of(reason: str, code: str) -> type[SandgateError]:
    """Return the class for a reason, or else for a gRPC code."""
    if not reason and code == "RESOURCE_EXHAUSTED":
        return InvalidRequestError  # of gRPC itself: a message is larger than its limit
    return REASONS.get(reason) or CODES.get(code, SandgateError)


def from_file(path: str, reason: str, message: str) -> SandgateError:
    """Return the error of one file of several."""
    kind = REASONS.get(reason, FileError)
    return kind(message, code="UNKNOWN", reason=reason, metadata={"path": path})


def from_rpc(error: grpc.RpcError) -> SandgateError:
    """Turn what gRPC raised into an error of this package."""
    code = error.code().name
    message = error.details() or code
    trailers = _metadata(error.trailing_metadata())
    # Every error that gRPC raises is its call as well, which has these too.
    headers = _metadata(getattr(error, "initial_metadata", lambda: None)())
    request_id = _text(trailers.get(_REQUEST_ID_KEY) or headers.get(_REQUEST_ID_KEY))
    reason, metadata, violations, retry_after = _details(trailers.get(_DETAILS_KEY))
    return class_of(reason, code)(
        message,
        code=code,
        reason=reason,
        metadata=metadata,
        violations=violations,
        request_id=request_id,
        retry_after=retry_after,
    )


def _metadata(pairs: object) -> dict[str, str | bytes]:
    # None stands for a call that never got as far as metadata.
    return {key: value for key, value in pairs} if pairs else {}  # type: ignore[attr-defined]  # noqa: C416


def _text(value: str | bytes | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value or ""


def _details(
    raw: str | bytes | None,
) -> tuple[str, dict[str, str], list[Violation], float | None]:
    reason, metadata, violations, retry_after = "", dict[str, str](), list[Violation](), None
    status = status_pb2.Status()
    try:
        status.ParseFromString(raw if isinstance(raw, bytes) else b"")
    except DecodeError:
        return reason, metadata, violations, retry_after
    info, bad, retry = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.BadRequest(),
        error_details_pb2.RetryInfo(),
    )
    for detail in status.details:
        if detail.Unpack(info) and info.domain == _DOMAIN:
            reason, metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(bad):
            violations += [Violation(v.field, v.description) for v in bad.field_violations]
        elif detail.Unpack(retry):
            retry_after = retry.retry_delay.ToNanoseconds() / 1e9
    return reason, metadata, violations, retry_after
