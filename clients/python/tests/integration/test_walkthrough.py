"""docs/operations.md from an empty cluster to an alert that arrives, step by step.

Runs with `make test-kubernetes`: it needs a cluster with the server's image.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlparse

import pytest

from tests import pages
from tests.integration.conftest import BINARY

_TITLE = "From nothing to a monitored server"
_NAMESPACES = ("sandgate", "sandgate-sandboxes")
_MARK = "=== block "
_SECONDS = 180


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _kubectl(*arguments: str) -> str:
    return subprocess.run(
        ["kubectl", *arguments],  # noqa: S607
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout


@pytest.fixture
def issuer() -> Iterator[str]:
    """Run tools/issuer."""
    program = shutil.which("issuer")
    assert program, "make setup builds .tools/bin/issuer"
    with subprocess.Popen([program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


@pytest.fixture
def namespaces() -> Iterator[None]:
    """Check that the page's namespaces are free, and leave none of them."""
    there = set(_kubectl("get", "namespaces", "--output=name").replace("namespace/", "").split())
    taken = there & set(_NAMESPACES)
    assert not taken, f"the cluster has {taken}, which the page creates: delete them, or use another cluster"
    yield
    for name in _NAMESPACES:
        _kubectl("delete", "pods", "--all", "--grace-period=1", "--namespace", name)
    _kubectl("delete", "namespace", "--ignore-not-found", "--timeout=50s", *_NAMESPACES)


def _helm_for_this_cluster(directory: Path) -> Path:
    """Write a helm that adds what a test cluster without Services and registries needs."""
    image, _, tag = os.environ["SANDGATE_TEST_SERVER_IMAGE"].rpartition(":")
    api = urlparse(_kubectl("config", "view", "--minify", "--output=jsonpath={.clusters[0].cluster.server}"))
    variables = {"KUBERNETES_SERVICE_HOST": api.hostname, "KUBERNETES_SERVICE_PORT": str(api.port)}
    values = {
        "image": {"repository": image, "tag": tag, "pullPolicy": "Never"},
        "hostNetwork": True,
        "containerPort": _free_port(),
        "agentFrom": ["0.0.0.0/0"],
        "extraArgs": ["--kubernetes-image=docker.io/sandgate/busybox:test"],
        "extraEnv": [{"name": name, "value": value} for name, value in variables.items()],
        "preStopSleepSeconds": 0,
        "resources": {"requests": {"cpu": "10m"}},
    }
    (directory / "cluster.json").write_text(json.dumps(values))
    wrapper = directory / "helm"
    added = f"--values {directory}/cluster.json"
    wrapper.write_text(
        f'#!/bin/sh\ncase $1 in install) set -- "$@" {added} ;; esac\nexec {shutil.which("helm")} "$@"\n'
    )
    wrapper.chmod(0o755)
    return directory


@pytest.mark.usefixtures("namespaces")
def test_a_new_operator(tmp_path: Path, issuer: str) -> None:
    text = (pages.DOCS / "operations.md").read_text()
    section = text.partition(f"\n## {_TITLE}\n")[2].partition("\n## ")[0]
    steps = pages.steps(section)
    assert len(steps) >= 12
    assert {step.kind for step in steps} == {"sh"}
    # One shell for all blocks, as a reader has, with ports that nobody else uses. The
    # server has the network of this machine, so a tunnel has another port than it.
    script = "set -euo pipefail\n"
    for number, step in enumerate(steps):
        script += f"echo '{_MARK}{number}'\n{step.code}"
    admin = _free_port()
    for port, remote in (("7777", 7777), ("9090", admin), ("9091", 0), ("9093", 0), ("9094", 0)):
        local = _free_port()
        script = re.sub(rf"(port-forward \S+) {port}\b", rf"\1 {local}:{remote}", script)
        script = script.replace(f"127.0.0.1:{port}", f"127.0.0.1:{local}")
    script = script.replace("0.0.0.0:9090", f"0.0.0.0:{admin}")
    (tmp_path / "deploy").symlink_to(pages.DOCS.parent / "deploy")
    (tmp_path / "bin").mkdir()
    environ = {k: v for k, v in os.environ.items() if not k.startswith("SANDGATE_")}
    environ |= {
        "PATH": f"{_helm_for_this_cluster(tmp_path / 'bin')}:{BINARY.parent}:{os.environ['PATH']}",
        "ISSUER": issuer,
        "CLIENT": "sid1:verysecret",
        "IMAGE": "registry.example.com/sandgate",
        "TAG": "dev",
    }
    output, errors = tmp_path / "stdout", tmp_path / "stderr"
    with (
        output.open("w") as stdout,
        errors.open("w") as stderr,
        subprocess.Popen(
            ["/bin/bash", "-c", script],
            cwd=tmp_path,
            env=environ,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        ) as shell,
    ):
        try:
            status: int | str = shell.wait(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            status = f"not over after {_SECONDS} s"
        # Whatever a failed block has left in the background.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    info = f"{status}\n{output.read_text()}\n{errors.read_text()[-4000:]}"
    assert status == 0, info
    printed = re.split(rf"^{_MARK}\d+\n", output.read_text(), flags=re.MULTILINE)[1:]
    assert len(printed) == len(steps), info
    for step, out in zip(steps, printed, strict=True):
        pages.check(step, out)
