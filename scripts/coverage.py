#!/usr/bin/env python3
"""Writes docs/coverage.md: which tests prove what users of other packages have.

usage: coverage.py write    writes docs/coverage.md from docs/coverage.toml
       coverage.py lint     fails when the page is stale, or a test that the rows
                            name is not in the tree
       coverage.py check    fails when a test that the rows name did not pass in the
                            last run of all tests

docs/coverage.toml holds the rows. scripts/testsum.py writes what passed to
.reports/NAME.passed.txt. A test may carry the id of a row in its name, such as
S3-12 or s3_12; that proves nothing, but the row must exist. Standard library only.
"""

import re
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / ".reports"
ROWS = ROOT / "docs" / "coverage.toml"
PAGE = ROOT / "docs" / "coverage.md"
ID = re.compile(r"(?:(?<![A-Za-z0-9])|(?<=Test))[Ss]([1-5])[-_](\d{1,2})(?!\d)")
MODULE = "github.com/sandgate/sandgate/"
MARKS = {"full": "✓", "part": "◐", "none": "✗"}
PARTS = ("server", "cluster", "fake", "parser")
# What a page leaves out of a test's name.
SHORT = re.compile(r"^[a-z]+: (?:tests\.(?:integration\.)?|clients/ts/test/(?:server/)?|test/)?")


@dataclass(frozen=True)
class Row:
    key: str
    seed: str
    ability: str
    proof: str
    on: tuple[str, ...]
    tests: tuple[str, ...]
    note: str = ""


def rows(text: str) -> dict[str, list[Row]]:
    """Package title to its rows, in the file's order."""
    found: dict[str, list[Row]] = {}
    for key, table in tomllib.loads(text).items():
        if "-" not in key:
            found[table["package"]] = []
            continue
        row = Row(key, **{k: tuple(v) if isinstance(v, list) else v for k, v in table.items()})
        found[list(found)[-1]].append(row)
        wrong = [
            problem
            for problem, bad in (
                (f"proof {row.proof!r}", row.proof not in MARKS),
                (f"on {row.on}", not set(row.on) <= set(PARTS)),
                ("a proof without tests", row.proof != "none" and not row.tests),
                ("tests that prove nothing", row.proof == "none" and bool(row.tests)),
                ("tests on no part", bool(row.tests) != bool(row.on)),
                ("no note on what is missing", row.proof != "full" and not row.note),
            )
            if bad
        ]
        if wrong:
            sys.exit(f"coverage: {key}: {', '.join(wrong)}")
    return found


def ids(name: str) -> set[str]:
    """The rows that a test's name mentions."""
    return {f"S{package}-{int(number)}" for package, number in ID.findall(name)}


def passed(reports: Path) -> set[str]:
    """The tests that passed, each as `runner: name`."""
    names = set()
    for file in sorted(reports.glob("*.passed.txt")):
        runner = file.name.removesuffix(".passed.txt")
        for name in file.read_text(encoding="utf-8").splitlines():
            names.add(f"{runner}: {name.removeprefix(MODULE)}")
    return names


def is_or_holds(test: str, name: str) -> bool:
    """A name stands for its parameters and subtests, too."""
    return name == test or name.startswith((f"{test}[", f"{test}/", f"{test}: "))


def every(packages: dict[str, list[Row]]) -> list[Row]:
    return [row for table in packages.values() for row in table]


def unproved(packages: dict[str, list[Row]], names: set[str]) -> list[str]:
    """What the rows claim and the tests that passed do not prove."""
    known = {row.key for row in every(packages)}
    wrong = [f"{name}: there is no row {key}" for name in sorted(names) for key in sorted(ids(name) - known)]
    return wrong + [
        f"{row.key}: {test} did not pass"
        for row in every(packages)
        for test in row.tests
        if not any(is_or_holds(test, name) for name in names)
    ]


def missing(packages: dict[str, list[Row]], root: Path) -> list[str]:
    """Rows' tests that the tree does not have. Subtests are not looked for."""
    wrong = []
    for row in every(packages):
        for test in row.tests:
            runner, name = test.split(": ", 1)
            file, function = None, ""
            if runner in ("python", "dcode"):
                if m := re.match(r"(tests(?:\.[a-z_]+)+)(?:\.(\w+))?::(\w+)", name):
                    file = root / "clients/python" / (m[1].replace(".", "/") + ".py")
                    function = f"class {m[2]}(" if m[2] else f"def {m[3]}("
            elif runner == "typescript":
                if m := re.match(r"(clients/ts/\S+\.test\.ts) ", name):
                    file = root / m[1]
            elif m := re.match(r"(.*?)\.(Test\w+)", name):
                file, function = root / m[1], f"func {m[2]}("
            if file is None or not file.exists():
                wrong.append(f"{row.key}: {test}: there is no such file")
                continue
            files = file.glob("*_test.go") if file.is_dir() else [file]
            if function and not any(function in each.read_text(encoding="utf-8") for each in files):
                wrong.append(f"{row.key}: {test}: there is no such test")
    return wrong


def page(packages: dict[str, list[Row]]) -> str:
    marks = Counter(row.proof for row in every(packages))
    out = [
        "# What users of other packages have",
        "",
        "<!-- Written by `make coverage` from docs/coverage.toml. Do not edit. -->",
        "",
        "Each row is an ability that users of one of five packages have today, in the",
        "package's own words, then the same ability in Sandgate, and the tests that prove it.",
        "`make coverage-check` fails when one of these tests did not pass.",
        "",
        "| mark | meaning | rows |",
        "|---|---|---:|",
        f"| ✓ | the tests assert all of it | {marks['full']} |",
        f"| ◐ | the tests assert a part, or Sandgate deliberately differs | {marks['part']} |",
        f"| ✗ | no test asserts it | {marks['none']} |",
        f"| | all | {marks.total()} |",
        "",
        "*On* tells what the tests run against: a real **server** with real sandboxes, a real",
        "Kubernetes **cluster**, a **fake** server, or a **parser** of files and addresses.",
    ]
    for title, table in packages.items():
        out += [
            "",
            f"## {title}",
            "",
            "| row | there | here | | on | proved by |",
            "|---|---|---|---|---|---|",
        ]
        for row in table:
            proof = "<br>".join(f"`{escape(SHORT.sub('', test))}`" for test in row.tests)
            note = f"{'<br>' if proof else ''}*{escape(row.note)}*" if row.note else ""
            cells = (row.key, escape(row.seed), escape(row.ability), MARKS[row.proof], ", ".join(row.on))
            out.append(f"| {' | '.join(cells)} | {proof}{note} |")
    return "\n".join(out) + "\n"


def escape(text: str) -> str:
    return text.replace("|", "\\|")


def summary(packages: dict[str, list[Row]]) -> str:
    marks = Counter(row.proof for row in every(packages))
    return f"coverage: {marks.total()} rows: " + ", ".join(f"{marks[k]} {MARKS[k]}" for k in MARKS)


def main() -> int:
    if sys.argv[1:] not in (["write"], ["lint"], ["check"]):
        sys.exit(__doc__)
    packages = rows(ROWS.read_text(encoding="utf-8"))
    text, wrong = page(packages), []
    if sys.argv[1] == "write":
        PAGE.write_text(text, encoding="utf-8")
    elif sys.argv[1] == "lint":
        wrong = missing(packages, ROOT)
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
            wrong.append("docs/coverage.md is not what docs/coverage.toml gives: run `make coverage`")
    else:
        wrong = unproved(packages, passed(REPORTS))
    print(*wrong, summary(packages), sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
