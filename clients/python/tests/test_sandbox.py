"""Commands and transfers through broken connections and abandoned calls."""

from __future__ import annotations

import asyncio
import io
import os
import threading
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import pytest

from sandgate import (
    AsyncClient,
    CallCancelledError,
    Client,
    CommandStartError,
    Config,
    ConnectionLostError,
    Exited,
    FileError,
    InternalError,
    Output,
    QuotaExceededError,
    Sandbox,
    Started,
    UnavailableError,
    UploadFile,
    _plans,
)
from sandgate._atomic import atomic_write
from sandgate._gen.sandbox.v1 import sandbox_process_pb2 as pb
from tests.fake_files import Refused
from tests.fake_server import FakeServer, wait_for

_BIG = bytes(range(256)) * 8192


def _away() -> Refused:
    return Refused(grpc.StatusCode.UNAVAILABLE, "AGENT_UNAVAILABLE", "the agent is away")


def test_separate_and_merged_streams(sandbox: Sandbox) -> None:
    result = sandbox.execute("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.code, result.reason) == ("out\n", "err\n", 3, "EXITED")
    assert sorted(result.output.split()) == ["err", "out"]
    assert sandbox.execute("echo a; echo b >&2; echo c", merged=True).stdout == "a\nb\nc\n"


def test_output_comes_while_the_command_runs(sandbox: Sandbox, work: Path) -> None:
    events = sandbox.execute_stream(f"echo first; until test -e {work}/go; do sleep 0.01; done; echo last")
    seen = []
    for event in events:
        if isinstance(event, Output):
            seen.append(event.text)
            (work / "go").touch()
    assert "".join(seen) == "first\nlast\n"
    assert seen[0] == "first\n"


def test_stdin_env_cwd_and_argv(sandbox: Sandbox, work: Path) -> None:
    result = sandbox.execute(["sh", "-c", "cat; pwd; echo $K"], stdin="in\n", env={"K": "v"}, cwd=str(work))
    assert result.stdout == f"in\n{work}\nv\n"


def test_a_command_that_cannot_start(sandbox: Sandbox) -> None:
    with pytest.raises(CommandStartError) as caught:
        sandbox.execute(["/no/such/program"])
    assert caught.value.reason == "COMMAND_NOT_FOUND"


def test_a_timeout(sandbox: Sandbox) -> None:
    result = sandbox.execute("echo before; sleep 100", timeout=0.2)
    assert result.timed_out
    assert (result.code, result.exit_code, result.stdout) == (124, None, "before\n")


def test_output_is_capped(sandbox: Sandbox) -> None:
    result = sandbox.execute("head -c 100000 /dev/zero; exit 4", max_output_bytes=1000)
    assert (len(result.stdout_data), result.truncated, result.code) == (1000, True, 4)


def test_broken_streams_are_resumed(fake: FakeServer, sandbox: Sandbox) -> None:
    fake.cut_after = [1, 0, 5, 70_000]
    result = sandbox.execute("for i in $(seq 20000); do echo $i; echo $i >&2; done")
    want = "".join(f"{i}\n" for i in range(1, 20001))
    assert (result.stdout, result.stderr) == (want, want)
    assert fake.calls.count("Execute") == 1
    assert fake.calls.count("Attach") == 4


async def test_broken_streams_are_resumed_async(fake: FakeServer, async_client: AsyncClient) -> None:
    fake.cut_after = [1, 0, 5, 70_000]
    async with async_client, await async_client.create() as sandbox:
        result = await sandbox.execute("seq 40000")
    assert result.stdout == "".join(f"{i}\n" for i in range(1, 40001))
    assert fake.calls.count("Attach") == 4


def test_a_lost_start_runs_the_command_once(fake: FakeServer, sandbox: Sandbox, work: Path) -> None:
    fake.faults["Execute"] = [_away(), _away()]
    sandbox.execute(f"echo ran >> {work}/log")
    assert (work / "log").read_text() == "ran\n"


def test_a_connection_that_stays_away(fake: FakeServer, sandbox: Sandbox) -> None:
    fake.cut_after = [0]
    fake.faults["Attach"] = [_away() for _ in range(100)]
    impatient = Config(address=fake.address, reconnect_timeout=1.0)
    with Client(config=impatient) as client, pytest.raises(ConnectionLostError) as caught:
        client.sandbox(sandbox.id).execute("echo x; sleep 100")
    assert caught.value.metadata["position"] == "0"


def test_an_unreachable_server_is_an_error(tmp_path: Path) -> None:
    config = Config(address=f"unix://{tmp_path}/none")
    with Client(config=config) as client, pytest.raises(UnavailableError):
        client.sandbox("x").execute("true")


def test_a_closed_generator_kills(fake: FakeServer, sandbox: Sandbox) -> None:
    events = sandbox.execute_stream("echo on; sleep 100")
    assert isinstance(next(events), Started)
    assert isinstance(next(events), Output)
    events.close()
    (command,) = fake.commands.values()
    wait_for(lambda: command.exited is not None)
    assert command.killed.is_set()


def test_an_interrupt_kills(fake: FakeServer, sandbox: Sandbox) -> None:
    def interrupt(_: Output) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sandbox.execute("echo on; sleep 100", on_output=interrupt)
    (command,) = fake.commands.values()
    assert command.killed.is_set()


def test_an_interrupt_during_a_pause_kills(
    fake: FakeServer, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sandgate._runner.Runner._pause", interrupt)
    fake.cut_after = [0]
    with pytest.raises(KeyboardInterrupt):
        sandbox.execute("echo on; sleep 100")
    (command,) = fake.commands.values()
    assert command.killed.is_set()


async def test_a_cancelled_task_kills(fake: FakeServer, async_client: AsyncClient) -> None:
    running = asyncio.Event()
    async with async_client, await async_client.create() as sandbox:
        task = asyncio.create_task(sandbox.execute("echo on; sleep 100", on_output=lambda _: running.set()))
        await running.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        (command,) = fake.commands.values()
        assert command.killed.is_set()


async def test_a_closed_async_generator_kills(fake: FakeServer, async_client: AsyncClient) -> None:
    async with async_client, await async_client.create() as sandbox:
        events = sandbox.execute_stream("echo on; sleep 100")
        assert isinstance(await anext(events), Started)
        await events.aclose()
        (command,) = fake.commands.values()
        assert command.killed.is_set()


async def test_a_server_that_cancels_cancels_no_task(fake: FakeServer, async_client: AsyncClient) -> None:
    fake.faults["Execute"] = [Refused(grpc.StatusCode.CANCELLED, "CALL_CANCELLED", "no")]
    async with async_client, await async_client.create() as sandbox:
        with pytest.raises(CallCancelledError):
            await sandbox.execute("true")


def test_detached_and_attached_commands_live_on(fake: FakeServer, sandbox: Sandbox, work: Path) -> None:
    script = f"echo on; until test -e {work}/go; do sleep 0.01; done; echo off"
    events = sandbox.execute_stream(script, detach=True, exec_id="d")
    next(events)
    events.close()
    attached = sandbox.attach("d")
    next(attached)
    attached.close()
    assert not fake.commands["d"].killed.is_set()
    (work / "go").touch()
    text = "".join(e.text for e in sandbox.attach("d", 3) if isinstance(e, Output))
    assert text == "off\n"
    assert sandbox.processes(include_ended=True)[0].exec_id == "d"


def test_signal(sandbox: Sandbox) -> None:
    events = sandbox.execute_stream("sleep 100", exec_id="x")
    next(events)
    assert sandbox.signal("x", "SIGKILL")
    assert [e.reason for e in events if isinstance(e, Exited)] == ["KILLED"]


def test_transfers(sandbox: Sandbox, work: Path) -> None:
    local = work / "local"
    local.write_bytes(_BIG)
    results = sandbox.upload(
        UploadFile(f"{work}/a/1", _BIG),
        UploadFile(f"{work}/a/2", local),
        UploadFile("relative", b""),
        UploadFile(f"{work}/a/3", io.BytesIO(_BIG)),
        UploadFile(f"{work}/a/4", b""),
    )
    assert [r.error.reason if r.error else None for r in results] == [None, None, "PATH_INVALID", None, None]
    contents = sandbox.download(*(f"{work}/a/{i}" for i in range(6)))
    assert [c.content for c in contents[1:5]] == [_BIG, _BIG, _BIG, b""]
    assert [c.error.reason if c.error else None for c in contents[::5]] == ["FILE_NOT_FOUND"] * 2
    target = io.BytesIO()
    assert sandbox.download_file(f"{work}/a/1", target).size == len(_BIG)
    assert target.getvalue() == _BIG
    sandbox.download_file(f"{work}/a/1", work / "back")
    assert (work / "back").read_bytes() == _BIG


async def test_async_transfers(async_client: AsyncClient, work: Path) -> None:
    local = work / "local"
    local.write_bytes(_BIG)
    async with async_client, await async_client.create() as sandbox:
        await sandbox.upload_file(f"{work}/1", local)
        assert (await sandbox.download_file(f"{work}/1")).content == _BIG
        await sandbox.download_file(f"{work}/1", work / "back")
        with pytest.raises(FileNotFoundError):
            await sandbox.upload_file(f"{work}/2", work / "none")
    assert (work / "back").read_bytes() == _BIG
    assert not (work / "2").exists()


def test_bytes_that_changed_on_the_way_are_noticed(fake: FakeServer, sandbox: Sandbox, work: Path) -> None:
    sandbox.upload_file(f"{work}/x", b"content")
    fake.corrupt = True
    with pytest.raises(FileError) as caught:
        sandbox.upload_file(f"{work}/x", b"content")
    assert caught.value.reason == "FILE_CHECKSUM_MISMATCH"
    with pytest.raises(FileError) as caught:
        sandbox.download_file(f"{work}/x")
    assert caught.value.reason == "FILE_CHECKSUM_MISMATCH"


async def test_an_upload_that_the_server_ends_early_has_its_reason(
    fake: FakeServer, async_client: AsyncClient, work: Path
) -> None:
    async with async_client, await async_client.create() as sandbox:
        for _ in range(30):
            fake.faults["Upload"] = [
                Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED", "no more bytes")
            ]
            with pytest.raises(QuotaExceededError) as caught:
                await sandbox.upload_file(f"{work}/x", _BIG)
            assert caught.value.reason == "QUOTA_EXCEEDED"


@pytest.mark.parametrize("size", [1000, 3_000_000])
def test_an_upload_is_repeated_over_a_broken_connection(
    fake: FakeServer, sandbox: Sandbox, work: Path, size: int
) -> None:
    fake.faults["Upload"] = [_away(), _away()]
    content = os.urandom(size)
    sandbox.upload_file(f"{work}/x", content)
    assert (work / "x").read_bytes() == content
    fake.faults["Upload"] = [_away()]
    if size < 1 << 20:
        with pytest.raises(UnavailableError):
            sandbox.upload_file(f"{work}/y", content, create_only=True)


def test_a_source_of_type_str_is_rejected_with_a_hint(sandbox: Sandbox, work: Path) -> None:
    with pytest.raises(TypeError, match=r"pathlib.Path\(...\) for a local file, or text.encode"):
        sandbox.upload_file(f"{work}/x", "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not int"):
        sandbox.upload_file(f"{work}/x", 1)  # type: ignore[arg-type]


async def test_a_source_without_data_yet_has_not_ended(
    sandbox: Sandbox, async_client: AsyncClient, work: Path
) -> None:
    (work / "x").write_bytes(b"old")
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.write(write, b"half")
    with io.FileIO(read) as source, io.FileIO(write, "w"):
        with pytest.raises(BlockingIOError, match=f"the source {read} is non-blocking"):
            sandbox.upload_file(f"{work}/x", source)
        async with async_client, await async_client.create() as other:
            with pytest.raises(BlockingIOError):
                await other.upload_file(f"{work}/x", source)
    assert (work / "x").read_bytes() == b"old"


async def test_a_cancelled_upload_leaves_the_old_content(async_client: AsyncClient, work: Path) -> None:
    (work / "x").write_bytes(b"old")
    reading, loop = asyncio.Event(), asyncio.get_running_loop()
    go_on = threading.Event()

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            loop.call_soon_threadsafe(reading.set)
            go_on.wait()
            return super().read(size)

    async with async_client, await async_client.create() as sandbox:
        task = asyncio.create_task(sandbox.upload_file(f"{work}/x", Slow(_BIG)))
        await reading.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
    assert (work / "x").read_bytes() == b"old"


def _kept(directory: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in directory.iterdir() if p.is_file()}


def test_a_failed_download_leaves_the_local_file(fake: FakeServer, sandbox: Sandbox, work: Path) -> None:
    local = work / "local"
    local.mkdir()
    (local / "keep.txt").write_bytes(b"mine")
    (local / "keep.txt").chmod(0o640)
    with pytest.raises(FileError):
        sandbox.download_file(f"{work}/none", local / "keep.txt")
    with pytest.raises(FileError):
        sandbox.download_file(f"{work}/none", local / "new.txt")
    assert _kept(local) == {"keep.txt": b"mine"}
    sandbox.upload_file(f"{work}/x", b"theirs")
    fake.corrupt = True
    with pytest.raises(FileError):
        sandbox.download_file(f"{work}/x", local / "keep.txt")
    assert _kept(local) == {"keep.txt": b"mine"}
    fake.corrupt = False
    (local / "link").symlink_to("keep.txt")
    sandbox.download_file(f"{work}/x", local / "link")
    assert _kept(local) == {"keep.txt": b"theirs", "link": b"theirs"}
    assert (local / "link").is_symlink()
    assert (local / "keep.txt").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_a_downloaded_file_is_never_more_readable_than_its_target(tmp_path: Path, mode: int) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"mine")
    target.chmod(mode)
    with atomic_write(target) as opened:
        opened.write(b"theirs")
        modes = {p.name.split("-")[0]: p.stat().st_mode & 0o777 for p in tmp_path.iterdir()}
    assert modes == {"target": mode, ".sandgate": mode}
    assert (target.read_bytes(), target.stat().st_mode & 0o777) == (b"theirs", mode)


def test_a_target_without_a_writable_directory_stays() -> None:
    with TemporaryDirectory(dir="/tmp") as name:
        directory = Path(name)
        (directory / "target").write_bytes(b"mine")
        (directory / "target").chmod(0o666)
        directory.chmod(0o555)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)  # Root may write anywhere.
        try:
            with pytest.raises(PermissionError), atomic_write(directory / "target") as opened:
                opened.write(b"theirs")
        finally:
            os.seteuid(user)
            directory.chmod(0o755)
        assert _kept(directory) == {"target": b"mine"}


async def test_a_failed_download_leaves_the_local_file_async(async_client: AsyncClient, work: Path) -> None:
    local = work / "local"
    local.mkdir()
    (local / "keep.txt").write_bytes(b"mine")
    async with async_client, await async_client.create() as sandbox:
        with pytest.raises(FileError):
            await sandbox.download_file(f"{work}/none", local / "keep.txt")
    assert _kept(local) == {"keep.txt": b"mine"}


def test_a_large_result_has_a_short_representation(sandbox: Sandbox) -> None:
    result = sandbox.execute("head -c 1000000 /dev/zero | tr '\\0' x")
    assert len(result.output) == 1_000_000
    assert len(repr(result)) < 2_000
    assert "output=b'xxx" in repr(result)
    assert "1000000 bytes" in repr(result)


@pytest.mark.parametrize("call", ["write", "read", "stat", "download_file", "list"])
def test_a_path_that_is_no_text_names_itself(sandbox: Sandbox, call: str) -> None:
    more = (b"x",) if call == "write" else ()
    with pytest.raises(TypeError, match="path"):
        getattr(sandbox, call)(PurePosixPath("/workspace/p"), *more)
    with pytest.raises(ValueError, match=r"path.* is not valid Unicode"):
        getattr(sandbox, call)("/workspace/\udcff", *more)


def test_stdin_continues_at_the_offset_that_the_command_accepted() -> None:
    plan: Any = _plans.write_stdin(_plans.Target("one"), "x", b"abcdef", offset=10, eof=True)
    sent, step = [], next(plan)
    for taken in (12, 15):
        sent.append((step.request.offset, step.request.data, step.request.eof))
        step = plan.send(pb.WriteStdinResponse(next_offset=taken))
    with pytest.raises(StopIteration) as done:
        plan.send(pb.WriteStdinResponse(next_offset=16))
    assert sent == [(10, b"abcdef", True), (12, b"cdef", True)]
    assert (step.request.offset, step.request.data, step.request.eof) == (15, b"f", True)
    assert done.value.value == 16


def test_stdin_without_progress_is_an_error() -> None:
    plan = _plans.write_stdin(_plans.Target("one"), "x", b"abc", offset=0, eof=False)
    next(plan)
    with pytest.raises(InternalError, match="from offset 0 to 0"):
        plan.send(pb.WriteStdinResponse(next_offset=0))
