"""Requests that sandboxes and commands become."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from sandgate import AccessPolicy, EgressRule, EgressSecret, Resources, _plans
from sandgate._gen.sandbox.v1 import sandbox_lifecycle_pb2 as lifecycle_pb
from sandgate._gen.sandbox.v1 import sandbox_process_pb2 as process_pb
from sandgate.options import ExecuteOptions, create_request, execute_request


def _execute(command: str | list[str], options: ExecuteOptions) -> process_pb.ExecuteRequest:
    return execute_request("sb", "inc", command, options, 60.0)


def test_an_empty_spec_sends_no_spec_but_an_id() -> None:
    first, second = create_request({}), create_request({})
    assert not first.HasField("spec")
    assert not first.HasField("ttl")
    assert first.sandbox_id
    assert first.sandbox_id != second.sandbox_id


def test_every_property_arrives() -> None:
    secret = EgressSecret("git", user="u")
    request = create_request(
        {
            "sandbox_id": "a",
            "template": "t",
            "image": "i",
            "resources": Resources(memory_bytes=1, cpu_millis=2, max_processes=3, disk_bytes=4),
            "env": {"K": "V"},
            "working_directory": "/w",
            "network": "PROXY",
            "network_allow": [
                EgressRule(["a.example"], ports=[443, 80]),
                EgressRule(group="packages"),
                EgressRule(["b.example"], methods=["POST"], paths=["/p/*"], secret=secret),
            ],
            "access": AccessPolicy(root_dir="/r", virtual=True, write_deny_prefixes=["/x"]),
            "command": ["sleep", "1"],
            "labels": {"l": "1"},
            "ttl": 1.5,
            "idle_ttl": 0,
            "provider_options": {"depth": {"n": 1}},
        }
    )
    spec = request.spec
    assert (request.sandbox_id, request.template, spec.image) == ("a", "t", "i")
    assert (spec.resources.memory_bytes, spec.resources.disk_bytes) == (1, 4)
    assert dict(spec.env) == {"K": "V"}
    assert spec.network.mode == lifecycle_pb.NETWORK_MODE_PROXY
    assert list(spec.network.allow[0].hosts) == ["a.example"]
    assert list(spec.network.allow[0].ports) == [443, 80]
    assert spec.network.allow[1].group == "packages"
    third = spec.network.allow[2]
    assert (list(third.methods), list(third.paths)) == (["POST"], ["/p/*"])
    assert (third.secret.name, third.secret.user, third.secret.header) == ("git", "u", "")
    assert not spec.network.allow[0].HasField("secret")
    assert spec.access.virtual
    assert list(spec.command) == ["sleep", "1"]
    assert (request.ttl.seconds, request.ttl.nanos) == (1, 500_000_000)
    assert request.HasField("idle_ttl")
    assert MessageToDict(request.provider_options) == {"depth": {"n": 1.0}}


def _update(rules: list[EgressRule] | None) -> lifecycle_pb.UpdateSandboxRequest:
    plan = _plans.update(
        "a", set_labels=None, remove_labels=(), ttl=None, idle_ttl=None, renew=False, network_allow=rules
    )
    request = getattr(next(plan), "request", None)
    assert isinstance(request, lifecycle_pb.UpdateSandboxRequest)
    return request


def test_an_update_of_rules() -> None:
    assert not _update(None).HasField("network")
    assert _update([]).HasField("network")  # which takes the sandbox's own rules away
    rule = _update([EgressRule(["a.example"], ports=[443])]).network.allow[0]
    assert (list(rule.hosts), list(rule.ports)) == (["a.example"], [443])


def test_a_shell_command_and_an_argv() -> None:
    assert _execute("echo", {}).shell == "echo"
    assert list(_execute(["echo", "a b"], {}).argv.args) == ["echo", "a b"]
    with pytest.raises(ValueError, match="at least the program"):
        _execute([], {})


def test_defaults_of_a_command() -> None:
    request = _execute("true", {})
    assert request.exec_id.startswith("ex-")
    assert request.disconnect_grace.seconds == 60
    assert not request.HasField("timeout")
    assert not request.HasField("max_output_bytes")
    assert request.expected_incarnation == "inc"


def test_options_of_a_command() -> None:
    request = _execute(
        "true",
        {
            "timeout": 0,
            "max_output_bytes": 0,
            "merged": True,
            "terminal": (24, 80),
            "evict": True,
            "until_streams_end": True,
            "stdin": "é",
            "detach": True,
            "disconnect_grace": 0,
        },
    )
    assert request.HasField("timeout")
    assert request.timeout.ToNanoseconds() == 0
    assert request.HasField("max_output_bytes")
    assert request.output_mode == process_pb.OUTPUT_MODE_MERGED
    assert (request.terminal.rows, request.terminal.columns) == (24, 80)
    assert request.on_full == process_pb.ON_FULL_EVICT
    assert request.follow_until == process_pb.FOLLOW_UNTIL_STREAMS_END
    assert request.stdin == "é".encode()
    assert request.detach
    assert request.disconnect_grace.ToNanoseconds() == 0


def test_unusable_options_are_errors() -> None:
    with pytest.raises(ValueError, match="negative"):
        _execute("true", {"timeout": -1})
    with pytest.raises(TypeError, match="shel_path"):
        _execute("true", {"shel_path": "/bin/bash"})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(TypeError, match="imgae"):
        create_request({"imgae": "x"})  # type: ignore[typeddict-unknown-key]


_create: Any = create_request
_run: Any = _execute


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: _create({"env": {"PORT": 8080}}), r"env\['PORT'\] must be a str, not int: 8080"),
        (lambda: _create({"labels": {"n": 1}}), r"labels\['n'\] must be a str, not int: 1"),
        (lambda: _create({"labels": {1: "n"}}), "a key of labels must be a str, not int: 1"),
        (lambda: _create({"env": ["A=b"]}), "env must be a mapping of str to str, not list"),
        (lambda: _create({"image": b"x"}), "image must be a str, not bytes"),
        (lambda: _create({"command": "sleep 1"}), "command must be a list of str, not str"),
        (
            lambda: _create({"resources": {"memory": "64MiB"}}),
            "resources must be sandgate.Resources, not dict",
        ),
        (lambda: _run("true", {"env": {"PORT": 8080}}), r"env\['PORT'\] must be a str, not int"),
        (lambda: _run(["ls", 5], {}), r"command\[1\] must be a str, not int: 5"),
        (lambda: _run(5, {}), "command must be a list of str, not int: 5"),
    ],
)
def test_a_wrong_type_names_its_field(build: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        build()
