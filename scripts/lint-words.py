#!/usr/bin/env python3
"""Fails when the tree uses a word that scripts/lint-words.txt replaces.

usage: lint-words.py             prints each use and the word to use in its place
       lint-words.py --count     prints how many uses each top-level folder has

Reads what git tracks: Go, Python, TypeScript, shell, proto and Markdown, without
generated code. Standard library only.
"""

import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "scripts" / "lint-words.txt"
SUFFIXES = {".go", ".py", ".ts", ".mts", ".sh", ".proto", ".md"}
GENERATED = ("gen/", "clients/ts/src/gen/", "clients/python/src/sandgate/_gen/")
# They quote other projects and older releases.
QUOTING = {"CHANGELOG.md", "docs/coverage.md", "scripts/lint-words.py", "scripts/lint_words_test.py"}

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# A comment or a string, the longest first: what is left of code without them is names.
C_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|`[^`]*`|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
PY_TEXT = re.compile(r'#[^\n]*|"""(?:\\.|[^\\])*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
TEXT = {".go": C_TEXT, ".ts": C_TEXT, ".mts": C_TEXT, ".proto": C_TEXT, ".py": PY_TEXT, ".sh": PY_TEXT}
# What may stand between two words of a phrase: a line's end and a comment's start.
GAP = r"[ \t]*\n?[ \t]*(?://+|#+|\*+)?[ \t]*"


@dataclass(frozen=True)
class Rule:
    kind: str
    pattern: str
    instead: str
    where: tuple[str, ...] = ("",)  # prefixes of paths

    @property
    def parts(self) -> tuple[str, ...]:
        return parts(self.pattern)

    @property
    def regexp(self) -> re.Pattern[str]:
        words = GAP.join(map(re.escape, self.pattern.split()))
        return re.compile(rf"\b{words}\b", re.IGNORECASE)


def rules(text: str) -> list[Rule]:
    found = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            kind, pattern, instead, *where = line.split("\t")
            if kind not in ("name", "word", "phrase"):
                raise ValueError(f"{line!r}: the kind is name, word or phrase")
            prefixes = tuple(where[0].split(",")) if where else ("",)
            found.append(Rule(kind, pattern, instead, prefixes))
    return found


@cache
def parts(identifier: str) -> tuple[str, ...]:
    """takeRoomFor and take_room_for are both take, room, for."""
    return tuple(part.lower() for part in PART.findall(identifier))


def contains(whole: tuple[str, ...], piece: tuple[str, ...]) -> bool:
    return any(whole[i : i + len(piece)] == piece for i in range(len(whole) - len(piece) + 1))


def blanked(text: str, pattern: re.Pattern[str]) -> str:
    """The text with comments and strings as spaces, so that lines keep their numbers."""
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def uses(path: str, text: str, wanted: list[Rule]) -> list[tuple[int, Rule]]:
    """The line and the rule of each use, in the order of lines."""
    suffix = Path(path).suffix
    wanted = [rule for rule in wanted if path.startswith(rule.where)]
    places = {(-1, rule) for rule in wanted if rule.kind != "phrase" and contains(parts(path), rule.parts)}
    code = blanked(text, TEXT[suffix]) if suffix in TEXT else ""
    for kind, searched in (("name", code), ("word", text)):
        of_kind = [rule for rule in wanted if rule.kind == kind]
        first = {rule.parts[0] for rule in of_kind}
        for match in IDENTIFIER.finditer(searched):
            pieces = parts(match[0])
            if not first.isdisjoint(pieces):
                places |= {(match.start(), rule) for rule in of_kind if contains(pieces, rule.parts)}
    for rule in wanted:
        if rule.kind == "phrase" and rule.pattern.split()[0] in text.lower():
            places |= {(match.start(), rule) for match in rule.regexp.finditer(text)}
    found = {(text.count("\n", 0, at) + 1 if at >= 0 else 0, rule) for at, rule in places}
    return sorted(found, key=lambda use: (use[0], use[1].pattern))


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    names = listed.stdout.decode().split("\0")
    return [
        name
        for name in names
        if Path(name).suffix in SUFFIXES and name not in QUOTING and not name.startswith(GENERATED)
    ]


def main() -> int:
    if sys.argv[1:] not in ([], ["--count"]):
        sys.exit(__doc__)
    wanted = rules(LIST.read_text(encoding="utf-8"))
    counts: Counter[str] = Counter()
    for path in tracked():
        file = ROOT / path
        if not file.is_file():
            continue
        for line, rule in uses(path, file.read_text(encoding="utf-8"), wanted):
            folder = path.split("/")[0] if "/" in path else "."
            counts[folder] += 1
            if not sys.argv[1:]:
                print(f"{path}:{line}: {rule.pattern!r}: use {rule.instead!r}")
    if sys.argv[1:]:
        for folder, count in counts.most_common():
            print(f"{count:6} {folder}")
    if counts:
        print(f"lint-words: {sum(counts.values())} uses of words that scripts/lint-words.txt replaces")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
