"""A real server for the tests of this folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import pytest

from sandgate import Client, Config, Sandbox
from sandgate.deepagents import SandgateSandbox

# deepagents-code pins a deepagents of its own and has an environment of its own;
# there is nothing to collect where it is not installed.
collect_ignore = [] if find_spec("deepagents_code") else ["test_dcode.py"]
if not os.environ.get("SANDGATE_TEST_SERVER_IMAGE"):
    collect_ignore.append("test_walkthrough.py")  # make test-kubernetes runs it
if not os.environ.get("SANDGATE_DOCKER_IMAGE"):
    collect_ignore.append("test_docker.py")  # make test-docker runs it

BINARY = Path(os.environ.get("SANDGATE_BIN") or Path(__file__).parents[4] / "bin" / "sandgate")
_STOP_SECONDS = 60


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """Give the server that SANDGATE_ADDRESS names, or one of our own."""
    if named := os.environ.get("SANDGATE_ADDRESS"):
        yield named
        return
    if os.geteuid() != 0 or shutil.which("runc") is None:
        pytest.skip("needs root and runc to start a server; SANDGATE_ADDRESS names another one")
    if not BINARY.exists():
        pytest.fail(f"{BINARY} is missing; build it with make build")
    # A socket's path is short, so not below pytest's own directory.
    with tempfile.TemporaryDirectory(prefix="sandgate-") as directory, Server(Path(directory)) as server:
        yield server.address


class Server:
    """Runs a server with a state directory and cgroup of its own.

    Args:
        directory: Where it keeps everything.
        listen: Its address; default: a socket in the directory.
        flags: Further flags of `sandgate serve`.
        admin: How to reach it, to clean up at the end; its address is filled in.
    """

    def __init__(self, directory: Path, *flags: str, listen: str = "", admin: Config | None = None) -> None:
        self.address = listen or f"unix://{directory}/s.sock"
        self._admin = admin
        self._state = directory / "state"
        self._arguments = (
            *("--listen", self.address),
            *("--state-dir", str(self._state)),
            *("--local-cgroup", f"/sandgate-python-{directory.name}"),
            *flags,
        )

    def start(self) -> None:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("SANDGATE_")}
        self._process = subprocess.Popen(
            [BINARY, "serve", *self._arguments], stderr=subprocess.PIPE, env=environ, text=True
        )
        # A line on stderr says that it serves, and where.
        assert self._process.stderr is not None
        log = ""
        for line in self._process.stderr:
            log += line
            if "serves at" in line:
                break
        else:
            self._process.kill()
            pytest.fail(f"the server did not start: {log}")
        self.address = line.partition("serves at ")[2].split()[0].rstrip(",;")

    def kill(self) -> None:
        """End it as a power cut would."""
        self._process.kill()
        self._process.communicate(timeout=_STOP_SECONDS)

    def fail_all(self) -> None:
        """End all sandboxes as by themselves: their processes are killed."""
        runtime = ["runc", "--root", str(self._state / "local" / "runtime" / "runc")]
        listed = subprocess.run([*runtime, "list", "--quiet"], check=True, capture_output=True, text=True)
        for name in listed.stdout.split():
            subprocess.run([*runtime, "kill", "--all", name, "KILL"], check=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        admin = replace(self._admin or Config(), address=self.address)
        with Client(config=admin) as client:
            left = [info.sandbox_id for info in client.list()]
            for sandbox_id in left:
                client.delete(sandbox_id)
        self._process.terminate()
        log = self._process.communicate(timeout=_STOP_SECONDS)[1]
        assert self._process.returncode == 0, log


def needs_a_server() -> None:
    """Skip where no server can be started."""
    if os.geteuid() != 0 or shutil.which("runc") is None:
        pytest.skip("needs root and runc to start a server")


@pytest.fixture
def own_server() -> Iterator[Server]:
    needs_a_server()
    with tempfile.TemporaryDirectory(prefix="sandgate-") as directory, Server(Path(directory)) as server:
        yield server


@pytest.fixture(scope="session")
def real_config(address: str) -> Config:
    return Config.load(address)


@pytest.fixture(scope="session")
def real_client(real_config: Config) -> Iterator[Client]:
    with Client(config=real_config) as client:
        yield client


@pytest.fixture(scope="module")
def box(real_client: Client) -> Iterator[Sandbox]:
    with real_client.create(labels={"tests": "python"}, ttl=3600) as made:
        yield made


@pytest.fixture(scope="module")
def backend(real_config: Config) -> Iterator[SandgateSandbox]:
    with SandgateSandbox.create(config=real_config, labels={"tests": "python"}, ttl=3600) as made:
        yield made
