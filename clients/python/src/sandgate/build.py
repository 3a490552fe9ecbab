"""Building images from Dockerfiles, by the program `sandgate`."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import inspect
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from typing import TYPE_CHECKING, Final, TypedDict, cast

from sandgate.errors import BuildError, DeadlineExceededError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from typing import IO, Unpack

_STOP_SECONDS: Final = 10.0
"""How long the program has to end a build that is no longer wanted."""

_TAIL_LINES: Final = 20
"""How many lines of output an error has."""

_CHUNK_BYTES: Final = 1 << 16

_INSTALL_PAGE: Final = "https://github.com/sandgate/sandgate/blob/main/docs/install.md"


class BuildOptions(TypedDict, total=False):
    """Options of `build_image`; what is left out is the program's choice."""

    dockerfile: str | os.PathLike[str]
    """Its path, which must be in the context. Default: `Dockerfile` there."""
    target: str
    """Stage to build. Default: the last one."""
    build_args: Mapping[str, str]
    """Values of ARG instructions. They are no place for secrets: the image and the
    command line have them."""
    platform: str
    """Platform of the image, such as `linux/arm64`; needs a buildkitd."""
    save: bool
    """Write the image to an archive that a server with the provider local on this
    machine reads."""
    save_dir: str | os.PathLike[str]
    """Directory for the archive, in place of the program's own; implies `save`."""
    push: str
    """Push the image under this name, for every provider. Without a tag, the tag is the
    hash of what was built. An image is either saved or pushed."""
    tag: str
    """Another name for the image in the Docker daemon."""
    pull: bool
    """Ask the registries for newer images of the FROM instructions."""
    no_cache: bool
    """Run all instructions again."""
    network: str
    """Network of RUN instructions, such as `none` or `host`."""
    docker_host: str
    """Address of the Docker daemon. Default: `DOCKER_HOST`."""
    buildkit_host: str
    """Address of a buildkitd that builds instead. Default: `BUILDKIT_HOST`."""
    program: str | os.PathLike[str]
    """The program to run. Default: `sandgate` in PATH."""


def build_image(
    context: str | os.PathLike[str] = ".",
    *,
    timeout: float | None = None,
    on_output: Callable[[str], object] | None = None,
    **options: Unpack[BuildOptions],
) -> str:
    """Build an image from a Dockerfile and return its name, for `image` of `create`.

    What was built before is not built again. It runs `sandgate build`, which needs a
    Docker daemon or a buildkitd, and no Sandgate server.

    Args:
        context: Directory whose files the Dockerfile can copy.
        timeout: Seconds after which the program is ended. Default: no limit.
        on_output: Called with each line of the build's output. Default: it goes to the
            standard error of this process.
        options: See `BuildOptions`.

    Raises:
        BuildError: The program cannot be run, or the build failed. `metadata` then has
            the `"exit_code"` and the last lines of the `"output"`.
        DeadlineExceededError: The timeout ended.
    """
    # The program never waits for a reader of what it prints: that is a file.
    with tempfile.TemporaryFile() as printed:
        return _build(_Run(context, options), printed, timeout, on_output or _print)


def _build(run: _Run, printed: IO[bytes], timeout: float | None, on_output: Callable[[str], object]) -> str:
    try:
        child = subprocess.Popen(  # noqa: S603 - without a shell
            run.argv, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise run.cannot_run(error) from error
    stderr = cast("IO[bytes]", child.stderr)
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        _stop(child)

    timer = None if timeout is None else threading.Timer(timeout, expire)
    with stderr:
        try:
            if timer is not None:
                timer.start()
            for raw in stderr:
                on_output(run.line(raw))
            child.wait()
        finally:
            # It may wait for a reader of its output.
            stderr.close()
            _stop(child)
            if timer is not None:
                timer.cancel()
                timer.join()
    if expired.is_set():
        raise _deadline(timeout)
    return run.image(child.returncode, printed)


async def abuild_image(
    context: str | os.PathLike[str] = ".",
    *,
    timeout: float | None = None,  # noqa: ASYNC109 - the same arguments as build_image
    on_output: Callable[[str], Awaitable[object] | object] | None = None,
    **options: Unpack[BuildOptions],
) -> str:
    """Do as `build_image`. Cancelling the task ends the program.

    `on_output` may be a coroutine function.
    """
    with tempfile.TemporaryFile() as printed:
        return await _abuild(_Run(context, options), printed, timeout, on_output or _print)


async def _abuild(
    run: _Run,
    printed: IO[bytes],
    timeout: float | None,  # noqa: ASYNC109
    on_output: Callable[[str], Awaitable[object] | object],
) -> str:
    try:
        child = await asyncio.create_subprocess_exec(
            *run.argv, stdin=asyncio.subprocess.DEVNULL, stdout=printed, stderr=asyncio.subprocess.PIPE
        )
    except OSError as error:
        raise run.cannot_run(error) from error
    try:
        async with asyncio.timeout(timeout) as scope:
            async for raw in _lines(cast("asyncio.StreamReader", child.stderr)):
                reported = on_output(run.line(raw))
                if inspect.isawaitable(reported):
                    await reported
            await child.wait()
    except TimeoutError:
        if scope.expired():
            raise _deadline(timeout) from None
        raise
    finally:
        await _astop(child)
    return run.image(await child.wait(), printed)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the lines of a stream, which asyncio itself does only up to a length."""
    start = b""
    while chunk := await stream.read(_CHUNK_BYTES):
        *lines, start = (start + chunk).split(b"\n")
        for line in lines:
            yield line
    if start:
        yield start


class _Run:
    """One run of the program."""

    def __init__(self, context: str | os.PathLike[str], options: BuildOptions) -> None:
        self._program = os.fspath(options.get("program", "sandgate"))
        arguments = _arguments(context, options)
        # The path is for errors; what cannot be found is left to the start of the process.
        self._program = shutil.which(self._program) or self._program
        self.argv = [self._program, *arguments]
        self._tail = collections.deque[str](maxlen=_TAIL_LINES)

    def line(self, raw: bytes) -> str:
        """Keep a line of output, and return its text."""
        text = raw.decode("utf-8", "replace").removesuffix("\n")
        self._tail.append(text)
        return text

    def cannot_run(self, error: OSError) -> BuildError:
        return BuildError(
            f"cannot run {self._program!r}: {error.strerror}; install the program ({_INSTALL_PAGE}), "
            "or set `program` to its path",
            code="NOT_FOUND",
        )

    def image(self, code: int, printed: IO[bytes]) -> str:
        """Return the name that the program has printed, if it did not fail."""
        if code != 0:
            metadata = {"output": "\n".join(self._tail)}
            how = "was killed"
            if code > 0:
                metadata["exit_code"] = str(code)
                how = f"failed with exit code {code}"
            last = f": {self._tail[-1]}" if self._tail else ""
            raise BuildError(f"{self._program} build {how}{last}", metadata=metadata)
        printed.seek(0)
        name = printed.read().decode("utf-8", "replace").strip()
        if len(name.splitlines()) != 1:
            raise BuildError(
                f"{self._program} build has printed no name of an image: is it the program of Sandgate?"
            )
        return name


def _arguments(context: str | os.PathLike[str], options: BuildOptions) -> list[str]:
    unknown = options.keys() - BuildOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"build_image has no option {min(unknown)!r}")
    save, save_dir, push = options.get("save"), options.get("save_dir"), options.get("push")
    if (save or save_dir) and push:
        raise InvalidRequestError(
            "an image is either saved or pushed: build it twice, which costs nothing the second time",
            code="INVALID_ARGUMENT",
        )
    arguments = ["build"]

    def add(flag: str, value: str | os.PathLike[str] | None) -> None:
        if value:
            arguments.append(f"--{flag}={os.fspath(value)}")

    add("file", options.get("dockerfile"))
    add("target", options.get("target"))
    for name, value in sorted((options.get("build_args") or {}).items()):
        add("build-arg", f"{name}={value}")
    add("platform", options.get("platform"))
    if save and not save_dir:
        arguments.append("--save")
    add("save", save_dir)
    add("push", push)
    add("tag", options.get("tag"))
    if options.get("pull"):
        arguments.append("--pull")
    if options.get("no_cache"):
        arguments.append("--no-cache")
    add("network", options.get("network"))
    add("docker-host", options.get("docker_host"))
    add("buildkit-host", options.get("buildkit_host"))
    return [*arguments, "--", os.fspath(context) or "."]


def _print(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _deadline(timeout: float | None) -> DeadlineExceededError:
    return DeadlineExceededError(
        f"the build did not end within its timeout of {timeout} s", code="DEADLINE_EXCEEDED"
    )


def _stop(child: subprocess.Popen[bytes]) -> None:
    """End the program, unless it has ended."""
    if child.poll() is not None:
        return
    child.terminate()
    try:
        child.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


async def _astop(child: asyncio.subprocess.Process) -> None:
    """End the program, unless it has ended."""
    if child.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        child.terminate()
    try:
        # It may wait for a reader of its output.
        async with asyncio.timeout(_STOP_SECONDS):
            await child.communicate()
    except TimeoutError:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            if child.returncode is None:
                child.kill()
    await child.wait()
