"""Every Python block of the guides, and every block of the tour, with a scripted model.

Blocks marked `before` show other packages and are not run.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
from typing import Any

import pytest

from sandgate import Client
from tests import pages
from tests.integration.conftest import BINARY
from tests.scripted import ScriptedModel

_PAGES = sorted((pages.DOCS / "clients").glob("*.md"))
_BLOCK = re.compile(r"^```python([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def _blocks() -> list[Any]:
    found = []
    for page in _PAGES:
        blocks = [code for kind, code in _BLOCK.findall(page.read_text()) if not kind.strip()]
        found += [pytest.param(code, id=f"{page.stem}-{i}") for i, code in enumerate(blocks, start=1)]
    return found


@pytest.fixture(autouse=True)
def _server(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("SANDGATE_ADDRESS", address)


@pytest.mark.parametrize("code", _blocks())
def test_a_block_runs(code: str, real_client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    before = {s.sandbox_id for s in real_client.list()}
    scripted = re.sub(r'"anthropic:[^"]*"', "MODEL", code)
    tool = {"tool": "execute_python", "argument": "code"} if "SandgatePython" in code else {}
    with contextlib.suppress(SystemExit):
        exec(compile(scripted, "guide", "exec"), {"__name__": "__main__", "MODEL": _model(tool)})  # noqa: S102
    capsys.readouterr()
    # A block cleans up after itself.
    assert {s.sandbox_id for s in real_client.list()} <= before


def _model(tool: dict[str, str]) -> ScriptedModel:
    # It runs the lines of what it is asked as commands, whatever comes of it.
    return ScriptedModel(**tool)  # type: ignore[arg-type]


@pytest.mark.skipif(not BINARY.exists(), reason="the tour needs the command line")
def test_the_tour(real_client: Client) -> None:
    before = {s.sandbox_id for s in real_client.list()}
    steps = pages.steps((pages.DOCS / "tour.md").read_text())
    assert len(steps) >= 8
    environ = {**os.environ, "PATH": f"{BINARY.parent}:{os.environ['PATH']}"}
    for step in steps:
        if step.kind == "sh":
            printed = subprocess.run(
                ["/bin/bash", "-c", step.code],
                env=environ,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            ).stdout
        else:
            scripted = re.sub(r'"anthropic:[^"]*"', "MODEL", step.code)
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(scripted, "tour", "exec"), {"MODEL": _model({})})  # noqa: S102
            printed = out.getvalue()
        pages.check(step, printed)
    assert {s.sandbox_id for s in real_client.list()} <= before


def test_the_guides_are_there() -> None:
    assert {page.stem for page in _PAGES} >= {"python", "troubleshooting"}
    assert len(_blocks()) >= 16
