"""What goes into a sandbox before Python code runs there, and what comes back."""

from __future__ import annotations

import base64
import datetime as dt
import posixpath
from typing import TYPE_CHECKING, Any, TypeAlias

from sandgate import _plans, _stream_plans
from sandgate.files import UploadFile

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from sandgate._calls import Plan
    from sandgate._plans import Target

VirtualFiles: TypeAlias = "Mapping[str, Mapping[str, Any]]"
Listing: TypeAlias = dict[str, tuple[int, dt.datetime | None]]
"""Size and time of change of each file, by its path."""


def real_path(name: str, directory: str) -> str:
    """Return where a virtual file lies in the sandbox."""
    if name.startswith(f"{directory}/"):
        return posixpath.normpath(name)
    return posixpath.join(directory, posixpath.normpath(f"/{name}").lstrip("/"))


def put(target: Target, wanted: VirtualFiles, stale: AbstractSet[str], directory: str) -> Plan[Listing]:
    """Write the virtual files, remove stale ones, and return what is there then.

    Raises:
        SandgateError: One could not be written.
    """
    yield from _plans.make_directory(target, directory, parents=True, mode=None)
    for name in sorted(stale):
        path = real_path(name, directory)
        yield from _plans.remove_file(target, path, recursive=False, allow_missing=True)
    files = [UploadFile(real_path(name, directory), _bytes(data)) for name, data in wanted.items()]
    for result in (yield from _stream_plans.upload(target, files)):
        if result.error is not None:
            raise result.error
    return (yield from _list(target, directory))


def take(
    target: Target, before: Listing, wanted: VirtualFiles, directory: str, max_bytes: int
) -> Plan[tuple[dict[str, dict[str, Any] | None], list[str]]]:
    """Return what the code changed (None: removed), and the paths that are too large."""
    names = {real_path(name, directory): name for name in wanted}

    def named(path: str) -> str:
        return names.get(path) or f"/{posixpath.relpath(path, directory)}"

    after = yield from _list(target, directory)
    changed = [path for path, state in after.items() if before.get(path) != state]
    large = [path for path in changed if after[path][0] > max_bytes]
    results = yield from _stream_plans.download(target, [path for path in changed if path not in large])
    update: dict[str, dict[str, Any] | None] = {
        named(path): None for path in before if path not in after and path in names
    }
    for result in results:
        if result.error is None:
            update[named(result.path)] = _data(result.content, wanted.get(named(result.path)))
    return update, large


def _list(target: Target, directory: str) -> Plan[Listing]:
    found = yield from _plans.glob_files(target, directory, "**/*")
    return {file.path: (file.size, file.modify_time) for file in found.files}


def _bytes(data: Mapping[str, Any]) -> bytes:
    content = data.get("content", "")
    # Older versions of deepagents kept lines.
    text = content if isinstance(content, str) else "\n".join(content)
    return base64.b64decode(text) if data.get("encoding") == "base64" else text.encode()


def _data(content: bytes, old: Mapping[str, Any] | None) -> dict[str, Any]:
    now = dt.datetime.now(dt.UTC).isoformat()
    created = (old or {}).get("created_at") or now
    try:
        text, encoding = content.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(content).decode("ascii"), "base64"
    return {"content": text, "encoding": encoding, "created_at": created, "modified_at": now}
