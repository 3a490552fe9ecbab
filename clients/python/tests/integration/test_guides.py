"""Every Python block of the guides, as it stands, with a scripted model.

Blocks marked `before` show other packages and are not run.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest

from sandgate import Client
from tests.scripted import ScriptedModel

_PAGES = sorted((Path(__file__).parents[4] / "docs" / "clients").glob("*.md"))
_BLOCK = re.compile(r"^```python([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)

# The rows whose code a page moves over.
_ROWS = {
    "migration-langchain-k8s": "s1_1_s1_2_s1_3_s1_4_s1_5_s1_17_s1_22",
    "migration-kubernetes-agent-sandbox": "s2_1_s2_5_s2_6_s2_8",
    "migration-agent-sandbox": "s4_1_s4_2_s4_4_s4_5_s4_6",
    "migration-langchain-kubernetes": "s5_2_s5_16_s5_24_s5_25",
}


def _blocks() -> list[Any]:
    found = []
    for page in _PAGES:
        blocks = [code for kind, code in _BLOCK.findall(page.read_text()) if not kind.strip()]
        name = f"{page.stem}-{_ROWS[page.stem]}" if page.stem in _ROWS else page.stem
        found += [pytest.param(code, id=f"{name}-{i}") for i, code in enumerate(blocks, start=1)]
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


def test_the_guides_are_there() -> None:
    assert {page.stem for page in _PAGES} >= {*_ROWS, "python", "troubleshooting"}
    assert len(_blocks()) >= 16
