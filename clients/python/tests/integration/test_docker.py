"""Images from Dockerfiles, on the Docker daemon and the server of `make test-docker`."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from sandgate import BuildError, abuild_image, build_image
from tests import pages


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """Give a directory whose Dockerfile makes another image in every run."""
    directory = tmp_path / "tools"
    directory.mkdir()
    (directory / "Dockerfile").write_text(
        f"FROM {os.environ['SANDGATE_DOCKER_IMAGE']}\n"
        "ARG GREETING=hello\n"
        f"ENV RUN_ID={uuid.uuid4()}\n"
        "RUN printf '#!/bin/sh\\necho %s from a tool\\n' \"$GREETING\" >/usr/bin/tool\n"
        "RUN chmod 755 /usr/bin/tool\n"
    )
    return directory


def test_the_block_of_the_guide(context: Path) -> None:
    text = (pages.DOCS / "clients" / "python.md").read_text()
    blocks = re.findall(r"^```python docker\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 1
    code = blocks[0].replace('build_image("tools")', 'build_image("tools", network="none")')
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=context.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "hello from a tool\n\n", done.stderr
    assert "Step 1/5" in done.stderr


async def test_a_second_build_prints_nothing(context: Path) -> None:
    lines: list[str] = []
    options: dict[str, Any] = {
        "network": "none",
        "build_args": {"GREETING": "good day"},
        "on_output": lines.append,
    }
    first = await abuild_image(context, **options)
    assert any(line.startswith("Step 1/5") for line in lines)
    lines.clear()
    assert await abuild_image(context, **options) == first
    assert lines == []


def test_a_saved_image(context: Path, tmp_path: Path) -> None:
    image = build_image(context, network="none", save_dir=tmp_path / "archives", on_output=lambda _: None)
    assert Path(image.removeprefix("docker-archive:")).stat().st_size > 0


def test_a_build_that_fails(context: Path) -> None:
    with (context / "Dockerfile").open("a") as file:
        file.write("RUN echo before; exit 7\n")
    with pytest.raises(BuildError, match="returned a non-zero code: 7") as caught:
        build_image(context, network="none", on_output=lambda _: None)
    assert caught.value.metadata["exit_code"] == "125"
    assert "\nbefore\n" in caught.value.metadata["output"]


async def test_a_cancelled_build(context: Path) -> None:
    with (context / "Dockerfile").open("a") as file:
        file.write("RUN echo running; sleep 600\n")
    running = asyncio.Event()

    def on_output(line: str) -> None:
        if line == "running":
            running.set()

    task = asyncio.create_task(abuild_image(context, network="none", on_output=on_output))
    async with asyncio.timeout(60):
        await running.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
