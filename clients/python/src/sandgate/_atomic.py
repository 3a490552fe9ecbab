"""Atomic writes of files of this machine."""

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
def atomic_write(target: os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a temporary file beside the target, and rename it to the target at the end.

    After an error the target is unchanged, and the temporary file is removed. It is
    readable by those who can read the target, at no time by others. A target that is
    no regular file, such as a device or a pipe, is written to directly.
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
async def atomic_write_async(target: os.PathLike[str]) -> AsyncIterator[BinaryIO]:
    """Async twin of `atomic_write`."""
    write = atomic_write(target)
    opened = await asyncio.to_thread(write.__enter__)
    try:
        yield opened
    except BaseException as e:
        write.__exit__(type(e), e, e.__traceback__)
        raise
    await asyncio.to_thread(write.__exit__, None, None, None)
