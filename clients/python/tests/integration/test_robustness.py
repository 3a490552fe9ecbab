"""Connections that break, fall silent, or are shared by many streams."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandgate import AsyncClient, Client, Config, FileError, Output, Sandbox
from sandgate._gen.sandbox.v1 import sandbox_service_pb2_grpc as service
from sandgate.files import UploadFile
from tests.fake_server import wait_for
from tests.integration.cutter import Cutter

_SIZE = 24 << 20


@pytest.fixture
def cutter(address: str) -> Iterator[Cutter]:
    with Cutter(address) as made:
        yield made


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the bytes of the chunks that are sent."""
    counts: list[int] = []
    real: Any = service.SandboxServiceStub.__init__

    def spied(self: service.SandboxServiceStub, channel: object) -> None:
        real(self, channel)
        call = self.Upload

        class Spy:
            def future(self, frames: object, **options: object) -> object:
                def counted() -> Iterator[object]:
                    for frame in frames:  # type: ignore[attr-defined]
                        counts.append(len(frame.chunk))
                        yield frame

                return call.future(counted(), **options)  # type: ignore[arg-type]

        self.Upload = Spy()  # type: ignore[assignment]

    monkeypatch.setattr(service.SandboxServiceStub, "__init__", spied)
    return counts


@pytest.mark.parametrize("kind", ["bytes", "path", "open"])
def test_a_large_upload_goes_on_where_it_broke(
    cutter: Cutter, box: Sandbox, sent: list[int], tmp_path: Path, kind: str
) -> None:
    content = os.urandom(_SIZE)
    path = tmp_path / "content"
    path.write_bytes(b"skip" + content)
    opened = path.open("rb")
    opened.read(4)
    (tmp_path / "same").write_bytes(content)
    source: object = {"bytes": content, "path": tmp_path / "same", "open": opened}[kind]
    with Client(cutter.address) as client, opened:
        client.server_info()
        cutter.cut_after(_SIZE // 2)
        result = client.sandbox(box.id).upload_file("/workspace/large", source)  # type: ignore[arg-type]
    assert cutter.cuts >= 1
    assert result.sha256 == hashlib.sha256(content).digest()
    # What was safe was not sent again.
    assert sum(sent) < _SIZE * 1.5 + (8 << 20)
    assert box.execute("sha256sum < /workspace/large").stdout.split()[0] == result.sha256.hex()


async def test_a_large_upload_goes_on_where_it_broke_async(cutter: Cutter, box: Sandbox) -> None:
    content = os.urandom(_SIZE)
    async with AsyncClient(cutter.address) as client:
        await client.server_info()
        cutter.cut_after(_SIZE // 2)
        result = await client.sandbox(box.id).upload_file("/workspace/large", content)
    assert cutter.cuts >= 1
    assert result.sha256 == hashlib.sha256(content).digest()


def test_a_download_goes_on_where_it_broke(cutter: Cutter, box: Sandbox, tmp_path: Path) -> None:
    content = os.urandom(_SIZE)
    box.upload(UploadFile("/workspace/a", b"first"), UploadFile("/workspace/b", content))
    with Client(cutter.address) as client:
        client.server_info()
        there = client.sandbox(box.id)
        cutter.cut_after(_SIZE // 2)
        result = there.download_file("/workspace/b", tmp_path / "b")
        assert (tmp_path / "b").read_bytes() == content
        assert result.sha256 == hashlib.sha256(content).digest()
        cutter.cut_after(_SIZE // 2)
        results = there.download("/workspace/a", "/workspace/b", "/workspace/none", "/workspace/a")
    assert cutter.cuts >= 2
    assert [r.content for r in results] == [b"first", content, b"", b"first"]
    assert results[2].error is not None
    assert results[2].error.reason == "FILE_NOT_FOUND"


def test_a_file_that_changed_during_a_download_is_an_error(cutter: Cutter, box: Sandbox) -> None:
    box.upload_file("/workspace/c", os.urandom(_SIZE))

    class Changing(io.BytesIO):
        def write(self, data: object, /) -> int:
            if self.tell() == 0:
                box.execute("echo more >> /workspace/c")
                cutter.cut()
            return super().write(data)  # type: ignore[arg-type]

    with Client(cutter.address) as client:
        client.server_info()
        with pytest.raises(FileError, match="was changed while it was read"):
            client.sandbox(box.id).download_file("/workspace/c", Changing())


def _left(box: Sandbox) -> bool:
    script = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done 2>/dev/null"
    return any("sleep 4343" in line for line in box.execute(script).stdout.splitlines())


async def test_a_cancel_over_a_cut_connection_kills_all_the_same(cutter: Cutter, box: Sandbox) -> None:
    running = asyncio.Event()
    async with AsyncClient(cutter.address) as client:
        task = asyncio.create_task(
            client.sandbox(box.id).execute(
                "echo on; setsid sleep 4343 & sleep 4343", on_output=lambda _: running.set()
            )
        )
        await running.wait()
        cutter.refusing = True
        cutter.cut()
        task.cancel()
        await asyncio.sleep(0.3)
        assert not task.done()
        cutter.refusing = False
        with pytest.raises(asyncio.CancelledError):
            await task
    await asyncio.to_thread(wait_for, lambda: not _left(box))


def test_a_close_over_a_cut_connection_kills_all_the_same(cutter: Cutter, box: Sandbox) -> None:
    with Client(cutter.address) as client:
        events = client.sandbox(box.id).execute_stream("echo on; setsid sleep 4343 & sleep 4343")
        while not isinstance(next(events), Output):
            pass
        cutter.refusing = True
        cutter.cut()

        def allow() -> None:
            cutter.refusing = False

        threading.Timer(0.5, allow).start()
        events.close()
    wait_for(lambda: not _left(box))


async def test_a_silent_connection_is_detected_and_resumed(cutter: Cutter, box: Sandbox) -> None:
    config = Config(address=cutter.address, keepalive_time=1, keepalive_timeout=1)
    seen = asyncio.Event()
    async with AsyncClient(config=config) as client:
        sandbox = client.sandbox(box.id)
        script = "echo on; until test -e /workspace/heard; do sleep 0.05; done; echo end"
        task = asyncio.create_task(sandbox.execute(script, on_output=lambda _: seen.set()))
        await seen.wait()
        before = cutter.accepted
        cutter.silent.set()
        await asyncio.to_thread(box.write, "/workspace/heard", "")
        # The connections that exist stay silent; a new one works.
        await asyncio.to_thread(wait_for, lambda: cutter.accepted > before)
        cutter.silent.clear()
        cutter.cut()
        result = await asyncio.wait_for(task, 60)
    assert result.stdout == "on\nend\n"


async def test_a_server_far_away_is_reached_at_the_first_attempt(cutter: Cutter) -> None:
    cutter.delay = 0.5
    with Client(cutter.address) as client:
        assert client.server_info().provider
    async with AsyncClient(cutter.address) as other:
        assert (await other.server_info()).provider
    assert cutter.accepted == 2


async def test_many_streams_use_several_connections(cutter: Cutter, box: Sandbox) -> None:
    async with AsyncClient(cutter.address, channels=3) as client:
        sandbox = client.sandbox(box.id)
        await sandbox.execute("true")
        assert cutter.accepted == 1
        results = await asyncio.gather(*(sandbox.execute(f"echo {i}") for i in range(50)))
    assert [r.stdout for r in results] == [f"{i}\n" for i in range(50)]
    assert cutter.accepted == 3
    with Client(cutter.address, channels=1) as single:
        streams = [single.sandbox(box.id).execute_stream("echo x; sleep 0.2") for _ in range(5)]
        for stream in streams:
            next(stream)
        for stream in streams:
            assert [e.text for e in stream if isinstance(e, Output)] == ["x\n"]
    assert cutter.accepted == 4
    with pytest.raises(ValueError, match="at least one channel"):
        Client(cutter.address, channels=0)


def test_one_async_client_in_two_loops_at_once(address: str, box: Sandbox) -> None:
    client = AsyncClient(address)
    both = threading.Barrier(2, timeout=60)
    outputs: dict[int, str] = {}

    async def work(number: int) -> None:
        sandbox = client.sandbox(box.id)
        await asyncio.to_thread(both.wait)
        results = await asyncio.gather(*(sandbox.execute(f"echo {number}.{i}") for i in range(10)))
        outputs[number] = "".join(r.stdout for r in results)
        await asyncio.to_thread(both.wait)
        await client.close()

    threads = [threading.Thread(target=lambda n=n: asyncio.run(work(n))) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert outputs == {n: "".join(f"{n}.{i}\n" for i in range(10)) for n in range(2)}
