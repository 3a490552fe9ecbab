#!/usr/bin/env python3
"""Writes docs/coverage.md: which tests proved which ability that users of other
packages have.

usage: coverage.py write    writes docs/coverage.md
       coverage.py check    fails when docs/coverage.md is not what it would write

The rows are in docs/coverage.rows.tsv. A test covers a row when the row's id is
in its name (`S3-12` or `s3_12`) and it passed in the last run of all tests, as
scripts/testsum.py wrote it down in .reports/NAME.passed.txt. Standard library
only.
"""

import difflib
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / ".reports"
ROWS = ROOT / "docs" / "coverage.rows.tsv"
PAGE = ROOT / "docs" / "coverage.md"
ID = re.compile(r"(?:(?<![A-Za-z0-9])|(?<=Test))[Ss]([1-5])[-_](\d{1,2})(?!\d)")
MODULE = "github.com/sandgate/sandgate/"
# What a reader sees of a row's tests; the others are counted.
SHOWN = 3


def rows(text: str) -> dict[str, dict[str, str]]:
    """Package title to its rows, id to ability, in the file's order."""
    found: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        key, what = line.split("\t")
        if "-" in key:
            found[list(found)[-1]][key] = what
        else:
            found[what] = {}
    return found


def ids(name: str) -> set[str]:
    """The rows that a test's name claims."""
    return {f"S{package}-{int(number)}" for package, number in ID.findall(name)}


def covered(reports: Path) -> dict[str, set[str]]:
    """Row id to the tests that passed, each as `runner: name`."""
    tests: dict[str, set[str]] = defaultdict(set)
    for file in sorted(reports.glob("*.passed.txt")):
        runner = file.name.removesuffix(".passed.txt")
        for name in file.read_text(encoding="utf-8").splitlines():
            for key in ids(name):
                tests[key].add(f"{runner}: {name.removeprefix(MODULE)}")
    return tests


def page(packages: dict[str, dict[str, str]], tests: dict[str, set[str]]) -> str:
    known = {key for table in packages.values() for key in table}
    unknown = sorted(set(tests) - known)
    if unknown:
        sys.exit(f"coverage: tests name rows that do not exist: {', '.join(unknown)}")
    done = len(known & set(tests))
    out = [
        "# What users of other packages have",
        "",
        "Made by `make coverage` from the names of the tests that passed; not edited by hand.",
        "Each row is an ability that a user of one of five packages has today, and the tests",
        "that prove it here. A row without a test is **open**: it may work, and nothing proves it.",
        "",
        f"{done} of {len(known)} rows are covered.",
    ]
    for title, table in packages.items():
        out += ["", f"## {title}", "", "| row | ability | proved by |", "|---|---|---|"]
        for key, what in table.items():
            out.append(f"| {key} | {escape(what)} | {proof(sorted(tests.get(key, ())))} |")
    return "\n".join(out) + "\n"


def proof(names: list[str]) -> str:
    if not names:
        return "**open**"
    shown = "<br>".join(f"`{escape(name)}`" for name in names[:SHOWN])
    more = len(names) - SHOWN
    return f"{shown}<br>and {more} more" if more > 0 else shown


def escape(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    if sys.argv[1:] not in (["write"], ["check"]):
        sys.exit(__doc__)
    text = page(rows(ROWS.read_text(encoding="utf-8")), covered(REPORTS))
    if sys.argv[1] == "write":
        PAGE.write_text(text, encoding="utf-8")
        print(text.splitlines()[6])
        return 0
    have = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    if have == text:
        print(text.splitlines()[6])
        return 0
    sys.stdout.writelines(
        difflib.unified_diff(
            have.splitlines(True), text.splitlines(True), "docs/coverage.md", "tests that passed"
        )
    )
    print("docs/coverage.md is not what the tests prove: run all tests, then `make coverage`")
    return 1


if __name__ == "__main__":
    sys.exit(main())
