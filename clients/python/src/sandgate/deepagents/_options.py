"""Options of the backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, cast

from sandgate.config import Config
from sandgate.options import SandboxSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class BackendOptions(TypedDict, total=False):
    """Options of `SandgateSandbox` beside the sandbox itself; see there."""

    config: Config
    command_timeout: float | None
    max_output_size: int
    on_output: Callable[[str], Awaitable[None] | None] | None
    raise_on_transport_error: bool


class CreateOptions(SandboxSpec, BackendOptions, total=False):
    """What `SandgateSandbox.create` takes."""


def split(options: CreateOptions | BackendOptions) -> tuple[SandboxSpec, BackendOptions]:
    """Separate what describes a sandbox from the backend's own options."""
    names = BackendOptions.__annotations__.keys()
    spec = {k: v for k, v in options.items() if k not in names}
    backend = {k: v for k, v in options.items() if k in names}
    backend["config"] = backend.get("config") or Config.load()
    return cast("SandboxSpec", spec), cast("BackendOptions", backend)
