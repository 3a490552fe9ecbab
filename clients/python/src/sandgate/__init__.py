"""Sandboxes for AI agents behind one gRPC endpoint.

    from sandgate import Client

    with Client() as client, client.create() as sandbox:
        result = sandbox.execute("python3 -V")
        print(result.stdout, result.code)

A command that ran is not an error, whatever its exit code. When Sandgate itself
fails, it raises a `SandgateError`. The client reconnects transparently.
`sandgate.deepagents` has the backend for deepagents.
"""

from sandgate._connect import PortSocket
from sandgate.aio import AsyncClient
from sandgate.aio_sandbox import AsyncSandbox
from sandgate.build import BuildOptions, abuild_image, build_image
from sandgate.client import Client
from sandgate.config import Config
from sandgate.errors import (
    AuthenticationError,
    BuildError,
    CallCancelledError,
    CommandStartError,
    ConnectionLostError,
    DeadlineExceededError,
    ExecNotFoundError,
    ExecStateError,
    FileError,
    InternalError,
    InvalidRequestError,
    PermissionDeniedError,
    PortClosedError,
    QuotaExceededError,
    SandboxExistsError,
    SandboxNotActiveError,
    SandboxNotFoundError,
    SandboxReplacedError,
    SandboxStartError,
    SandgateError,
    TemplateNotFoundError,
    UnavailableError,
    UnsupportedError,
    Violation,
)
from sandgate.files import (
    DownloadResult,
    EditResult,
    FileInfo,
    GlobResult,
    Lines,
    SearchMatch,
    SearchResult,
    UploadFile,
    UploadResult,
    WriteResult,
)
from sandgate.info import (
    CleanupResult,
    Enforcement,
    Isolation,
    PoolStatus,
    Quota,
    Resources,
    SandboxInfo,
    SandboxPage,
    SandboxUrl,
    SecretInfo,
    ServerInfo,
    ServerLimits,
)
from sandgate.options import AccessPolicy, EgressRule, EgressSecret, ExecuteOptions, SandboxSpec
from sandgate.process import Event, Exited, Gap, Output, Process, Result, Started
from sandgate.sandbox import Sandbox
from sandgate.watch import SandboxEvent

__version__ = "0.1.0"

__all__ = [
    "AccessPolicy",
    "AsyncClient",
    "AsyncSandbox",
    "AuthenticationError",
    "BuildError",
    "BuildOptions",
    "CallCancelledError",
    "CleanupResult",
    "Client",
    "CommandStartError",
    "Config",
    "ConnectionLostError",
    "DeadlineExceededError",
    "DownloadResult",
    "EditResult",
    "EgressRule",
    "EgressSecret",
    "Enforcement",
    "Event",
    "ExecNotFoundError",
    "ExecStateError",
    "ExecuteOptions",
    "Exited",
    "FileError",
    "FileInfo",
    "Gap",
    "GlobResult",
    "InternalError",
    "InvalidRequestError",
    "Isolation",
    "Lines",
    "Output",
    "PermissionDeniedError",
    "PoolStatus",
    "PortClosedError",
    "PortSocket",
    "Process",
    "Quota",
    "QuotaExceededError",
    "Resources",
    "Result",
    "Sandbox",
    "SandboxEvent",
    "SandboxExistsError",
    "SandboxInfo",
    "SandboxNotActiveError",
    "SandboxNotFoundError",
    "SandboxPage",
    "SandboxReplacedError",
    "SandboxSpec",
    "SandboxStartError",
    "SandboxUrl",
    "SandgateError",
    "SearchMatch",
    "SearchResult",
    "SecretInfo",
    "ServerInfo",
    "ServerLimits",
    "Started",
    "TemplateNotFoundError",
    "UnavailableError",
    "UnsupportedError",
    "UploadFile",
    "UploadResult",
    "Violation",
    "WriteResult",
    "abuild_image",
    "build_image",
]
