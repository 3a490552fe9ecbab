"""Descriptions of the server and of its sandboxes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sandgate import _values
from sandgate._gen.sandbox.v1 import sandbox_lifecycle_pb2 as pb
from sandgate.options import AccessPolicy

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

    from sandgate._gen.sandbox.v1 import sandbox_info_pb2 as info_pb
    from sandgate._gen.sandbox.v1 import sandbox_url_pb2 as url_pb


@dataclass(frozen=True, slots=True)
class Resources:
    """Upper limits; 0: the template's value."""

    memory_bytes: int = 0
    cpu_millis: int = 0
    """Thousandths of a core."""
    max_processes: int = 0
    disk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Isolation:
    """What the substrate enforces for one sandbox."""

    runtime: str
    """Such as `"runc"` or `"pod"`."""
    network: str
    """`"NONE"`, `"PROXY"` or `"FULL"`."""
    unprivileged: bool
    read_only_system: bool
    not_enforced: tuple[str, ...]
    """Requested properties that are not enforced here, each with its reason."""


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """One sandbox as the server sees it. Durations in seconds."""

    sandbox_id: str
    incarnation: str
    """Changes whenever the sandbox lost its disk and processes."""
    state: str
    """`"CREATING"`, `"ACTIVE"`, `"SUSPENDED"`, `"DELETING"` or `"FAILED"`."""
    state_message: str
    create_time: dt.datetime | None
    last_activity_time: dt.datetime | None
    expire_time: dt.datetime | None
    """When it ends if nothing happens; None: never."""
    ttl: float | None
    idle_ttl: float | None
    labels: Mapping[str, str]
    template: str
    image: str
    working_directory: str
    resources: Resources
    from_pool: bool
    substrate_name: str
    isolation: Isolation
    access: AccessPolicy | None = None
    """The policy that it was made with; None: none of its own."""
    image_digest: str = ""
    """Digest of its image, such as `sha256:…`. Empty: it has no image, or the provider does not know it."""


@dataclass(frozen=True, slots=True)
class SandboxPage:
    """One page of a list."""

    sandboxes: list[SandboxInfo]
    """May be empty although more pages follow."""
    next_page_token: str
    """For the `page_token` of the next call. Empty: this was the last page."""


@dataclass(frozen=True, slots=True)
class Enforcement:
    """Whether one protection is enforced on this machine or cluster."""

    name: str
    enforced: bool
    detail: str


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds and defaults of the server. Durations in seconds; None: none."""

    max_message_bytes: int
    default_timeout: float | None
    max_timeout: float | None
    output_log_bytes: int
    end_retention: float | None
    default_idle_ttl: float | None
    default_ttl: float | None


@dataclass(frozen=True, slots=True)
class SecretInfo:
    """A secret that rules can name, never its value."""

    name: str
    source: str
    """"file" or "env"."""
    hosts: tuple[str, ...]
    """The hosts that may get it."""


@dataclass(frozen=True, slots=True)
class SandboxUrl:
    """A URL of a port or a file. Whoever has it can use it until it expires."""

    url: str
    """The URL with its token, for browsers and programs that follow links."""
    base_url: str
    """The same URL without it, for programs that send the token as a bearer."""
    token: str = field(repr=False)
    expire_time: dt.datetime | None
    incarnation: str
    """The incarnation that it is for; with another one, requests get the status 410."""


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit on what a tenant or a principal may use."""

    name: str
    """Such as "max_sandboxes", "max_memory_bytes" or "creations_per_minute"."""
    scope: str
    """Whose it is: "tenant" or "principal"."""
    limit: int
    """A number, bytes, or thousandths of a core."""
    used: int
    """What is in use; -1: the server cannot count now."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server is, can do and enforces, and who the caller is to it."""

    version: str
    provider: str
    capabilities: tuple[str, ...]
    limits: ServerLimits
    enforcement: tuple[Enforcement, ...]
    templates: tuple[str, ...]
    principal: str
    """Empty without authentication."""
    tenant: str
    role: str
    """"reader", "user" or "operator"."""
    secrets: tuple[SecretInfo, ...] = ()
    """The secrets that rules of the caller's sandboxes can name."""
    quotas: tuple[Quota, ...] = ()
    """The quotas that apply to the caller. Empty: there are none."""


@dataclass(frozen=True, slots=True)
class CleanupResult:
    """What `cleanup` deleted."""

    deleted: tuple[str, ...]
    kept: int
    failures: Mapping[str, str] = field(default_factory=dict)
    """Sandboxes that could not be deleted, with the reason."""


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """Counts of a pool's sandboxes."""

    available: int
    active: int
    total: int
    target: int


def sandbox_info(message: pb.Sandbox) -> SandboxInfo:
    """Read a `Sandbox` message."""
    spec, isolation = message.spec, message.isolation
    return SandboxInfo(
        sandbox_id=message.sandbox_id,
        incarnation=message.incarnation,
        state=_values.name(pb.SandboxState.DESCRIPTOR, message.state, "SANDBOX_STATE_"),
        state_message=message.state_message,
        create_time=_values.time(message, "create_time"),
        last_activity_time=_values.time(message, "last_activity_time"),
        expire_time=_values.time(message, "expire_time"),
        ttl=_values.seconds(message, "ttl"),
        idle_ttl=_values.seconds(message, "idle_ttl"),
        labels=dict(message.labels),
        template=message.template,
        image=spec.image,
        working_directory=spec.working_directory,
        resources=Resources(
            memory_bytes=spec.resources.memory_bytes,
            cpu_millis=spec.resources.cpu_millis,
            max_processes=spec.resources.max_processes,
            disk_bytes=spec.resources.disk_bytes,
        ),
        from_pool=message.from_pool,
        substrate_name=message.substrate_name,
        image_digest=message.image_digest,
        isolation=Isolation(
            runtime=isolation.runtime,
            network=_values.name(pb.NetworkMode.DESCRIPTOR, isolation.network, "NETWORK_MODE_"),
            unprivileged=isolation.unprivileged,
            read_only_system=isolation.read_only_system,
            not_enforced=tuple(isolation.not_enforced),
        ),
        access=_access(spec.access) if spec.HasField("access") else None,
    )


def _access(message: pb.AccessPolicy) -> AccessPolicy:
    return AccessPolicy(
        root_dir=message.root_dir,
        virtual=message.virtual,
        write_allow_prefixes=tuple(message.write_allow_prefixes),
        write_deny_prefixes=tuple(message.write_deny_prefixes),
        read_deny_prefixes=tuple(message.read_deny_prefixes),
        deny_commands=tuple(message.deny_commands),
    )


def sandbox_url(message: url_pb.CreateSandboxUrlResponse) -> SandboxUrl:
    """Read a `CreateSandboxUrlResponse` message."""
    return SandboxUrl(
        url=message.url,
        base_url=message.base_url,
        token=message.token,
        expire_time=_values.time(message, "expire_time"),
        incarnation=message.incarnation,
    )


def server_info(message: info_pb.GetServerInfoResponse) -> ServerInfo:
    """Read a `GetServerInfoResponse` message."""
    limits = message.limits
    return ServerInfo(
        version=message.version,
        provider=message.provider,
        capabilities=tuple(message.capabilities),
        limits=ServerLimits(
            max_message_bytes=limits.max_message_bytes,
            default_timeout=_values.seconds(limits, "default_timeout"),
            max_timeout=_values.seconds(limits, "max_timeout"),
            output_log_bytes=limits.output_log_bytes,
            end_retention=_values.seconds(limits, "end_retention"),
            default_idle_ttl=_values.seconds(limits, "default_idle_ttl"),
            default_ttl=_values.seconds(limits, "default_ttl"),
        ),
        enforcement=tuple(Enforcement(e.name, e.enforced, e.detail) for e in message.enforcement),
        secrets=tuple(SecretInfo(s.name, s.source, tuple(s.hosts)) for s in message.secrets),
        templates=tuple(message.templates),
        principal=message.principal.name,
        tenant=message.principal.tenant,
        role=message.principal.role,
        quotas=tuple(Quota(q.name, q.scope, q.limit, q.used) for q in message.quotas),
    )
