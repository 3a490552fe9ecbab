#!/usr/bin/env python3
"""Writes docs/coverage.md: which tests proved which ability that users of other
packages have.

usage: coverage.py write    writes docs/coverage.md
       coverage.py check    fails when docs/coverage.md claims what no test proved:
                            every test that it names must have passed

The rows are in docs/coverage.rows.tsv. A test covers a row when the row's id is
in its name (`S3-12` or `s3_12`) and it passed in the last run of all tests, as
scripts/testsum.py wrote it down in .reports/NAME.passed.txt. Standard library
only.
"""

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
# What a reader sees of a row's tests.
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
    return f"{shown}<br>and more" if len(names) > SHOWN else shown


def escape(text: str) -> str:
    return text.replace("|", "\\|")


def unproved(text: str, packages: dict[str, dict[str, str]], tests: dict[str, set[str]]) -> list[str]:
    """What a page claims and the tests that passed do not prove."""
    wrong = []
    lines = {m[1]: line for line in text.splitlines() if (m := re.match(r"\| (S\d-\d+) \|", line))}
    done = 0
    for key in (key for table in packages.values() for key in table):
        line = lines.get(key, "")
        cell = line.removesuffix(" |").rsplit(" | ", 1)[-1]
        claimed = [part[1:-1] for part in cell.split("<br>") if part.startswith("`")]
        done += bool(claimed)
        if not claimed and "**open**" not in line:
            wrong.append(f"{key}: the page has no such row")
        passed = {escape(name) for name in tests.get(key, ())}
        wrong += [f"{key}: {name} did not pass" for name in claimed if name not in passed]
    total = sum(map(len, packages.values()))
    if f"{done} of {total} rows are covered." not in text.splitlines():
        wrong.append(f"the page's sum is wrong: its rows say {done} of {total}")
    return wrong


def main() -> int:
    if sys.argv[1:] not in (["write"], ["check"]):
        sys.exit(__doc__)
    packages, tests = rows(ROWS.read_text(encoding="utf-8")), covered(REPORTS)
    text = page(packages, tests)  # also refuses names of rows that do not exist
    if sys.argv[1] == "write":
        PAGE.write_text(text, encoding="utf-8")
        print(text.splitlines()[6])
        return 0
    have = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    wrong = unproved(have, packages, tests)
    if not wrong:
        print(have.splitlines()[6])
        return 0
    print(*wrong, sep="\n")
    print("docs/coverage.md claims what the tests do not prove: run all tests, then `make coverage`")
    return 1


if __name__ == "__main__":
    sys.exit(main())
