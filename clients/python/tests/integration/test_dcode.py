"""`dcode --sandbox sandgate`, where deepagents-code is installed.

It pins a deepagents of its own, so it needs an environment of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from sandgate import Client, SandboxNotFoundError
from tests.integration.openai_server import OpenAIServer

factory: Any = pytest.importorskip("deepagents_code.integrations.sandbox_factory")
interface: Any = pytest.importorskip("deepagents_code.integrations.sandbox_provider")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, address: str, tmp_path: Path) -> None:
    monkeypatch.setenv("SANDGATE_ADDRESS", address)
    monkeypatch.setenv("HOME", str(tmp_path))


def _provider() -> Any:
    (entry,) = entry_points(group="deepagents_code.sandbox_providers", name="sandgate")
    return entry.load()()


def test_s5_29_c20_a_session(real_client: Client, tmp_path: Path) -> None:
    setup = tmp_path / "setup.sh"
    setup.write_text("echo made > /workspace/made\n")
    params = {"labels": {"tests": "dcode"}, "ttl_seconds": 600}
    with factory.create_sandbox("sandgate", setup_script_path=str(setup), params=params) as backend:
        assert backend.read("/workspace/made").file_data["content"] == "made"
        assert [s.sandbox_id for s in real_client.list(labels={"tests": "dcode"})] == [backend.id]
        with factory.create_sandbox("sandgate", sandbox_id=backend.id) as same:
            assert same.execute("cat /workspace/made").output == "made\n"
        assert real_client.get(backend.id).id == backend.id
    with pytest.raises(SandboxNotFoundError):
        real_client.get(backend.id)


def test_s5_29_c20_the_program(real_client: Client, tmp_path: Path) -> None:
    settings = tmp_path / ".deepagents" / "config.toml"
    settings.parent.mkdir()
    settings.write_text(
        "[sandboxes.providers.sandgate]\n"
        'class_path = "sandgate.dcode:SandgateDcodeProvider"\n'
        'params = {labels = {tests = "dcode-program"}}\n'
    )
    command = "echo made in the sandbox > /workspace/made; cat /workspace/made; hostname"
    with OpenAIServer("execute", command=command) as model:
        environment = {
            "OPENAI_BASE_URL": model.url,
            "OPENAI_API_KEY": "none",
            "DEEPAGENTS_CODE_OFFLINE": "1",
            "DEEPAGENTS_CODE_NO_UPDATE_CHECK": "1",
        }
        done = subprocess.run(
            [
                Path(sys.executable).with_name("dcode"),
                *("-n", "make a file", "-q", "--no-mcp", "-S", "all", "--sandbox", "sandgate"),
                *("-M", "openai:gpt-4o-mini", "--model-params", '{"use_responses_api": false}'),
            ],
            env={**os.environ, **environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "execute" in model.tools
    assert "The tool returned: made in the sandbox\nsandbox\n" in done.stdout
    (left,) = real_client.list(labels={"tests": "dcode-program"})
    assert left.idle_ttl == 3600
    sandbox = real_client.sandbox(left.sandbox_id)
    assert sandbox.read("/workspace/made").content == b"made in the sandbox"
    sandbox.delete()


async def test_the_interface() -> None:
    provider = _provider()
    assert isinstance(provider, interface.SandboxProvider)
    assert provider.metadata.working_dir == "/workspace"
    with pytest.raises(interface.SandboxNotFoundError):
        provider.get_or_create(sandbox_id="dcode-none")
    with pytest.raises(interface.SandboxNotFoundError):
        await provider.aget_or_create(sandbox_id="dcode-none")
    backend = await provider.aget_or_create(ttl_seconds=600)
    await provider.adelete(sandbox_id=backend.id)
    provider.delete(sandbox_id=backend.id)
    await backend.aclose()


def test_making_a_provider_cannot_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDGATE_ADDRESS", "gopher://nowhere")
    provider = _provider()
    assert provider.metadata.name == "sandgate"
    with pytest.raises(interface.SandboxError):
        provider.get_or_create()
