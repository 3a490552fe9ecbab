"""The blocks of docs/operations.md outside of its first section, which test_walkthrough runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import pages
from tests.integration.conftest import BINARY

_TITLE = "From nothing to a monitored server"

# Blocks of commands that nothing may run here, by their first words: each is only parsed.
_PARSED = {
    "mount -o remount": "it changes a file system of the machine",
    "export OTEL_EXPORTER": "it serves at a fixed address; telemetry_test.go reads the variables",
    "sandgate audit": "it follows the log of an installed server without an end",
}


def _steps() -> list[pages.Step]:
    before, _, rest = (pages.DOCS / "operations.md").read_text().partition(f"\n## {_TITLE}\n")
    return pages.steps(before + rest.partition("\n## ")[2])


def _run(*command: str, text: str = "") -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PATH": f"{BINARY.parent}:{os.environ['PATH']}"}
    return subprocess.run(
        command, input=text, env=environ, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("number", range(len(_steps())))
def test_a_block(number: int, tmp_path: Path) -> None:
    step = _steps()[number]
    if step.kind == "yaml":
        file = tmp_path / "config.yaml"
        file.write_text(step.code)
        done = _run(str(BINARY), "config", "check", "--skip-files", str(file))
        assert (done.returncode, done.stdout) == (0, "ok\n"), f"{step.code}\n{done.stderr}"
        return
    assert step.kind == "sh", f"no test knows blocks of {step.kind}"
    parsed = any(step.code.startswith(words) for words in _PARSED)
    done = _run("/bin/bash", *(["-n"] if parsed else ["-e"]), text=step.code)
    assert done.returncode == 0, f"{step.code}\n{done.stderr}"
    pages.check(step, done.stdout)


def test_each_exception_is_a_block() -> None:
    for words in _PARSED:
        assert sum(step.code.startswith(words) for step in _steps()) == 1, words
