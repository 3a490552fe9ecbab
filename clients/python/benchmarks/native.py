"""Native file methods beside deepagents' inherited scripts, in one sandbox.

    python benchmarks/native.py [--rounds 30] [--must 10] [--json]

"grep" searches all 200 files, "grep 20" one directory of 20, "grep *" those that
match a glob with a "/". Both kinds go through the same client, server and sandbox;
they differ only in how a method does its work. The rounds alternate, and each
figure is a median. Needs a server at SANDGATE_ADDRESS. Exits with 1 when a ratio is
below `--must`, or plain grep is not faster: it is beside GNU grep, not Python
(docs/adr/0011).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import TYPE_CHECKING

from deepagents.backends.sandbox import BaseSandbox

from sandgate.deepagents import SandgateSandbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse

_DIRECTORIES, _FILES, _LINES = 10, 20, 200
_ROOT = "/workspace/tree"
_PLAIN_GREP = ("grep", "grep 20")


class Inherited(BaseSandbox):
    """What every backend has that gives nothing but commands and transfers."""

    def __init__(self, native: SandgateSandbox) -> None:
        self._native = native

    @property
    def id(self) -> str:
        """The sandbox's id."""
        return self._native.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command."""
        return self._native.execute(command, timeout=timeout)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files."""
        return self._native.upload_files(files)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files."""
        return self._native.download_files(paths)


def _work(backend: BaseSandbox, edited: str) -> dict[str, Callable[[], object]]:
    return {
        "grep": lambda: backend.grep("needle", _ROOT).matches,
        "grep 20": lambda: backend.grep("needle", f"{_ROOT}/d1").matches,
        "grep *": lambda: backend.grep("needle", _ROOT, "d1/*.txt").matches,
        "glob": lambda: backend.glob("**/f1*.txt", _ROOT).matches,
        "read": lambda: backend.read(f"{_ROOT}/d3/f5.txt", 10, 50).file_data,
        "edit": lambda: backend.edit(edited, "line 7 ", "line 7 ").occurrences,
        "ls": lambda: backend.ls(f"{_ROOT}/d1").entries,
        "write": lambda: backend.write(f"{edited}.new", "x\n" * 100).path,
    }


def _fill(backend: SandgateSandbox) -> None:
    body = "".join(f"line {n} of a file that is searched\n" for n in range(_LINES))
    files = []
    for d in range(_DIRECTORIES):
        for f in range(_FILES):
            content = body + ("a needle\n" if f == d else "")
            files.append((f"{_ROOT}/d{d}/f{f}.txt", content.encode()))
    files += [(f"/workspace/{name}", body.encode()) for name in ("native", "inherited")]
    failed = [response for response in backend.upload_files(files) if response.error]
    if failed:
        raise RuntimeError(f"the files could not be written: {failed[0]}")


def measure(backend: SandgateSandbox, rounds: int) -> dict[str, tuple[float, float]]:
    """Return for each method the median seconds, native and inherited."""
    _fill(backend)
    native = _work(backend, "/workspace/native")
    inherited = _work(Inherited(backend), "/workspace/inherited")
    figures = {}
    for name, work in native.items():
        times: dict[str, list[float]] = {"native": [], "inherited": []}
        for kind, run in (("native", work), ("inherited", inherited[name])):
            if not run():
                raise RuntimeError(f"{name}, {kind}, found nothing")
        for _ in range(rounds):
            for kind, run in (("native", work), ("inherited", inherited[name])):
                begun = time.perf_counter()
                run()
                times[kind].append(time.perf_counter() - begun)
        figures[name] = statistics.median(times["native"]), statistics.median(times["inherited"])
    return figures


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--must", type=float, default=10.0, help="ratio below which it fails; 0: never")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    with SandgateSandbox.create(idle_ttl=600) as backend:
        figures = measure(backend, options.rounds)
    ratios = {name: inherited / native for name, (native, inherited) in figures.items()}
    if options.json:
        print(json.dumps({"rounds": options.rounds, "seconds": figures, "ratios": ratios}))
    else:
        print(f"{'method':8}{'native':>12}{'inherited':>12}{'ratio':>8}")
        for name, (native, inherited) in figures.items():
            print(f"{name:8}{native * 1e3:9.2f} ms{inherited * 1e3:9.2f} ms{ratios[name]:7.1f}x")
    musts = {name: min(options.must, 1.0) if name in _PLAIN_GREP else options.must for name in ratios}
    return 1 if any(ratios[name] < must for name, must in musts.items()) else 0


if __name__ == "__main__":
    sys.exit(main())
