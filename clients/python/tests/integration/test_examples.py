"""The applications of `examples/python`, as their users start them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sandgate import Client
from tests.fake_server import wait_for
from tests.integration.environments import PROJECT, environment

_EXAMPLES = PROJECT.parents[1] / "examples" / "python"


@pytest.fixture(scope="module")
def python() -> Path:
    wanted = ("fastapi>=0.110", "uvicorn>=0.30", "langgraph-cli[inmem]>=0.4.40,<0.5")
    return environment("examples", sys.executable, *wanted, "-e", f"{PROJECT}[deepagents]")


def _ask(url: str, data: Any = None, method: str | None = None) -> Any:
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json"}, method=method)  # noqa: S310
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        return json.loads(answer.read() or b"null")


def _free_port() -> int:
    """Give a free port that the system hands out to nobody else meanwhile: it is below its own."""
    while True:
        port = random.randrange(10_000, 30_000)  # noqa: S311 - nobody needs to be surprised
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@contextmanager
def _running(address: str, directory: Path, log: Path, *command: str | Path) -> Iterator[None]:
    environ = {k: v for k, v in os.environ.items() if k != "MODEL" and not k.startswith("LANGSMITH")}
    environ |= {"SANDGATE_ADDRESS": address, "LANGGRAPH_CLI_NO_ANALYTICS": "1", "PYTHONUNBUFFERED": "1"}
    with log.open("w") as out:
        process = subprocess.Popen(
            command, cwd=directory, env=environ, stdout=out, stderr=out, start_new_session=True
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(90)


def _up(url: str, log: Path) -> None:
    def answers() -> bool:
        try:
            urllib.request.urlopen(url, timeout=10).close()  # noqa: S310
        except OSError:
            return False
        return True

    try:
        wait_for(answers, 180)
    except AssertionError:
        pytest.fail(f"it did not start: {log.read_text()}")


def test_s5_28_s3_24_a_service_has_one_sandbox_per_thread(
    address: str, python: Path, tmp_path: Path, real_client: Client
) -> None:
    port, log = _free_port(), tmp_path / "log"
    url = f"http://127.0.0.1:{port}"
    command = (python, "-m", "uvicorn", "--port", str(port), "app:app")
    with _running(address, _EXAMPLES / "service", log, *command):
        _up(f"{url}/sandboxes", log)
        _ask(f"{url}/chat/one", {"message": "echo first > /workspace/x"})
        other = _ask(f"{url}/chat/two", {"message": "cat /workspace/x || echo none"})
        assert "none" in other["reply"]
        before = _ask(f"{url}/chat/one", {"message": "cat /workspace/x"})
        assert before["reply"].startswith("first\n")
        assert len(_ask(f"{url}/sandboxes")) == 2
    # Another process, as a restart or a replica, finds the same sandboxes.
    with _running(address, _EXAMPLES / "service", log, *command):
        _up(f"{url}/sandboxes", log)
        after = _ask(f"{url}/chat/one", {"message": "cat /workspace/x"})
        assert after == before
        for each in _ask(f"{url}/sandboxes"):
            _ask(f"{url}/sandboxes/{each['id']}", method="DELETE")
    assert [*real_client.list(labels={"app": "chat"})] == []


def test_s5_28_s3_24_langgraph_dev(address: str, python: Path, tmp_path: Path, real_client: Client) -> None:
    port, log = _free_port(), tmp_path / "log"
    url = f"http://127.0.0.1:{port}"
    flags = ("dev", "--port", str(port), "--no-browser", "--no-reload")
    # It keeps its state beside the configuration.
    directory = tmp_path / "platform"
    directory.mkdir()
    (tmp_path / "scripted.py").write_text((_EXAMPLES / "scripted.py").read_text())
    for name in ("graph.py", "langgraph.json"):
        (directory / name).write_text((_EXAMPLES / "platform" / name).read_text())
    with _running(address, directory, log, python.parent / "langgraph", *flags):
        _up(f"{url}/ok", log)
        thread = _ask(f"{url}/threads", {})["thread_id"]

        def run(command: str) -> Any:
            asked = {"messages": [{"role": "user", "content": command}]}
            return _ask(f"{url}/threads/{thread}/runs/wait", {"assistant_id": "agent", "input": asked})

        first = run("echo kept > /workspace/x")
        second = run("cat /workspace/x")
        assert second["messages"][-1]["content"].startswith("kept\n"), second
        assert first["sandbox_id"] == second["sandbox_id"]
        assert [s.sandbox_id for s in real_client.list(labels={"app": "platform"})] == [second["sandbox_id"]]
    real_client.delete(second["sandbox_id"])
