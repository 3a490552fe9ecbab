"""Tests of the check for words that the tree does not use."""

import importlib.util
import sys
import unittest
from pathlib import Path

spec = importlib.util.spec_from_file_location("lint_words", Path(__file__).parent / "lint-words.py")
assert spec is not None and spec.loader is not None
lint_words = importlib.util.module_from_spec(spec)
sys.modules["lint_words"] = lint_words
spec.loader.exec_module(lint_words)

RULES = lint_words.rules(
    "# a comment\nname\tseat\tcontainer\nword\ttakeRoom\tpool\nphrase\tsays so\treports it\n"
)


def found(path: str, text: str) -> list[tuple[int, str]]:
    return [(line, rule.pattern) for line, rule in lint_words.uses(path, text, RULES)]


class Words(unittest.TestCase):
    def test_parts_of_identifiers(self) -> None:
        self.assertEqual(lint_words.parts("HTTPServer_takeRoom2"), ("http", "server", "take", "room", "2"))

    def test_names_are_found_in_code_only(self) -> None:
        text = '// a seat\nvar agentSeat = "seat"\nfunc seats() {}\n'
        self.assertEqual(found("a.go", text), [(2, "seat")])
        self.assertEqual(found("a.md", "Take a seat.\n"), [])
        self.assertEqual(found("agent/seat.go", ""), [(0, "seat")])

    def test_words_are_found_everywhere(self) -> None:
        self.assertEqual(found("a.py", "x = 1\n# take_room waits\n"), [(2, "takeRoom")])
        self.assertEqual(found("a.md", "`takeRooms` and `takeRoomFor`\n"), [(1, "takeRoom")])

    def test_phrases_go_over_line_ends(self) -> None:
        self.assertEqual(found("a.go", "// The server Says\n\t// so.\n"), [(1, "says so")])
        self.assertEqual(found("a.md", "says something\n"), [])

    def test_an_unknown_kind_is_an_error(self) -> None:
        with self.assertRaises(ValueError):
            lint_words.rules("noun\tseat\tcontainer\n")

    def test_the_list_is_well_formed(self) -> None:
        self.assertGreater(len(lint_words.rules(lint_words.LIST.read_text(encoding="utf-8"))), 30)


if __name__ == "__main__":
    unittest.main()
