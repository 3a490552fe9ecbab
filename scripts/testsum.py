#!/usr/bin/env python3
"""Reads what a test runner reports, prints what went wrong, and counts.

usage: testsum.py go NAME            reads `go test -json` on standard input
       testsum.py junit NAME FILE    reads a JUnit XML report (pytest)
       testsum.py vitest NAME FILE   reads vitest's JSON report
       testsum.py total              adds up all counts since the last `reset`
       testsum.py reset              forgets all counts

Counts are kept in .reports/NAME.count.json, the names of what passed in
.reports/NAME.passed.txt; a NAME that is used again adds to both. Exits 1 on a
failure, on a run without a single test, and, with SKIPS=fail in the environment, on
a skipped test that scripts/allowed-skips.txt does not name. Standard library only,
so that it runs before anything is installed.
"""

import json
import os
import re
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / ".reports"


@dataclass
class Result:
    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)  # name, reason


def read_go(stream) -> Result:
    """Counts leaf tests. A package that fails outside any test counts as one."""
    result = Result()
    outcome: dict[tuple[str, str], str] = {}
    output: dict[tuple[str, str], list[str]] = defaultdict(list)
    builds: dict[str, list[str]] = defaultdict(list)
    packages: dict[str, dict] = {}
    for line in stream:
        try:
            event = json.loads(line)
        except ValueError:
            print(line, end="")
            continue
        action = event.get("Action")
        if action == "build-output":
            builds[event["ImportPath"]].append(event["Output"])
            continue
        if "Package" not in event:
            continue
        package, test = event["Package"], event.get("Test", "")
        if action == "output":
            output[package, test].append(event["Output"])
        elif action in ("pass", "fail", "skip"):
            if test:
                outcome[package, test] = action
            else:
                packages[package] = event
                told = "none" if action == "skip" else action  # no test files
                print(f"{told}  {event.get('Elapsed', 0):7.1f}s  {package}", flush=True)

    parents = {(package, test.rsplit("/", 1)[0]) for package, test in outcome if "/" in test}
    for (package, test), action in sorted(outcome.items()):
        leaf = (package, test) not in parents
        name = f"{package}.{test}"
        if action == "fail":
            if leaf or not any(
                p == package and t.startswith(f"{test}/") and a == "fail" for (p, t), a in outcome.items()
            ):
                result.failed.append(name)
                print(f"\n--- FAIL {name}\n{''.join(output[package, test]).rstrip()}")
        elif action == "skip":
            if leaf:
                result.skipped.append((name, go_skip_reason(output[package, test])))
        elif leaf:
            result.passed.append(name)
    for (package, test), lines in sorted(output.items()):
        # A test that began and never ended: a panic, a deadlock, an exit.
        if test and (package, test) not in outcome and (package, test) not in parents:
            print(f"\n--- DID NOT END {package}.{test}\n{''.join(lines).rstrip()}")
    for package, event in sorted(packages.items()):
        if event["Action"] == "fail" and not any(n.startswith(f"{package}.") for n in result.failed):
            result.failed.append(package)
            built = "".join(builds.get(event.get("FailedBuild", ""), []))
            print(f"\n--- FAIL {package}\n{built}{''.join(output[package, '']).rstrip()}")
    for path, lines in builds.items():
        if not any(e.get("FailedBuild") == path for e in packages.values()):
            print("".join(lines).rstrip())
    return result


def go_skip_reason(lines: list[str]) -> str:
    text = [m.group(1) for line in lines if (m := re.match(r"\s+\S+\.go:\d+: (.*)", line))]
    return " ".join(text).strip()


def read_junit(path: Path) -> Result:
    """Counts test cases. One that is expected to fail, and ran, is no skip."""
    result = Result()
    for case in ET.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            result.failed.append(name)
        elif skip is not None and skip.get("type") != "pytest.xfail":
            result.skipped.append((name, skip.get("message") or ""))
        else:
            result.passed.append(name)
    return result


def read_vitest(path: Path) -> Result:
    result = Result()
    report = json.loads(path.read_text(encoding="utf-8"))
    for suite in report["testResults"]:
        file = os.path.relpath(suite["name"], ROOT)
        for case in suite["assertionResults"]:
            name = f"{file} {case['fullName']}"
            if case["status"] == "passed":
                result.passed.append(name)
            elif case["status"] == "failed":
                result.failed.append(name)
            else:
                reason = case.get("meta", {}).get("reason") or case["status"]
                result.skipped.append((name, reason))
        if suite["status"] == "failed" and not any(
            c["status"] == "failed" for c in suite["assertionResults"]
        ):
            result.failed.append(file)
            print(f"\n--- FAIL {file}\n{suite.get('message', '')}")
    if not report["success"] and not result.failed:
        result.failed.append("errors outside of tests")
    return result


def allowed(runner: str, name: str, reason: str) -> bool:
    for line in (ROOT / "scripts" / "allowed-skips.txt").read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        test, separator, because = line.partition(": ")
        if separator and test == f"{runner} {name}" and reason.startswith(because.strip()):
            return True
    return False


def finish(runner: str, result: Result) -> int:
    bad = bool(result.failed)
    for name in result.failed:
        print(f"failed: {name}")
    for name, reason in result.skipped:
        known = allowed(runner, name, reason)
        print(f"skipped{' (allowed)' if known else ''}: {name}: {reason}")
        if not known and os.environ.get("SKIPS") == "fail":
            bad = True
    count = {"passed": len(result.passed), "failed": len(result.failed), "skipped": len(result.skipped)}
    if sum(count.values()) == 0:
        print(f"{runner}: no tests ran")
        count["failed"], bad = 1, True
    keep(runner, count, result)
    print(f"{runner}: {line_of(count)}")
    return 1 if bad else 0


def keep(runner: str, count: dict, result: Result) -> None:
    """Adds to what the runs of the same name since the last `reset` have counted."""
    REPORTS.mkdir(exist_ok=True)
    counts, passed = REPORTS / f"{runner}.count.json", REPORTS / f"{runner}.passed.txt"
    names = {" ".join(name.split()) for name in result.passed}
    if counts.exists():
        before = json.loads(counts.read_text(encoding="utf-8"))
        count = {key: n + before[key] for key, n in count.items()}
    if passed.exists():
        failed = {" ".join(name.split()) for name in result.failed}
        names |= set(passed.read_text(encoding="utf-8").splitlines()) - failed
    counts.write_text(json.dumps(count), encoding="utf-8")
    passed.write_text("".join(f"{name}\n" for name in sorted(names)), encoding="utf-8")


def line_of(count: dict) -> str:
    return f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped"


def total() -> int:
    sums = {"passed": 0, "failed": 0, "skipped": 0}
    for file in sorted(REPORTS.glob("*.count.json")):
        count = json.loads(file.read_text(encoding="utf-8"))
        for key in sums:
            sums[key] += count[key]
    print(line_of(sums))
    return 0


def main() -> int:
    match sys.argv[1:]:
        case ["go", name]:
            return finish(name, read_go(sys.stdin))
        case ["junit" | "vitest" as kind, name, file]:
            if not Path(file).exists():
                print(f"{name}: the runner wrote no report")
                return finish(name, Result())
            return finish(name, read_junit(Path(file)) if kind == "junit" else read_vitest(Path(file)))
        case ["total"]:
            return total()
        case ["reset"]:
            for pattern in ("*.count.json", "*.passed.txt"):
                for file in REPORTS.glob(pattern):
                    file.unlink()
            return 0
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    sys.exit(main())
