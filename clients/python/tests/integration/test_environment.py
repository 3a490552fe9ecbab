"""Settings from the environment, for clients and the command line."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandgate import Client
from sandgate.deepagents import SandgateProvider, SandgateSandbox, SandgateSession
from tests.integration.conftest import BINARY, Server, needs_a_server


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    needs_a_server()
    with tempfile.TemporaryDirectory(prefix="sandgate-") as directory:
        config = Path(directory) / "config.yaml"
        config.write_text(json.dumps({"templates": [{"name": "default"}, {"name": "small"}]}))
        with Server(Path(directory), "--config", str(config)) as server:
            yield server.address


@pytest.fixture(autouse=True)
def _environment(served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDGATE_ADDRESS", served)
    monkeypatch.setenv("SANDGATE_TEMPLATE", "small")


def test_s4_16_s5_32_a_template() -> None:
    with Client() as client:
        with client.create() as sandbox, client.create(template="default") as other:
            assert (sandbox.info().template, other.info().template) == ("small", "default")
        with SandgateSession(ttl=600) as session, SandgateProvider() as provider:
            session.start()
            made = provider.get_or_create(ttl_seconds=600)
            assert {info.template for info in client.list()} == {"small"}
            provider.delete(sandbox_id=made.id)


def test_s4_16_s5_32_a_template_for_the_command_line() -> None:
    def run(*arguments: str) -> str:
        return subprocess.check_output([BINARY, *arguments], text=True).strip()

    with Client() as client:
        made = run("create")
        other = run("create", "--template", "default")
        assert [client.get(name).info().template for name in (made, other)] == ["small", "default"]
        run("rm", made, other)


def test_s4_16_a_root_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDGATE_ROOT_DIR", "/workspace")
    with SandgateSandbox.create(ttl=600) as backend:
        assert backend.write("/workspace/x", "inside").error is None
        assert backend.write("/tmp/y", "outside").error
        with SandgateSandbox.connect(backend.id) as again:
            assert again.read("/workspace/x").error is None
            assert again.read("/etc/passwd").error
        with SandgateSandbox.create(root_dir="", ttl=600) as free:
            assert free.write("/tmp/y", "anywhere").error is None
