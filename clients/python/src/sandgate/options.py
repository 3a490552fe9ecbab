"""Options of sandboxes and commands, and the requests that they become."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from google.protobuf.struct_pb2 import Struct

from sandgate import _values
from sandgate._gen.sandbox.v1 import sandbox_lifecycle_pb2 as lifecycle_pb
from sandgate._gen.sandbox.v1 import sandbox_process_pb2 as process_pb

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandgate.info import Resources

NetworkMode = Literal["NONE", "PROXY", "FULL"]
SandboxState = Literal["CREATING", "ACTIVE", "SUSPENDED", "DELETING", "FAILED"]
SignalScope = Literal["LEADER", "GROUP", "TREE"]


@dataclass(frozen=True, slots=True)
class EgressSecret:
    """How a secret of the server's configuration gets into requests.

    The default is `Authorization: Bearer SECRET`. The secret never enters the
    sandbox.
    """

    name: str
    """The secret's name in the server's configuration; `ServerInfo.secrets` lists them."""
    header: str = ""
    """The header that is set to `prefix` and the secret. Empty: `Authorization`."""
    prefix: str = ""
    """The text before the secret. Default: `"Bearer "` without `header`, nothing with one."""
    user: str = ""
    """A user name, for HTTP Basic with the secret as the password, as `git push` needs."""
    placeholder: str = ""
    """16 to 128 letters, digits, "_" and "-", replaced with the secret in the headers that
    a program sends, instead of `header`, `prefix` and `user`."""

    def message(self) -> lifecycle_pb.EgressSecret:
        """Return the secret as it is sent."""
        return lifecycle_pb.EgressSecret(
            name=_values.text("name", self.name),
            header=_values.text("header", self.header),
            prefix=_values.text("prefix", self.prefix),
            user=_values.text("user", self.user),
            placeholder=_values.text("placeholder", self.placeholder),
        )


@dataclass(frozen=True, slots=True)
class EgressRule:
    """Destinations that the network mode PROXY allows.

    A rule has hosts and CIDRs, or it names a group.
    """

    hosts: Sequence[str] = ()
    """`"example.com"`, `"*.example.com"` for every name below it, `"*"` for every name."""
    cidrs: Sequence[str] = ()
    """Addresses in CIDR notation, IPv4 or IPv6."""
    ports: Sequence[int] = ()
    """Empty: 80 and 443; with a secret 443."""
    group: str = ""
    """A group of rules in the server's configuration, such as `"packages"`."""
    methods: Sequence[str] = ()
    """HTTP methods, such as `"GET"`. Empty: all. With methods, paths or a secret the rule
    allows HTTP requests only, and the server ends TLS to read them."""
    paths: Sequence[str] = ()
    """`"/a/b"`, or `"/a/*"` for every path below `/a/`. Empty: all."""
    secret: EgressSecret | None = None
    """A secret that the server puts into the requests, in TLS only."""

    def message(self) -> lifecycle_pb.EgressRule:
        """Return the rule as it is sent."""
        return lifecycle_pb.EgressRule(
            hosts=_values.texts("hosts", self.hosts),
            cidrs=_values.texts("cidrs", self.cidrs),
            ports=self.ports,
            group=_values.text("group", self.group),
            methods=_values.texts("methods", self.methods),
            paths=_values.texts("paths", self.paths),
            secret=self.secret.message() if self.secret is not None else None,
        )


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """What file calls and commands may touch.

    Given at several places (server, template, sandbox, call), a path must pass
    all of them: a call can narrow but never widen.
    """

    root_dir: str = ""
    """Every path resolves beneath this directory. Empty: no such root."""
    virtual: bool = False
    """With `root_dir`: paths are taken as relative to it, and given so."""
    write_allow_prefixes: Sequence[str] = ()
    """Path prefixes that may be written. Empty: all that are not denied."""
    write_deny_prefixes: Sequence[str] = ()
    """Path prefixes that may not be written; they win over allowed ones."""
    read_deny_prefixes: Sequence[str] = ()
    """Path prefixes that may not be read, listed or searched."""
    deny_commands: Sequence[str] = ()
    """Commands that contain one of these are refused: a guardrail, not a security
    boundary."""

    def message(self) -> lifecycle_pb.AccessPolicy:
        """Return the message that is sent."""
        return lifecycle_pb.AccessPolicy(
            root_dir=self.root_dir,
            virtual=self.virtual,
            write_allow_prefixes=self.write_allow_prefixes,
            write_deny_prefixes=self.write_deny_prefixes,
            read_deny_prefixes=self.read_deny_prefixes,
            deny_commands=self.deny_commands,
        )


class SandboxOptions(TypedDict, total=False):
    """What a sandbox is like. What is left out is the template's or the server's.

    Durations in seconds; 0 means none, where the server allows that.
    """

    template: str
    image: str
    resources: Resources
    env: Mapping[str, str]
    working_directory: str
    network: NetworkMode
    network_allow: Sequence[EgressRule]
    access: AccessPolicy
    command: Sequence[str]
    ttl: float
    idle_ttl: float
    provider_options: Mapping[str, Any]


class SandboxSpec(SandboxOptions, total=False):
    """What `create` takes: what a sandbox is like, and which one it is."""

    sandbox_id: str
    """1 to 128 characters of a-z, A-Z, 0-9, ".", "_", "-". Default: made up.
    Creating an id again with the same spec returns the same sandbox."""
    labels: Mapping[str, str]


def new_sandbox_id() -> str:
    """Return a unique id."""
    return f"sb-{uuid.uuid4().hex[:20]}"


def create_request(spec: SandboxSpec) -> lifecycle_pb.CreateSandboxRequest:
    """Build the request; without an id one is made up, so that it can be repeated.

    Raises:
        TypeError: The spec has a key that is not known, or a value has the wrong
            type.
        ValueError: A lifetime is negative, or the network mode is not known.
    """
    unknown = spec.keys() - SandboxSpec.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown properties of a sandbox: {', '.join(sorted(unknown))}")
    message = lifecycle_pb.SandboxSpec(
        image=_values.text("image", spec.get("image", "")),
        env=_values.mapping("env", spec.get("env")),
        working_directory=_values.text("working_directory", spec.get("working_directory", "")),
        command=_values.texts("command", spec.get("command", ())),
    )
    if (resources := spec.get("resources")) is not None:
        if not hasattr(resources, "memory_bytes"):
            raise TypeError(f"resources must be sandgate.Resources, not {type(resources).__name__}")
        message.resources.memory_bytes = resources.memory_bytes
        message.resources.cpu_millis = resources.cpu_millis
        message.resources.max_processes = resources.max_processes
        message.resources.disk_bytes = resources.disk_bytes
    if (mode := spec.get("network")) is not None:
        message.network.mode = lifecycle_pb.NetworkMode.Value(f"NETWORK_MODE_{mode.upper()}")
    if rules := spec.get("network_allow"):
        message.network.allow.extend(rule.message() for rule in rules)
    if (access := spec.get("access")) is not None:
        message.access.CopyFrom(access.message())
    request = lifecycle_pb.CreateSandboxRequest(
        sandbox_id=_values.text("sandbox_id", spec.get("sandbox_id") or new_sandbox_id()),
        template=_values.text("template", spec.get("template", "")),
        labels=_values.mapping("labels", spec.get("labels")),
        ttl=_values.duration(spec.get("ttl")),
        idle_ttl=_values.duration(spec.get("idle_ttl")),
    )
    if message.ByteSize():
        request.spec.CopyFrom(message)
    if (provider_options := spec.get("provider_options")) is not None:
        options = Struct()
        options.update(provider_options)
        request.provider_options.CopyFrom(options)
    return request


class ExecuteOptions(TypedDict, total=False):
    """What a command can be given beside itself."""

    cwd: str
    """Absolute path to start in. Default: the sandbox's working directory."""
    env: Mapping[str, str]
    """Added to the sandbox's environment, for this command only."""
    stdin: bytes | str
    """Standard input, given at once. Default: /dev/null."""
    stdin_open: bool
    """Standard input stays open after `stdin` and takes `write_stdin`."""
    timeout: float
    """Seconds of wall time; then every descendant is killed. Default: the
    server's. 0: none, where the server allows that."""
    max_output_bytes: int
    """Output beyond it, of both streams together, is counted and dropped.
    Default: the server's limit, if any."""
    merged: bool
    """One pipe for both streams: their order is exact, all of it is stdout."""
    terminal: tuple[int, int]
    """Gives the command a terminal of these rows and columns."""
    shell_path: str
    """The shell of a command given as a string. Default: `/bin/sh`."""
    exec_id: str
    """The command's id within the sandbox. Default: made up."""
    detach: bool
    """The command keeps running without a caller. Default: False."""
    evict: bool
    """When the retained output is full, the oldest is dropped. Default: the
    command waits for its reader."""
    until_streams_end: bool
    """Follow until no process has the output open. Default: until the
    started process ended."""
    disconnect_grace: float
    """Grace period in seconds: how long the command keeps running after its caller has
    disconnected. Default: 60."""
    access: AccessPolicy
    """Narrows the sandbox's access policy for this command."""


def execute_request(
    sandbox_id: str,
    incarnation: str,
    command: str | Sequence[str],
    options: ExecuteOptions,
    default_grace: float,
) -> process_pb.ExecuteRequest:
    """Build the request of a command: a shell script, or an argv.

    Raises:
        TypeError: An option is not known, or a value has the wrong type.
        ValueError: The argv is empty or a duration is negative.
    """
    unknown = options.keys() - ExecuteOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown options of a command: {', '.join(sorted(unknown))}")
    stdin = options.get("stdin", b"")
    request = process_pb.ExecuteRequest(
        sandbox_id=sandbox_id,
        expected_incarnation=incarnation,
        exec_id=options.get("exec_id") or f"ex-{uuid.uuid4().hex}",
        shell_path=options.get("shell_path", ""),
        cwd=_values.text("cwd", options.get("cwd", "")),
        env=_values.mapping("env", options.get("env")),
        stdin=stdin.encode() if isinstance(stdin, str) else stdin,
        stdin_open=options.get("stdin_open", False),
        timeout=_values.duration(options.get("timeout")),
        max_output_bytes=options.get("max_output_bytes"),
        disconnect_grace=_values.duration(options.get("disconnect_grace", default_grace)),
        detach=options.get("detach", False),
    )
    if isinstance(command, str):
        request.shell = _values.text("command", command)
    elif args := _values.texts("command", command):
        request.argv.args.extend(args)
    else:
        raise ValueError("an argv needs at least the program")
    if options.get("merged"):
        request.output_mode = process_pb.OUTPUT_MODE_MERGED
    if (terminal := options.get("terminal")) is not None:
        request.terminal.rows, request.terminal.columns = terminal
    if options.get("evict"):
        request.on_full = process_pb.ON_FULL_EVICT
    if options.get("until_streams_end"):
        request.follow_until = process_pb.FOLLOW_UNTIL_STREAMS_END
    if (access := options.get("access")) is not None:
        request.access.CopyFrom(access.message())
    return request
