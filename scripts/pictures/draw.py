#!/usr/bin/env python3
"""Writes docs/pictures/*.svg; with a folder as its argument, writes there.

Each picture is a module beside this one. Standard library only.
"""

import importlib
import sys
from pathlib import Path

PICTURES = (
    "architecture",
    "command",
    "states",
    "network",
    "protections",
    "bench",
    "load",
    "soak",
    "dashboard",
)


def main() -> int:
    folder = Path(sys.argv[1] if sys.argv[1:] else Path(__file__).resolve().parents[2] / "docs" / "pictures")
    folder.mkdir(parents=True, exist_ok=True)
    for name in PICTURES:
        (folder / f"{name}.svg").write_text(
            importlib.import_module(name).picture().render(), encoding="utf-8"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
