"""How the backend sends files, and that a single small one ends as any other."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import grpc
import pytest

from sandgate import Config, SandboxNotFoundError, SandgateError, UnavailableError
from sandgate.client import Client
from sandgate.deepagents import SandgateSandbox
from tests.fake_files import Refused
from tests.fake_server import FakeServer
from tests.integration.cutter import Cutter

_LIMIT = 256 * 1024

Files: TypeAlias = list[tuple[str, bytes]]
Send: TypeAlias = Callable[[Files], Awaitable[list[str | None]]]


@pytest.fixture
def backend(config: Config, fake: FakeServer) -> Iterator[SandgateSandbox]:
    with SandgateSandbox.create(config=config, sandbox_id="agent") as made:
        fake.calls.clear()
        yield made


@pytest.fixture(params=["sync", "async"])
async def send(request: pytest.FixtureRequest, backend: SandgateSandbox) -> Send:
    """Give what uploads files and returns their errors."""

    async def sent(files: Files) -> list[str | None]:
        if request.param == "sync":
            results = backend.upload_files(files)
        else:
            results = await backend.aupload_files(files)
        assert [r.path for r in results] == [path for path, _ in files]
        return [r.error for r in results]

    return sent


def _away() -> Refused:
    return Refused(grpc.StatusCode.UNAVAILABLE, "AGENT_UNAVAILABLE", "the agent is away")


@pytest.mark.parametrize(
    ("size", "calls"),
    [(0, ["WriteFile"]), (300, ["WriteFile"]), (_LIMIT, ["WriteFile"]), (_LIMIT + 1, ["Upload"])],
)
async def test_one_small_file_is_one_message(
    send: Send, fake: FakeServer, work: Path, size: int, calls: list[str]
) -> None:
    content = os.urandom(size)
    assert await send([(f"{work}/new/x", content)]) == [None]
    assert (work / "new/x").read_bytes() == content
    assert await send([(f"{work}/new/x", b"\xff\0\r\n")]) == [None]
    assert (work / "new/x").read_bytes() == b"\xff\0\r\n"
    assert fake.calls == [*calls, "WriteFile"]


async def test_several_files_are_one_stream(send: Send, fake: FakeServer, work: Path) -> None:
    assert await send([(f"{work}/a", b"1"), (f"{work}/b", b"2")]) == [None, None]
    assert fake.calls == ["Upload"]
    # What cannot be sent does not count.
    assert await send([("relative", b"1"), (f"{work}/c", b"3")]) == ["invalid_path", None]
    assert fake.calls == ["Upload", "WriteFile"]
    assert await send([("relative", b"1")]) == ["invalid_path"]
    assert await send([]) == []
    assert fake.calls == ["Upload", "WriteFile"]


async def test_one_file_fails_as_one_of_several(send: Send, fake: FakeServer, work: Path) -> None:
    (work / "file").write_bytes(b"old")
    (work / "directory").mkdir()
    for path in (f"{work}/directory", f"{work}/file/below", "/proc/1/none/x"):
        (alone,) = await send([(path, b"x")])
        assert alone in {"is_directory", "invalid_path", "permission_denied", "file_not_found"}
        assert await send([(path, b"x"), (f"{work}/other", b"x")]) == [alone, None]
    assert fake.calls == ["WriteFile", "Upload"] * 3


@pytest.mark.parametrize(
    ("reason", "metadata", "error"),
    [
        ("FILE_PERMISSION_DENIED", {"path": "/x/y"}, "permission_denied"),
        ("FILE_READ_ONLY", {"path": "/x/y"}, "permission_denied"),
        ("POLICY_DENIED", {"policy": "write_deny_prefixes"}, "permission_denied"),
        # The server shortens what is too long.
        ("PATH_INVALID", {"path": "/x"}, "invalid_path"),
        ("DISK_FULL", {"path": "/x/y"}, "FileError: no (DISK_FULL)"),
        # Of the whole call: an upload would end with it.
        ("PATH_INVALID", {"path": "relative"}, "InvalidRequestError: no (PATH_INVALID)"),
        ("PATH_INVALID", {"path": ""}, "InvalidRequestError: no (PATH_INVALID)"),
        ("FILE_NOT_FOUND", {"path": "root_dir"}, "FileError: no (FILE_NOT_FOUND)"),
        ("SANDBOX_NOT_FOUND", {"sandbox_id": "agent"}, "SandboxNotFoundError: no (SANDBOX_NOT_FOUND)"),
    ],
)
async def test_a_refusal_is_that_of_an_upload(
    send: Send, fake: FakeServer, reason: str, metadata: dict[str, str], error: str
) -> None:
    fake.faults["WriteFile"] = [Refused(grpc.StatusCode.UNKNOWN, reason, "no", **metadata)]
    assert await send([("/x/y", b"x")]) == [error]
    assert fake.calls == ["WriteFile"]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_broken_message_is_repeated(send: Send, fake: FakeServer, work: Path, when: str) -> None:
    (fake.faults if when == "before" else fake.lost)["WriteFile"] = [_away(), _away()]
    assert await send([(f"{work}/x", b"content")]) == [None]
    assert (work / "x").read_bytes() == b"content"
    assert fake.calls == ["WriteFile"] * 3


async def test_a_message_has_a_deadline_and_an_upload_has_none(
    send: Send, fake: FakeServer, work: Path
) -> None:
    fake.faults["WriteFile"] = [
        Refused(grpc.StatusCode.DEADLINE_EXCEEDED, "CALL_DEADLINE_EXCEEDED", "too late")
    ]
    assert await send([(f"{work}/x", b"content")]) == [None]
    assert fake.calls == ["WriteFile", "Upload"]


async def test_bytes_that_changed_on_the_way_are_noticed(send: Send, fake: FakeServer, work: Path) -> None:
    fake.corrupt = True
    (error,) = await send([(f"{work}/x", b"content")])
    assert error is not None
    assert "FILE_CHECKSUM_MISMATCH" in error
    assert fake.calls == ["WriteFile", "Upload"]


async def test_transport_errors_raise_on_request(config: Config, fake: FakeServer, work: Path) -> None:
    fake.faults["WriteFile"] = [_away(), _away()]
    with SandgateSandbox("agent", config=config, raise_on_transport_error=True) as strict:
        with pytest.raises(UnavailableError):
            strict.upload_files([(f"{work}/x", b"x")])
        with pytest.raises(SandgateError):
            await strict.aupload_files([(f"{work}/x", b"x")])
        assert strict.upload_files([(str(work), b"x")])[0].error == "is_directory"


def test_a_backend_reuses_the_connection_that_created_it(config: Config, fake: FakeServer) -> None:
    with Cutter(fake.address) as way:
        there = replace(config, address=way.address)
        with SandgateSandbox.create(config=there) as backend:
            backend.ls("/")
            assert way.accepted == 1
            with SandgateSandbox.connect(backend.id, config=there) as other:
                other.ls("/")
            assert way.accepted == 2
            backend.ls("/")
        assert way.accepted == 2


def test_a_failed_connect_leaves_no_connection(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Client] = []
    real = Client.close

    def close(self: Client) -> None:
        closed.append(self)
        real(self)

    monkeypatch.setattr(Client, "close", close)
    with pytest.raises(SandboxNotFoundError):
        SandgateSandbox.connect("none", config=config)
    assert len(closed) == 1
