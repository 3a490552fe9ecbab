"""Tests of the counter, which decides whether CI passes."""

import io
import json
import os
import sys
import tempfile
import unittest
from contextlib import redirect_stdout
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))
import testsum


def go_events(*events: tuple) -> io.StringIO:
    lines = []
    for action, package, test, *output in events:
        event = {"Action": action, "Package": package}
        if test:
            event["Test"] = test
        if output:
            event["Output"] = output[0]
        lines.append(json.dumps(event) + "\n")
    return io.StringIO("".join(lines))


class Go(unittest.TestCase):
    def read(self, *events: tuple) -> testsum.Result:
        with redirect_stdout(io.StringIO()):
            return testsum.read_go(go_events(*events))

    def test_counts_leaves_only(self) -> None:
        got = self.read(
            ("pass", "p", "A/one"),
            ("pass", "p", "A/two"),
            ("pass", "p", "A"),
            ("pass", "p", "B"),
            ("pass", "p", ""),
        )
        self.assertEqual((got.passed, got.failed, got.skipped), (["p.A/one", "p.A/two", "p.B"], [], []))

    def test_a_failed_parent_counts_once(self) -> None:
        got = self.read(("fail", "p", "A/one"), ("pass", "p", "A/two"), ("fail", "p", "A"), ("fail", "p", ""))
        self.assertEqual((len(got.passed), got.failed), (1, ["p.A/one"]))

    def test_a_parent_that_fails_by_itself_counts(self) -> None:
        got = self.read(("pass", "p", "A/one"), ("fail", "p", "A"), ("fail", "p", ""))
        self.assertEqual(got.failed, ["p.A"])

    def test_a_package_that_fails_outside_of_tests_counts(self) -> None:
        got = self.read(("pass", "p", "A"), ("fail", "p", ""))
        self.assertEqual(got.failed, ["p"])

    def test_a_skip_has_its_reason(self) -> None:
        got = self.read(
            ("output", "p", "A", "=== RUN   A\n"),
            ("output", "p", "A", "    a_test.go:3: no runc here\n"),
            ("skip", "p", "A"),
            ("pass", "p", ""),
        )
        self.assertEqual(got.skipped, [("p.A", "no runc here")])

    def test_a_package_without_tests_is_no_skip(self) -> None:
        self.assertEqual(self.read(("skip", "p", "")).skipped, [])


class Reports(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = Path(folder.name) / "report"

    def test_junit(self) -> None:
        self.file.write_text(
            """<testsuites><testsuite>
            <testcase classname="t" name="ok"/>
            <testcase classname="t" name="bad"><failure message="x"/></testcase>
            <testcase classname="t" name="broken"><error message="x"/></testcase>
            <testcase classname="t" name="later"><skipped type="pytest.skip" message="no server"/></testcase>
            </testsuite></testsuites>"""
        )
        got = testsum.read_junit(self.file)
        self.assertEqual(
            (got.passed, got.failed, got.skipped),
            (["t::ok"], ["t::bad", "t::broken"], [("t::later", "no server")]),
        )

    def test_vitest(self) -> None:
        cases = [{"fullName": s, "status": s} for s in ("passed", "failed", "skipped", "todo")]
        suites = [
            {"name": str(testsum.ROOT / "a.test.ts"), "status": "failed", "assertionResults": cases},
            {
                "name": str(testsum.ROOT / "b.test.ts"),
                "status": "failed",
                "assertionResults": [],
                "message": "load",
            },
        ]
        self.file.write_text(json.dumps({"success": False, "testResults": suites}))
        with redirect_stdout(io.StringIO()):
            got = testsum.read_vitest(self.file)
        self.assertEqual(len(got.passed), 1)
        self.assertEqual(got.failed, ["a.test.ts failed", "b.test.ts"])
        self.assertEqual([name for name, _ in got.skipped], ["a.test.ts skipped", "a.test.ts todo"])


class Finish(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        root = Path(folder.name)
        (root / "scripts").mkdir()
        (root / "scripts" / "allowed-skips.txt").write_text("# why\ngo p.A: needs a GPU\n")
        self.enterContext(mock.patch.object(testsum, "ROOT", root))
        self.enterContext(mock.patch.object(testsum, "REPORTS", root / ".reports"))
        self.enterContext(mock.patch.dict(os.environ, {"SKIPS": "fail"}))

    def finish(self, result: testsum.Result) -> int:
        with redirect_stdout(io.StringIO()):
            return testsum.finish("go", result)

    def test_a_pass_passes(self) -> None:
        self.assertEqual(self.finish(testsum.Result(passed=["p.ok"])), 0)

    def test_a_failure_fails(self) -> None:
        self.assertEqual(self.finish(testsum.Result(passed=["p.ok"], failed=["p.A"])), 1)

    def test_nothing_run_fails(self) -> None:
        self.assertEqual(self.finish(testsum.Result()), 1)

    def test_only_a_listed_skip_with_its_reason_is_allowed(self) -> None:
        for skip, status in (
            (("p.A", "needs a GPU: none found"), 0),
            (("p.A", "no runc"), 1),
            (("p.AB", "needs a GPU"), 1),
        ):
            with self.subTest(skip):
                self.assertEqual(self.finish(testsum.Result(passed=["p.ok"], skipped=[skip])), status)

    def test_a_skip_is_only_told_without_strictness(self) -> None:
        with mock.patch.dict(os.environ, {"SKIPS": ""}):
            self.assertEqual(self.finish(testsum.Result(passed=["p.ok"], skipped=[("p.B", "x")])), 0)

    def test_total_is_the_last_line(self) -> None:
        self.finish(testsum.Result(passed=["x", "y", "z"], failed=["a"], skipped=[("b", "c")]))
        out = io.StringIO()
        with redirect_stdout(out):
            testsum.total()
        self.assertEqual(out.getvalue(), "3 passed, 1 failed, 1 skipped\n")

    def test_runs_of_one_name_add_up(self) -> None:
        self.finish(testsum.Result(passed=["x", "y"], failed=["a"]))
        self.finish(testsum.Result(passed=["x", "b"], failed=["y"]))
        self.finish(testsum.Result())
        out = io.StringIO()
        with redirect_stdout(out):
            testsum.total()
        self.assertEqual(out.getvalue(), "4 passed, 3 failed, 0 skipped\n")
        self.assertEqual((testsum.REPORTS / "go.passed.txt").read_text(), "b\nx\n")


if __name__ == "__main__":
    unittest.main()
