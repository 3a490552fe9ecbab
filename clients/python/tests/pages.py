"""The blocks of pages, which tests run, and what the pages say that they print."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parents[3] / "docs"
_STEP = re.compile(r"^```(\w+)\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", re.DOTALL | re.MULTILINE)


class Step(NamedTuple):
    """A block, and what it prints: the block of text after it, if there is one."""

    kind: str
    code: str
    want: str


def steps(text: str) -> list[Step]:
    return [Step(*found) for found in _STEP.findall(text)]


def check(step: Step, printed: str) -> None:
    """Compare what a block printed with its page, where `…` stands for anything."""
    pattern = ".*".join(map(re.escape, step.want.split("…")))
    matches = not step.want or re.fullmatch(pattern, printed, re.DOTALL)
    assert matches, f"{step.code}\nprinted\n{printed}\nand not\n{step.want}"
