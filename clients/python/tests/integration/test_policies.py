"""Options that restrict and record what a backend does: S1's and S4's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sandgate import AccessPolicy, Config, Sandbox
from sandgate.deepagents import SandgateProvider, SandgateSandbox, SandgateThreadBackend
from tests.scripted import in_thread

_ALLOWED: Any = {"allow_prefixes": ["/workspace/ok/", "/tmp/"]}


@pytest.fixture(scope="module", params=["create", "connect"])
def allowed(request: pytest.FixtureRequest, real_config: Config, box: Sandbox) -> Iterator[SandgateSandbox]:
    """Give a backend that may write below two directories, made so or narrowed so."""
    if request.param == "create":
        with SandgateSandbox.create(config=real_config, ttl=600, **_ALLOWED) as made:
            yield made
    else:
        with SandgateSandbox.connect(box.id, config=real_config, **_ALLOWED) as taken:
            yield taken


async def test_s1_16_s1_34_writes_outside_of_allow_prefixes_are_errors(allowed: SandgateSandbox) -> None:
    assert allowed.write("/workspace/ok/a", "a").error is None
    assert allowed.edit("/workspace/ok/a", "a", "b").error is None
    # "ok" is a whole component, and links and ".." do not lead around it.
    allowed.execute("ln -sfn /workspace /workspace/ok/out")
    # Commands are bound, too.
    assert "denied" in allowed.execute("echo new > /workspace/old").output
    for path in ("/workspace/no", "/workspace/okay", "/workspace/ok/../no", "/workspace/ok/out/no"):
        results: list[Any] = [allowed.write(path, "x"), await allowed.awrite(path, "x")]
        results += [*allowed.upload_files([(path, b"x")]), *await allowed.aupload_files([(path, b"x")])]
        for result in results:
            assert "permission_denied" in result.error
    for change in (
        allowed.edit("/workspace/old", "old", "new"),
        await allowed.aedit("/workspace/old", "old", "new"),
        allowed.delete("/workspace/old"),
        await allowed.adelete("/workspace/old"),
    ):
        assert change.error is not None
        assert "policy write_allow_prefixes" in change.error
    assert allowed.execute("ls /workspace").output.split() == ["ok"]


def test_s1_35_a_policy_differs_from_the_sandboxs_own_permissions(allowed: SandgateSandbox) -> None:
    refused = allowed.write("/workspace/no", "x").error
    assert refused is not None
    assert "policy" in refused
    allowed.execute("mkdir -p /workspace/ok/shut; chmod 555 /workspace/ok/shut")
    denied = allowed.write("/workspace/ok/shut/x", "x").error
    assert denied == "Failed to write file '/workspace/ok/shut/x': permission_denied"


def test_s1_16_reads_are_not_restricted(allowed: SandgateSandbox) -> None:
    assert allowed.read("/etc/passwd").error is None
    assert allowed.ls("/").error is None


@pytest.fixture(scope="module", params=["create", "connect"])
def virtual(request: pytest.FixtureRequest, real_config: Config, box: Sandbox) -> Iterator[SandgateSandbox]:
    """Give a backend whose "/" is a directory of the sandbox."""
    box.make_directory("/workspace/root")
    if request.param == "create":
        with SandgateSandbox.create(config=real_config, ttl=600, virtual_mode=True) as made:
            yield made
    else:
        options: Any = {"virtual_mode": True, "root_dir": "/workspace/root"}
        with SandgateSandbox.connect(box.id, config=real_config, **options) as taken:
            yield taken


async def test_s1_17_s1_18_s1_19_s4_14_virtual_paths(virtual: SandgateSandbox) -> None:
    root = virtual.execute("test -d /workspace/root && cd root; pwd").output.strip()
    assert virtual.write("/src/main.py", "print('needle')\n").error is None
    assert virtual.execute(f"cat {root}/src/main.py").output == "print('needle')\n"
    read = virtual.read("/src/main.py")
    assert read.file_data is not None
    assert read.file_data["content"] == "print('needle')"
    assert (await virtual.aedit("/src/main.py", "needle", "found")).error is None
    assert [e["path"] for e in virtual.ls("/src").entries or []] == ["/src/main.py"]
    for path in ("/src", None):
        found = virtual.grep("found", path).matches
        assert found is not None
        assert [m["path"] for m in found] == ["/src/main.py"]
    globbed = virtual.glob("*.py").matches
    assert globbed is not None
    assert [m["path"] for m in globbed] == ["/src/main.py"]
    assert virtual.upload_files([("/data/in.csv", b"1,2\n")])[0].error is None
    assert virtual.execute(f"cat {root}/data/in.csv").output == "1,2\n"
    assert virtual.download_files(["/data/in.csv"])[0].content == b"1,2\n"


async def test_s1_17_s4_14_nothing_leads_out_of_the_root(virtual: SandgateSandbox) -> None:
    virtual.execute("test -d /workspace/root && cd root; ln -sfn /etc way; ln -sfn /etc/passwd file")
    for path in ("/../../etc/passwd", "/way/passwd", "/file", "/~/x/../../../../etc/passwd"):
        assert virtual.read(path).error is not None
        assert (await virtual.adownload_files([path]))[0].content is None
    for path in ("/../../tmp/x", "/way/x"):
        assert virtual.write(path, "x").error is not None or virtual.execute("test -e /tmp/x").exit_code == 1


def test_s1_20_prefixes_are_checked_on_the_resolved_path(real_config: Config) -> None:
    with SandgateSandbox.create(
        config=real_config,
        ttl=600,
        virtual_mode=True,
        root_dir="/workspace",
        allow_prefixes=["/workspace/src"],
    ) as backend:
        assert backend.write("/src/main.py", "x").error is None
        assert "policy" in str(backend.write("/main.py", "x").error)
    # A prefix that holds the root allows all of it, one elsewhere makes no sense.
    with SandgateSandbox.create(
        config=real_config, ttl=600, virtual_mode=True, allow_prefixes=["/workspace/"]
    ) as backend:
        assert backend.write("/main.py", "x").error is None
    with pytest.raises(ValueError, match="not beneath root_dir"):
        SandgateSandbox.create(config=real_config, virtual_mode=True, allow_prefixes=["/tmp"])


def test_s4_7_s4_14_denied_prefixes_of_a_virtual_root(real_config: Config) -> None:
    denied = ["/etc", "/workspace/shut"]
    with SandgateSandbox.create(
        config=real_config, ttl=600, virtual_mode=True, deny_prefixes=denied
    ) as backend:
        assert backend.write("/open", "x").error is None
        for path in ("/etc/x", "/shut/x"):
            assert "policy" in str(backend.write(path, "x").error)


def test_s4_6_s4_7_s4_8_deny_prefixes_and_commands(real_config: Config, box: Sandbox) -> None:
    box.write("/workspace/shut/old", "a")
    options: Any = {"deny_prefixes": ["/workspace/shut"], "deny_commands": ["rm -rf", "curl"]}
    with SandgateSandbox.connect(box.id, config=real_config, **options) as backend:
        assert "policy write_deny_prefixes" in str(backend.write("/workspace/shut/x", "x").error)
        assert "Permission denied" in str(backend.edit("/workspace/shut/old", "a", "b").error)
        uploads = backend.upload_files([("/workspace/shut/x", b""), ("/workspace/fine", b"")])
        assert [u.error for u in uploads] == ["permission_denied", None]
        for content in (b"", b"x" * 2_000_000):
            assert backend.upload_files([("/workspace/shut/x", content)])[0].error == "permission_denied"
        refused = backend.execute("true; rm -rf /workspace")
        assert refused.exit_code == 126
        assert "rm -rf" in refused.output
        assert refused.output.startswith("Error:")
        assert backend.execute("echo fine").output == "fine\n"
        # S4-10: reads pass.
        assert backend.read("/etc/hosts").error is None
        assert backend.ls("/etc").error is None
    # What one client asked for binds that client; the sandbox is as it was.
    assert box.write("/workspace/shut/x", "x").created


async def test_s4_9_the_audit_log_has_every_change(real_config: Config, box: Sandbox) -> None:
    received: list[tuple[str, str, dict[str, Any]]] = []
    async with await SandgateSandbox.aconnect(
        box.id, config=real_config, deny_commands=["forbidden"], audit_log=lambda *each: received.append(each)
    ) as backend:
        backend.write("/workspace/audited", "12345")
        await backend.awrite("/none\0", "1")
        backend.edit("/workspace/audited", "5", "6", replace_all=True)
        await backend.aexecute("exit 3")
        backend.execute("forbidden")
        await backend.aupload_files([("/workspace/a", b"1"), ("relative", b"22")])
        await backend.adelete("/workspace/audited")
        backend.read("/workspace/a")
    operations = [(operation, target) for operation, target, _ in received]
    assert operations == [
        ("write", "/workspace/audited"),
        ("write", "/none\0"),
        ("edit", "/workspace/audited"),
        ("execute", "exit 3"),
        ("execute", "forbidden"),
        ("upload", "/workspace/a"),
        ("upload", "relative"),
        ("delete", "/workspace/audited"),
    ]
    records = [record for _, _, record in received]
    assert records[0] == {"size": 5, "error": None}
    assert records[1]["error"]
    assert records[2] == {"replace_all": True, "error": None}
    assert records[3] == {"exit_code": 3, "error": None}
    assert "POLICY_DENIED" in records[4]["error"]
    assert records[5:7] == [{"size": 1, "error": None}, {"size": 2, "error": "invalid_path"}]


def test_c14_a_policy_of_the_sandbox_binds_every_caller(real_config: Config) -> None:
    with (
        SandgateSandbox.create(config=real_config, ttl=600, deny_prefixes=["/workspace/shut"]) as backend,
        SandgateSandbox.connect(backend.id, config=real_config) as other,
    ):
        assert "policy" in str(other.write("/workspace/shut/x", "x").error)


def test_c14_a_sandbox_that_was_made_without_the_policy_is_narrowed(real_config: Config) -> None:
    with SandgateSandbox.create(config=real_config, sandbox_id="py-loose", ttl=600) as loose:
        options: Any = {"deny_prefixes": ["/workspace/shut"], "config": real_config}
        with (
            SandgateProvider(**options) as provider,
            provider.get_or_create(sandbox_id="py-loose") as backend,
        ):
            assert "policy" in str(backend.write("/workspace/shut/x", "x").error)
        assert loose.write("/workspace/shut/x", "x").error is None
    with SandgateThreadBackend(config=real_config, ttl=600) as plain:
        in_thread("py-policy", lambda: plain.write("/workspace/x", "x"))
        with SandgateThreadBackend(config=real_config, ttl=600, allow_prefixes=["/tmp"]) as narrow:
            assert "policy" in str(in_thread("py-policy", lambda: narrow.write("/workspace/x", "x")).error)
            in_thread("py-policy", narrow.stop)


def test_a_policy_is_given_once(real_config: Config) -> None:
    with pytest.raises(TypeError, match="either access or root_dir"):
        SandgateSandbox.create(config=real_config, access=AccessPolicy(), root_dir="/workspace")


def test_s1_14_max_output_size(real_config: Config, box: Sandbox) -> None:
    with SandgateSandbox.connect(box.id, config=real_config, max_output_size=1000) as backend:
        response = backend.execute("head -c 100000 /dev/zero | tr '\\0' x; exit 3")
        assert (response.output, response.truncated, response.exit_code) == ("x" * 1000, True, 3)


def test_s1_15_s2_2_command_timeout(real_config: Config, box: Sandbox) -> None:
    with SandgateSandbox.connect(box.id, config=real_config, command_timeout=2.5) as backend:
        response = backend.execute("echo before; sleep 4242")
        assert (response.exit_code, response.truncated) == (124, False)
        assert response.output == "before\nCommand timed out after 2.5 seconds"
        assert backend.execute("sleep 3; echo done", timeout=60).output == "done\n"
