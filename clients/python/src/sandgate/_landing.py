"""Replacing a file of this machine only by a whole one."""

from __future__ import annotations

import asyncio
import os
import shutil
import uuid
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@contextmanager
def landing(target: os.PathLike[str]) -> Iterator[BinaryIO]:
    """Give a new file beside the target, which takes its place at the end.

    After an error the target is what it was, and the new file is gone. It can be
    read by those who could read the target, at no time by others. What is there
    and is no regular file, a device or a pipe, is written to directly.
    """
    path = Path(target).resolve()
    if path.exists() and not path.is_file():
        with path.open("wb") as opened:
            yield opened
        return
    part = path.with_name(f".sandgate-{uuid.uuid4().hex}")
    try:
        with open(part, "xb", opener=_private if path.exists() else None) as opened:
            if path.exists():
                shutil.copymode(path, part)
            yield opened
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner can read."""
    return os.open(path, flags, 0o600)


@asynccontextmanager
async def alanding(target: os.PathLike[str]) -> AsyncIterator[BinaryIO]:
    """Async twin of `landing`."""
    place = landing(target)
    opened = await asyncio.to_thread(place.__enter__)
    try:
        yield opened
    except BaseException as e:
        place.__exit__(type(e), e, e.__traceback__)
        raise
    await asyncio.to_thread(place.__exit__, None, None, None)
