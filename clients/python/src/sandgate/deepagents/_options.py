"""Options of the backend."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict, cast

from sandgate.config import Config, Token
from sandgate.options import AccessPolicy, SandboxSpec

if TYPE_CHECKING:
    from sandgate.info import SandboxInfo

OnOutput: TypeAlias = Callable[[str], Awaitable[None] | None]
AuditLog: TypeAlias = Callable[[str, str, dict[str, Any]], None]
"""Takes an operation, its target and what else is known of it."""

MAX_OUTPUT_SIZE: Final = 1024 * 1024
"""Bytes of output of one command that are kept, by default."""

DEFAULT_WORKING_DIRECTORY: Final = "/workspace"
_DEFAULT_ROOT: Final = "/workspace"


class OwnOptions(TypedDict, total=False):
    """Options of a backend itself."""

    config: Config
    command_timeout: float | None
    max_output_size: int
    on_output: OnOutput | None
    raise_on_transport_error: bool
    audit_log: AuditLog | None


class PolicyOptions(TypedDict, total=False):
    """What file methods and commands may touch; see `sandgate.AccessPolicy`.

    The server enforces it: on every caller of a sandbox that is made with it,
    on the calls of this object where an existing sandbox is taken.
    """

    root_dir: str | None
    """Every path must resolve beneath it. Default: `SANDGATE_ROOT_DIR`, if neither
    this nor `access` is given; empty: no such root."""
    virtual_mode: bool
    """Paths are taken as relative to `root_dir`; default: `/workspace`."""
    allow_prefixes: Sequence[str] | None
    """Only below these may anything be written: paths of the sandbox, also with
    `virtual_mode`."""
    deny_prefixes: Sequence[str] | None
    """Below these nothing may be written; with `virtual_mode` neither as paths of
    the sandbox nor as virtual ones."""
    deny_commands: Sequence[str] | None
    """Commands that contain one of these are refused: a guardrail, not a security
    boundary."""


class ServerOptions(TypedDict, total=False):
    """Where the server is, in place of `config`.

    What is left out is read from the environment, as by `Client`.
    """

    address: str | None
    token: Token | None
    token_file: str | None
    ca_file: str | None
    cert_file: str | None
    key_file: str | None
    insecure: bool


class BackendOptions(OwnOptions, ServerOptions, PolicyOptions, total=False):
    """Options of `SandgateSandbox` beside the sandbox itself; see there."""


class CreateOptions(SandboxSpec, BackendOptions, total=False):
    """What `SandgateSandbox.create` takes."""


@dataclass(frozen=True, slots=True)
class SplitOptions:
    """Options, sorted by what they are for."""

    spec: SandboxSpec
    own: OwnOptions
    access: AccessPolicy | None

    @property
    def config(self) -> Config:
        """Where the server is."""
        return self.own["config"]

    def narrowing(self, found: SandboxInfo | None) -> AccessPolicy | None:
        """Return the policy that each call must carry: what the sandbox lacks."""
        if self.access is None:
            return None
        given = found.access.message() if found is not None and found.access is not None else None
        return None if given == self.access.message() else self.access

    def directory(self, found: SandboxInfo) -> str:
        """Return where a search without an absolute path begins."""
        access = self.access or found.access
        if access is not None and access.virtual:
            return "/"
        return found.working_directory or DEFAULT_WORKING_DIRECTORY


def split_options(options: CreateOptions | BackendOptions) -> SplitOptions:
    """Separate what describes a sandbox from the backend's own options.

    Raises:
        TypeError: A policy is given twice, or the server.
    """
    rest = dict(options)
    own = {name: rest.pop(name) for name in OwnOptions.__annotations__ if name in rest}
    given = {name: rest.pop(name) for name in PolicyOptions.__annotations__ if name in rest}
    if given.get("root_dir") is None and "access" not in rest:
        given["root_dir"] = os.environ.get("SANDGATE_ROOT_DIR")
    access = policy(**cast("PolicyOptions", given))
    if access is not None:
        if "access" in rest:
            raise TypeError(f"give either access or {', '.join(sorted(given))}")
        rest["access"] = access
    server = {name: rest.pop(name) for name in ServerOptions.__annotations__ if name in rest}
    if server and own.get("config"):
        raise TypeError(f"give either config or {', '.join(sorted(server))}")
    own["config"] = own.get("config") or Config.load(**cast("ServerOptions", server))
    spec = cast("SandboxSpec", rest)
    return SplitOptions(spec, cast("OwnOptions", own), spec.get("access"))


def policy(
    *,
    root_dir: str | None = None,
    virtual_mode: bool = False,
    allow_prefixes: Sequence[str] | None = None,
    deny_prefixes: Sequence[str] | None = None,
    deny_commands: Sequence[str] | None = None,
) -> AccessPolicy | None:
    """Return the policy of these options; None: they restrict nothing.

    Raises:
        ValueError: With a virtual root, an allowed prefix is outside of it.
    """
    if not (root_dir or virtual_mode or allow_prefixes or deny_prefixes or deny_commands):
        return None
    root = _bare(root_dir or (_DEFAULT_ROOT if virtual_mode else ""))
    allowed = [_bare(p) for p in allow_prefixes or ()]
    denied = [_bare(p) for p in deny_prefixes or ()]
    if virtual_mode:
        # The server takes prefixes as it takes paths, relative to the root.
        allowed = [_beneath(p, root) for p in allowed]
        denied += [_beneath(p, root) for p in denied if _holds(root, p) or _holds(p, root)]
    return AccessPolicy(
        root_dir=root,
        virtual=virtual_mode,
        write_allow_prefixes=tuple(allowed),
        write_deny_prefixes=tuple(denied),
        deny_commands=tuple(deny_commands or ()),
    )


def _beneath(prefix: str, root: str) -> str:
    if root == "/":
        return prefix
    if prefix and _holds(prefix, root):
        return "/"
    if not _holds(root, prefix):
        raise ValueError(f"allow_prefixes: {prefix!r} is not beneath root_dir, {root}")
    return prefix.removeprefix(root)


def _holds(directory: str, path: str) -> bool:
    """Whether the path is the directory, or lies in it."""
    return f"{path}/".startswith("/" if directory == "/" else f"{directory}/")


def _bare(path: str) -> str:
    return path.rstrip("/") or path[:1]
