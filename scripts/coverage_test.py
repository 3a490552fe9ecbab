"""Tests of the table of coverage, which must not claim what no test proved."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import coverage

PACKAGES = {"A package": {"S1-1": "one", "S1-12": "twelve"}}


class Coverage(unittest.TestCase):
    def test_ids_of_every_language(self) -> None:
        for name, want in (
            ("test.TestSuite/S3-12_list_with_a_cursor", {"S3-12"}),
            ("tests.test_provider::test_s5_16_stale[s1-2]", {"S5-16", "S1-2"}),
            ("provider.test.ts S3-10, S3-11 get or create", {"S3-10", "S3-11"}),
            ("TestS5_07_image", {"S5-7"}),
            ("TestSHA1_12 ps1-2 s9-1 s1-123 C3_4", set()),
        ):
            with self.subTest(name):
                self.assertEqual(coverage.ids(name), want)

    def test_a_row_without_a_test_is_open(self) -> None:
        text = coverage.page(PACKAGES, {"S1-12": {"go: a", "go: b", "go: c", "go: d"}})
        self.assertIn("| S1-1 | one | **open** |", text)
        self.assertIn("| S1-12 | twelve | `go: a`<br>`go: b`<br>`go: c`<br>and more |", text)
        self.assertIn("1 of 2 rows are covered.", text)

    def test_a_page_that_claims_too_much_is_an_error(self) -> None:
        tests = {"S1-12": {"go: a", "go: b|c", "e2e: d", "ts: e"}}
        text = coverage.page(PACKAGES, tests)
        self.assertEqual(coverage.unproved(text, PACKAGES, tests), [])
        more = {"S1-12": {*tests["S1-12"], "go: new"}, "S1-1": {"go: new"}}
        self.assertEqual(coverage.unproved(text, PACKAGES, more), [], "a newer test makes no page wrong")
        self.assertEqual(
            coverage.unproved(text, PACKAGES, {"S1-12": {"go: a", "e2e: d", "ts: e"}}),
            ["S1-12: go: b\\|c did not pass"],
        )
        self.assertEqual(
            coverage.unproved(text.replace("| S1-12 |", "| S1-2 |"), PACKAGES, tests),
            ["S1-12: the page has no such row", "the page's sum is wrong: its rows say 0 of 2"],
        )

    def test_a_row_that_does_not_exist_is_an_error(self) -> None:
        with self.assertRaises(SystemExit):
            coverage.page(PACKAGES, {"S1-3": {"go: a"}})

    def test_reads_what_passed(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            module = "github.com/sandgate/sandgate/"
            (Path(folder) / "go.passed.txt").write_text(f"{module}a.TestS1_1\n{module}a.TestOther\n")
            (Path(folder) / "go.count.json").write_text('{"passed": 2}')
            self.assertEqual(coverage.covered(Path(folder)), {"S1-1": {"go: a.TestS1_1"}})

    def test_all_rows_are_there(self) -> None:
        packages = coverage.rows(coverage.ROWS.read_text(encoding="utf-8"))
        self.assertEqual([len(table) for table in packages.values()], [35, 9, 27, 16, 32])


if __name__ == "__main__":
    unittest.main()
