"""`build_image` and its async twin, with programs that stand for `sandgate`."""

from __future__ import annotations

import asyncio
import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import pytest

from sandgate import (
    BuildError,
    DeadlineExceededError,
    InvalidRequestError,
    abuild_image,
    build_image,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_STOPPING = "trap 'echo stopped >\"{done}\"; exit 143' TERM; echo running >&2; while :; do sleep 0.01; done"


class _Case(TypedDict, total=False):
    context: str
    options: dict[str, Any]
    arguments: list[str]


_CASES: dict[str, _Case] = json.loads((Path(__file__).parents[2] / "build.json").read_text())


def _abuild(*args: Any, **options: Any) -> str:
    return asyncio.run(abuild_image(*args, **options))


both = pytest.mark.parametrize("build", [build_image, _abuild])


@pytest.fixture
def stub(tmp_path: Path) -> Callable[[str], Path]:
    """Write a program that stands for sandgate, of any version."""

    def write(script: str) -> Path:
        path = tmp_path / "sandgate"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return write


@both
@pytest.mark.parametrize("title", _CASES)
def test_arguments(build: Callable[..., str], title: str, stub: Callable[[str], Path]) -> None:
    case = _CASES[title]
    program = stub("printf '%s\\n' \"$@\" >&2; echo name")
    lines: list[str] = []
    if "arguments" not in case:
        with pytest.raises(InvalidRequestError):
            build(case["context"], **case["options"], program=program)
        return
    assert build(case["context"], **case["options"], program=program, on_output=lines.append) == "name"
    assert lines == case["arguments"]


@both
def test_output_goes_to_standard_error(
    build: Callable[..., str], stub: Callable[[str], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    assert build(program=stub("echo one >&2; printf two >&2; echo name")) == "name"
    assert capfd.readouterr() == ("", "one\ntwo\n")


@both
def test_much_output(build: Callable[..., str], stub: Callable[[str], Path]) -> None:
    program = stub(
        "head -c 200000 /dev/zero | tr '\\0' n; head -c 3000000 /dev/zero | tr '\\0' x >&2; echo y >&2"
    )
    lines: list[str] = []
    assert build(program=program, on_output=lines.append, timeout=60) == "n" * 200_000
    assert lines == ["x" * 3_000_000 + "y"]


@both
@pytest.mark.parametrize(
    ("script", "message", "code"),
    [
        ("for i in $(seq 30); do echo line $i >&2; done; exit 125", "exit code 125: line 30", "125"),
        ("echo 'sandgate: unknown command \"build\"' >&2; exit 125", 'unknown command "build"', "125"),
        ("kill -9 $$", "was killed", None),
        (":", "no name", None),
        ("echo some; echo text", "no name", None),
    ],
)
def test_a_build_that_fails(
    build: Callable[..., str], stub: Callable[[str], Path], script: str, message: str, code: str | None
) -> None:
    program = stub(script)
    with pytest.raises(BuildError) as caught:
        build(program=program, on_output=lambda _: None)
    assert str(program) in caught.value.message
    assert message in caught.value.message
    assert caught.value.metadata.get("exit_code") == code
    if "seq" in script:
        assert caught.value.metadata["output"].splitlines() == [f"line {i}" for i in range(11, 31)]


@both
def test_without_the_program(
    build: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"cannot run 'sandgate'.*install"):
        build()


@both
def test_an_unknown_option(build: Callable[..., str]) -> None:
    with pytest.raises(TypeError, match="quiet"):
        build(quiet=True)


@both
def test_timeout(build: Callable[..., str], stub: Callable[[str], Path]) -> None:
    with pytest.raises(DeadlineExceededError):
        build(program=stub("exec sleep 600"), timeout=0.1)


@both
def test_an_error_of_the_callback_ends_the_program(
    build: Callable[..., str], stub: Callable[[str], Path], tmp_path: Path
) -> None:
    done = tmp_path / "done"

    def fail(_: str) -> None:
        raise LookupError("of the callback")

    with pytest.raises(LookupError):
        build(program=stub(_STOPPING.format(done=done)), on_output=fail)
    assert done.exists()


async def test_cancelling_the_task_ends_the_program(stub: Callable[[str], Path], tmp_path: Path) -> None:
    done, running = tmp_path / "done", asyncio.Event()

    async def wait(_: str) -> None:
        running.set()

    task = asyncio.create_task(abuild_image(program=stub(_STOPPING.format(done=done)), on_output=wait))
    await running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done.exists()


@both
def test_a_program_that_waits_for_its_reader_is_ended(
    build: Callable[..., str], stub: Callable[[str], Path]
) -> None:
    def fail(_: str) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        build(program=stub("while :; do echo line >&2; done"), on_output=fail)


def test_the_twins_take_the_same_arguments() -> None:
    one, other = inspect.signature(build_image).parameters, inspect.signature(abuild_image).parameters
    assert [(p.name, p.default) for p in one.values()] == [(p.name, p.default) for p in other.values()]
