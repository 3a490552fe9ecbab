"""Native results beside those of the scripts that deepagents would run.

The same call goes to the backend and to deepagents' own `BaseSandbox` on the
same sandbox. Where the two differ on purpose, the test says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

from sandgate.deepagents import SandgateSandbox

_ROOT = "/workspace/tree"


class Scripts(BaseSandbox):
    """deepagents' own implementation, on our commands and transfers."""

    def __init__(self, backend: SandgateSandbox) -> None:
        self._backend = backend

    @property
    def id(self) -> str:
        return self._backend.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        return self._backend.execute(command, timeout=timeout)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return self._backend.upload_files(files)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return self._backend.download_files(paths)


_FILES = {
    "a.txt": b"one\ntwo\nthree\n",
    "b.py": b"import os\nprint('two')\n",
    "no-newline": b"one\ntwo",
    "crlf.txt": b"one\r\ntwo\r\nthree\r\n",
    "cr.txt": b"one\rtwo\rthree",
    "blank.txt": b"\n\n\n",
    "empty.txt": b"",
    "latin1.txt": "caf\xe9\n".encode("latin-1"),
    "unicode-é€😀.txt": "é€😀\nzwei\n".encode(),
    "nul.bin": b"a\0two\0b",
    "pic.png": bytes(range(256)),
    "empty.png": b"",
    "big.png": b"x" * 512_001,
    "edge.png": b"x" * 512_000,
    "long-line.txt": b"x" * 10_000 + b"\nend\n",
    "spaces in name.txt": b"two words\n",
    "colon:name.txt": b"two\n",
    "src/app/main.py": b"def two():\n    return 2\n",
    "src/app/.hidden.py": b"two = 2\n",
    "src/lib/util.js": b"const two = 2;\n",
    ".github/workflows/ci.yml": b"name: two\n",
    ".git/objects/x": b"two\n",
    "node_modules/m/index.js": b"two\n",
    "brace{x}.txt": b"two\n",
    "class[1].txt": b"two\n",
}


@pytest.fixture(scope="module")
def both(backend: SandgateSandbox) -> tuple[SandgateSandbox, Scripts]:
    uploaded = backend.upload_files([(f"{_ROOT}/{name}", data) for name, data in _FILES.items()])
    assert [r.error for r in uploaded] == [None] * len(_FILES)
    prepared = backend.execute(
        f"cd {_ROOT} && mkdir -p void locked/in && touch locked/in/f && seq 100000 > numbers && mkfifo pipe"
        " && ln -s src link-dir && ln -s a.txt link.txt && ln -s nowhere dangling"
        " && ln -s /etc/passwd outside"
        " && echo secret > secret && chmod 000 secret locked"
    )
    assert prepared.exit_code == 0, prepared.output
    return backend, Scripts(backend)


def _same(both: tuple[SandgateSandbox, Scripts], call: Callable[[BaseSandbox], Any]) -> Any:
    ours, theirs = call(both[0]), call(both[1])
    assert ours == theirs
    return ours


@pytest.mark.parametrize("name", ["", "/", "void", "src", "src/", "a.txt", "none", "locked", "link-dir"])
def test_s4_12_ls(both: tuple[SandgateSandbox, Scripts], name: str) -> None:
    # A directory has no order of its own; ours is sorted.
    def listed(backend: BaseSandbox) -> Any:
        result = backend.ls(f"{_ROOT}/{name}".rstrip("/") + ("/" if name.endswith("/") else ""))
        if result.entries is not None:
            result.entries.sort(key=lambda entry: entry["path"])
        return result

    _same(both, listed)


_READABLE = sorted(
    {*_FILES, "none", "void", "secret", "link.txt", "dangling", "pipe", "locked/in/f", "numbers", "link-dir"}
)


@pytest.mark.parametrize("name", _READABLE)
@pytest.mark.parametrize(
    ("offset", "limit"), [(0, 2000), (1, 1), (2, 5), (3, 1), (0, 0), (-1, 2), (1000, 10), (0, -1)]
)
def test_s4_12_read(both: tuple[SandgateSandbox, Scripts], name: str, offset: int, limit: int) -> None:
    _same(both, lambda backend: backend.read(f"{_ROOT}/{name}", offset, limit))


def test_read_of_a_page_that_is_too_large(both: tuple[SandgateSandbox, Scripts]) -> None:
    # Theirs may show part of a line and give it again with the next page; ours
    # ends at a line's end.
    ours, theirs = (b.read(f"{_ROOT}/numbers", 0, 100_000) for b in both)
    assert ours.start_line == theirs.start_line == 1
    assert ours.end_line == theirs.end_line
    assert ours.next_offset == theirs.next_offset == ours.end_line
    assert ours.total_lines == theirs.total_lines
    assert ours.file_data is not None
    assert theirs.file_data is not None
    assert "[Output was truncated due to size limits." in ours.file_data["content"]
    assert ours.file_data["content"].split("\n\n[")[0] in theirs.file_data["content"]


def test_pages_of_a_large_file_are_the_file(both: tuple[SandgateSandbox, Scripts]) -> None:
    ours, offset, lines = both[0], 0, list[str]()
    while True:
        page = ours.read(f"{_ROOT}/numbers", offset, 7001)
        assert page.file_data is not None
        lines += page.file_data["content"].split("\n")
        if page.next_offset is None:
            break
        offset = page.next_offset
    assert lines == [str(i) for i in range(1, 100_001)]


_EDITS: list[tuple[bytes, str, str, bool]] = [
    (b"one two\n", "two", "2", False),
    (b"two two\n", "two", "2", False),
    (b"two two\n", "two", "2", True),
    (b"one\r\ntwo\r\n", "one\ntwo", "1\n2", False),
    (b"one\r\ntwo\r\n", "one\r\ntwo", "1\n2", False),
    (b"one\ntwo\n", "one\r\ntwo", "1\r\n2", False),
    (b"one\r\none\n", "one\n", "1\n", True),
    (b"aaaa", "aa", "b", True),
    (b"x", "y", "z", False),
    (b"x", "x", "x", False),
    (b"x", "", "z", False),
    (b"", "x", "z", False),
    (b"caf\xe9 x", "x", "z", False),
    (b"x" * 70_000 + b"end", "x" * 70_000, "y", False),
    ("é€\0😀".encode(), "€\0", "", False),
]


@pytest.mark.parametrize("index", range(len(_EDITS)))
def test_s4_12_edit(both: tuple[SandgateSandbox, Scripts], index: int) -> None:
    content, old, new, every = _EDITS[index]
    path = f"/workspace/edit-{index}"

    def edited(backend: BaseSandbox) -> Any:
        both[0].upload_files([(path, content)])
        return backend.edit(path, old, new, every), both[0].download_files([path])

    _same(both, edited)


@pytest.mark.parametrize("name", ["none", "void", "secret", "locked/in/f", "pipe", "dangling"])
def test_edit_of_what_cannot_be_edited(both: tuple[SandgateSandbox, Scripts], name: str) -> None:
    _same(both, lambda backend: backend.edit(f"{_ROOT}/{name}", "a", "b"))


def test_edit_keeps_the_mode(both: tuple[SandgateSandbox, Scripts]) -> None:
    def edited(backend: BaseSandbox) -> Any:
        both[0].execute("cd /workspace && echo one > mode && chmod 751 mode")
        return backend.edit("/workspace/mode", "one", "two"), both[0].execute("stat -c %a /workspace/mode")

    _same(both, edited)


_TEXTS = ["two", "TWO", "two()", "t.o", ".*", "\\", "é€", "zwei", " ", "none", "one\nthree"]


@pytest.mark.parametrize(
    ("pattern", "glob"),
    [(p, g) for p in _TEXTS for g in (None, "*.py", "*.txt", "u*", ".*")] + [("", "[ab].*")],
)
def test_s4_12_grep(both: tuple[SandgateSandbox, Scripts], pattern: str, glob: str | None) -> None:
    ours, theirs = (b.grep(pattern, _ROOT, glob) for b in both)
    assert ours.error == theirs.error
    # Theirs is silent about what it may not read.
    assert (ours.truncated, theirs.truncated) == (True, False)

    # Theirs has them in the file system's order and leaves "\r" at a line's end.
    # Its wildcards match names that begin with a dot, which deepagents' own
    # description of `glob` excludes.
    def lines(matches: Any) -> list[tuple[str, int, str]]:
        shown = [m for m in matches if glob is None or glob[0] == "." or "/." not in m["path"]]
        return sorted((m["path"], m["line"], m["text"].rstrip("\r")) for m in shown)

    assert lines(ours.matches) == lines(theirs.matches)


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("*.{py,js}", ["b.py", "node_modules/m/index.js", "src/app/main.py", "src/lib/util.js"]),
        ("src/**/*.py", ["src/app/main.py"]),
        ("/*.py", ["b.py"]),
        ("**/*.yml", []),
        ("*.yml", [".github/workflows/ci.yml"]),
    ],
)
def test_grep_with_globs_that_the_scripts_cannot(
    both: tuple[SandgateSandbox, Scripts], glob: str, names: list[str]
) -> None:
    result = both[0].grep("two", _ROOT, glob)
    found = sorted({m["path"].removeprefix(f"{_ROOT}/") for m in result.matches or []})
    assert (result.error, found) == (None, names)


@pytest.mark.parametrize("count", [0, 1, 3, 1000])
def test_grep_with_a_cap(both: tuple[SandgateSandbox, Scripts], count: int) -> None:
    # Which matches come first is not the same, how many and whether all is.
    ours, theirs = (b.grep("two", f"{_ROOT}/src", None, max_count=count) for b in both)
    assert (len(ours.matches or []), ours.truncated) == (len(theirs.matches or []), theirs.truncated)


def test_grep_of_one_file_and_of_an_excluded_directory(both: tuple[SandgateSandbox, Scripts]) -> None:
    _same(both, lambda backend: backend.grep("two", f"{_ROOT}/a.txt"))
    _same(both, lambda backend: backend.grep("two", f"{_ROOT}/.git"))


def test_grep_where_the_scripts_are_silent(both: tuple[SandgateSandbox, Scripts]) -> None:
    ours, theirs = (b.grep("two", f"{_ROOT}/none") for b in both)
    assert theirs.matches == []
    assert ours.error == f"Path '{_ROOT}/none': path_not_found"


_GLOBS = [
    "*.py", "*", "**", "**/*", "**/*.py", "src/**/*.py", "src/*", "/*.txt", "/src/**", "*.yml", "**/*.yml",
    ".github/**", "**/.hidden.py", ".*", "a.???", "[ab].*", "[!a].*", "[^a].*", "*.{py,js}", "{a,b}.{txt,py}",
    "{src,void}/**/*.{py,{js,ts}}", "src//app/*.py", "src/", "../*", "src/../*", "a..b", "nothing*",
    "class[[]1].txt",
    "brace{x}.txt", "link.txt", "dangling", "outside", "link-dir/*", "*é*", "spaces in*", "colon:*", "pipe",
    "locked/**", "{" * 12 + ",}" * 12, "[", "a[", "**/app/**", "src/**/", "node_modules/**/*.js", "", "/",
]  # fmt: skip


@pytest.mark.parametrize("pattern", _GLOBS)
def test_s4_12_glob(both: tuple[SandgateSandbox, Scripts], pattern: str) -> None:
    ours, theirs = (b.glob(pattern, _ROOT) for b in both)
    assert ours.error == theirs.error
    if ours.matches is None:
        return
    assert ours.matches == sorted(theirs.matches or [], key=lambda match: match["path"])
    # Both say that a directory could not be read; ours only where the pattern
    # leads there.
    assert not ours.truncated or ours.truncation_reason == "unreadable"
    assert theirs.truncation_reason == "unreadable"


def test_glob_says_what_it_could_not_read(both: tuple[SandgateSandbox, Scripts]) -> None:
    _same(both, lambda backend: backend.glob("nothing", _ROOT))


@pytest.mark.parametrize(
    "root", ["/workspace/tree/src", "/workspace/tree/src/", "workspace/tree/src", "/none"]
)
def test_glob_roots(both: tuple[SandgateSandbox, Scripts], root: str) -> None:
    _same(both, lambda backend: backend.glob("*.js", root))


def test_glob_roots_that_are_no_directory(both: tuple[SandgateSandbox, Scripts]) -> None:
    _same(both, lambda backend: backend.glob("*", f"{_ROOT}/a.txt"))
    _same(both, lambda backend: backend.glob("*", f"{_ROOT}/locked"))


@pytest.mark.parametrize(
    "script", ["touch {p}", "mkdir -p {p}/a/b", "ln -s nowhere {p}", "ln -s /usr {p}", "true"]
)
def test_delete(both: tuple[SandgateSandbox, Scripts], script: str) -> None:
    path = "/workspace/deleted"

    def deleted(backend: BaseSandbox) -> Any:
        both[0].execute(script.format(p=path))
        return backend.delete(path), both[0].execute(f"ls -d {path} 2>&1").exit_code

    _same(both, deleted)


def test_s5_23_write(both: tuple[SandgateSandbox, Scripts]) -> None:
    def written(backend: BaseSandbox) -> Any:
        path = "/workspace/new/deep/file"
        first = backend.write(path, "one\n")
        second = backend.write(path, "two\r\n\0é")
        return first, second, both[0].download_files([path]), both[0].delete("/workspace/new").error

    _same(both, written)
    # Theirs reports what its preflight script printed; ours names the code.
    assert both[0].write(f"{_ROOT}/a.txt/x", "y").error == (
        f"Failed to write file '{_ROOT}/a.txt/x': invalid_path"
    )
    assert both[0].write("/usr/x", "y").error == "Failed to write file '/usr/x': permission_denied"


@pytest.mark.parametrize(
    "name", ["a.txt", "void", "secret", "a.txt/x", "link.txt", "dangling", "pipe", "new"]
)
@pytest.mark.parametrize("content", [b"", b"\xff\0\r\n"])
async def test_one_file_is_uploaded_as_one_of_several(
    both: tuple[SandgateSandbox, Scripts], name: str, content: bytes
) -> None:
    # Alone it goes in one message, beside another one in a stream.
    backend, base = both[0], "/workspace/uploads"
    prepared = (
        f"rm -rf {base} && mkdir -p {base}/void && cd {base} && echo old > a.txt && chmod 751 a.txt"
        " && touch secret && chmod 000 secret && mkfifo pipe && ln -s a.txt link.txt && ln -s lost dangling"
    )
    seen = []
    for files in ([(f"{base}/{name}", content)], [(f"{base}/{name}", content), (f"{base}/b", b"b")]):
        for send in (backend.aupload_files, None):
            assert backend.execute(prepared).exit_code == 0
            result = (await send(files) if send else backend.upload_files(files))[0]
            found = backend.execute(
                f"cd {base}; find . ! -name b -printf '%p %y %m %s %U %l\\n' | grep -v '^\\. ' | sort"
            )
            seen.append((result, found.output, backend.download_files([f"{base}/{name}"])))
    assert seen == seen[:1] * 4
