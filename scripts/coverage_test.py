"""Tests of the table of coverage, which must not claim what no test proved."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import coverage

TEXT = """
[S1]
package = "A package"
[S1-1]
seed = "one | 1"
ability = "first"
proof = "full"
on = ["server"]
tests = ["go: a.TestOne", "python: tests.test_a::test_one"]
[S1-12]
seed = "twelve"
ability = "twelfth"
proof = "none"
on = []
tests = []
note = "Nobody tried."
"""
PACKAGES = coverage.rows(TEXT)
PASSED = {"go: a.TestOne/sub", "python: tests.test_a::test_one[x]", "ts: other S1-12"}


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

    def test_the_page_shows_marks_parts_and_notes(self) -> None:
        text = coverage.page(PACKAGES)
        self.assertIn("| S1-1 | one \\| 1 | first | ✓ | server | `a.TestOne`<br>`test_a::test_one` |", text)
        self.assertIn("| S1-12 | twelve | twelfth | ✗ |  | *Nobody tried.* |", text)
        self.assertIn("| ✓ | the tests assert all of it | 1 |", text)

    def test_a_test_that_did_not_pass_is_an_error(self) -> None:
        self.assertEqual(coverage.unproved(PACKAGES, PASSED), [])
        self.assertEqual(
            coverage.unproved(PACKAGES, {*PASSED, "go: a.TestNew"}), [], "a newer test makes no row wrong"
        )
        self.assertEqual(
            coverage.unproved(PACKAGES, {"go: a.TestOneMore", *(PASSED - {"go: a.TestOne/sub"})}),
            ["S1-1: go: a.TestOne did not pass"],
        )

    def test_a_test_that_names_no_row_is_an_error(self) -> None:
        self.assertEqual(
            coverage.unproved(PACKAGES, {*PASSED, "go: b.TestS1_3"}), ["go: b.TestS1_3: there is no row S1-3"]
        )

    def test_rows_are_whole(self) -> None:
        for old, new in (
            ('proof = "full"', 'proof = "some"'),
            ('on = ["server"]', 'on = ["moon"]'),
            ('on = ["server"]', "on = []"),
            ('note = "Nobody tried."', ""),
            ('proof = "none"', 'proof = "part"'),
            ('proof = "full"', 'proof = "none"'),
        ):
            with self.subTest(new), self.assertRaises(SystemExit):
                coverage.rows(TEXT.replace(old, new))

    def test_tests_that_the_tree_lacks_are_named(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "a").mkdir()
            (root / "a" / "a_test.go").write_text("func TestOne(t *testing.T) {}\n")
            tests = root / "clients/python/tests"
            tests.mkdir(parents=True)
            (tests / "test_a.py").write_text("def test_one() -> None: ...\n")
            self.assertEqual(coverage.missing(PACKAGES, root), [])
            (root / "a" / "a_test.go").write_text("func TestOneMore(t *testing.T) {}\n")
            (tests / "test_a.py").unlink()
            self.assertEqual(
                coverage.missing(PACKAGES, root),
                [
                    "S1-1: go: a.TestOne: there is no such test",
                    "S1-1: python: tests.test_a::test_one: there is no such file",
                ],
            )

    def test_reads_what_passed(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "go.passed.txt").write_text(f"{coverage.MODULE}a.TestS1_1\n")
            (Path(folder) / "go.count.json").write_text('{"passed": 2}')
            self.assertEqual(coverage.passed(Path(folder)), {"go: a.TestS1_1"})

    def test_all_rows_are_there(self) -> None:
        packages = coverage.rows(coverage.ROWS.read_text(encoding="utf-8"))
        self.assertEqual([len(table) for table in packages.values()], [35, 9, 27, 16, 32])


if __name__ == "__main__":
    unittest.main()
