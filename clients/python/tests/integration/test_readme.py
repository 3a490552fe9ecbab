"""The README's blocks and the example, as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_PROJECT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (_PROJECT / "README.md").read_text(), re.DOTALL)
_EXAMPLE = _PROJECT.parents[1] / "examples" / "python" / "agent.py"
_KEYLESS = [block for block in BLOCKS if "anthropic:" not in block]


def _run(address: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "SANDGATE_ADDRESS": address}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=_PROJECT,
    )


def scripted(block: str) -> str:
    """Put a scripted model in the place of one that needs a key."""
    if "anthropic:" not in block:
        return block
    imported = "from tests.scripted import ScriptedModel\n"
    return imported + re.sub(r'"anthropic:[^"]*"', 'ScriptedModel(script=("echo hello > f", "cat f"))', block)


def test_there_are_blocks() -> None:
    assert (len(BLOCKS), len(_KEYLESS)) == (7, 4)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b not in _KEYLESS])
def test_blocks_that_need_a_key(address: str, block: str) -> None:
    done = _run(address, "-W", "error::DeprecationWarning", "-c", scripted(block))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", _KEYLESS)
def test_blocks(address: str, block: str) -> None:
    done = _run(address, "-c", block)
    assert done.returncode == 0, done.stderr
    assert "hello" in done.stdout or "out" in done.stdout


def test_example(address: str) -> None:
    done = _run(address, str(_EXAMPLE))
    assert done.returncode == 0, done.stdout + done.stderr
    # Told while the command ran, before the tool's own result.
    assert done.stdout.index("2\n3\n5\n") < done.stdout.index("execute returned:")
    assert done.stdout.endswith("agent: The sum is 328.\n")
