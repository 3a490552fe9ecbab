"""The client against a real server: commands, transfers, restarts."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
from pathlib import Path

import pytest

from sandgate import (
    AsyncClient,
    Client,
    CommandStartError,
    Config,
    ExecNotFoundError,
    FileError,
    InvalidRequestError,
    Output,
    Sandbox,
    SandboxExistsError,
    SandboxNotFoundError,
    Started,
    UploadFile,
)
from sandgate.deepagents import SandgateSandbox
from tests.fake_server import wait_for
from tests.integration.conftest import Server


def _left(sandbox: Sandbox) -> list[str]:
    """Return what runs in the sandbox beside the agent and this look at it."""
    script = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done 2>/dev/null"
    return [line for line in sandbox.execute(script).stdout.splitlines() if "sleep 4242" in line]


def test_lifecycle(real_client: Client) -> None:
    with real_client.create(sandbox_id="py-life", labels={"py": "life"}, ttl=60) as made:
        assert made.owned
        assert not real_client.create(sandbox_id="py-life", ttl=60).owned
        with pytest.raises(SandboxExistsError):
            real_client.create(sandbox_id="py-life", env={"A": "B"})
        assert [s.sandbox_id for s in real_client.list(labels={"py": "life"})] == ["py-life"]
        changed = real_client.update("py-life", set_labels={"more": "1"}, idle_ttl=30)
        assert (changed.labels["more"], changed.idle_ttl, changed.ttl) == ("1", 30, 60)
        assert made.info().state == "ACTIVE"
    with pytest.raises(SandboxNotFoundError):
        real_client.get("py-life")
    with pytest.raises(InvalidRequestError) as caught:
        real_client.create(sandbox_id="not a good id")
    assert [v.field for v in caught.value.violations] == ["sandbox_id"]


def test_commands(box: Sandbox) -> None:
    result = box.execute("echo out; echo err >&2; exit 3", env={"K": "v"})
    assert (result.stdout, result.stderr, result.code) == ("out\n", "err\n", 3)
    assert box.execute(["printf", "%s", "a b"]).stdout == "a b"
    assert box.execute("cat", stdin="é\0").stdout == "é\0"
    assert box.execute("kill -SEGV $$").code == 139
    assert box.execute("head -c 5000000 /dev/zero | wc -c", max_output_bytes=10).stdout == "5000000\n"
    capped = box.execute("head -c 5000000 /dev/zero; exit 6", max_output_bytes=10)
    assert (len(capped.stdout_data), capped.truncated, capped.code) == (10, True, 6)
    assert box.execute(": " + "x" * 300_000 + "\necho large").stdout == "large\n"


def test_commands_that_cannot_start(box: Sandbox) -> None:
    with pytest.raises(CommandStartError) as caught:
        box.execute(["no-such-program"])
    assert caught.value.reason == "COMMAND_NOT_FOUND"
    with pytest.raises(CommandStartError) as caught:
        box.execute("true", cwd="/none")
    assert caught.value.reason == "WORKING_DIRECTORY_INVALID"
    with pytest.raises(ExecNotFoundError):
        list(box.attach("nothing"))


def test_a_timeout_leaves_nothing(box: Sandbox) -> None:
    result = box.execute("echo on; setsid sleep 4242 & sleep 4242", timeout=2.5)
    assert (result.reason, result.code, result.stdout) == ("TIMED_OUT", 124, "on\n")
    assert _left(box) == []


def test_a_closed_stream_leaves_nothing(box: Sandbox) -> None:
    events = box.execute_stream("echo on; setsid sleep 4242 & sleep 4242")
    assert isinstance(next(events), Started)
    assert isinstance(next(events), Output)
    events.close()
    wait_for(lambda: _left(box) == [])


async def test_a_cancelled_task_leaves_nothing(box: Sandbox, real_config: Config) -> None:
    running = asyncio.Event()
    backend = SandgateSandbox(box.id, config=real_config, on_output=lambda _: running.set())
    task = asyncio.create_task(backend.aexecute("echo on; setsid sleep 4242 & sleep 4242"))
    await running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await backend.aclose()
    await asyncio.to_thread(wait_for, lambda: _left(box) == [])


def test_stdin_signal_and_detach(box: Sandbox) -> None:
    events = box.execute_stream("cat", stdin="a", stdin_open=True, exec_id="cat")
    next(events)
    offset = box.write_stdin("cat", b"b", offset=1)
    assert box.write_stdin("cat", b"bc", offset=offset - 1, eof=True) == 3
    assert "".join(e.text for e in events if isinstance(e, Output)) == "abc"
    detached = box.execute_stream("echo on; sleep 4242", detach=True, exec_id="bg")
    next(detached)
    detached.close()
    assert "bg" in [p.exec_id for p in box.processes()]
    assert box.signal("bg", "SIGTERM")
    events = box.attach("bg")
    *_, last = events
    assert last.reason in ("KILLED", "SIGNALED")  # type: ignore[union-attr]


def test_a_terminal(box: Sandbox) -> None:
    assert box.execute("stty size; test -t 1", terminal=(31, 77)).stdout == "31 77\r\n"


def test_100_mib_there_and_back(box: Sandbox, tmp_path: Path) -> None:
    local, back = tmp_path / "there", tmp_path / "back"
    block = os.urandom(1 << 20)
    with local.open("wb") as opened:
        for i in range(100):
            opened.write(i.to_bytes(4, "big") + block[4:])
    digest = hashlib.sha256(local.read_bytes()).digest()
    assert box.upload_file("/workspace/large", local, mode=0o600).sha256 == digest
    assert box.download_file("/workspace/large", back).sha256 == digest
    assert hashlib.sha256(back.read_bytes()).digest() == digest
    assert box.stat("/workspace/large").mode == 0o600
    box.remove("/workspace/large")


def test_a_source_that_cannot_be_read_writes_nothing(box: Sandbox, tmp_path: Path) -> None:
    class Failing(io.BytesIO):
        reads = 0

        def read(self, size: int | None = -1, /) -> bytes:
            self.reads += 1
            if self.reads == 3:
                raise OSError("the disk is gone")
            return super().read(size)

    box.upload_file("/workspace/unread/x", b"before")
    with pytest.raises(OSError, match="the disk is gone"):
        box.upload_file("/workspace/unread/x", Failing(os.urandom(8 << 20)))
    with pytest.raises(FileNotFoundError):
        box.upload_file("/workspace/unread/y", tmp_path / "none")
    assert box.download_file("/workspace/unread/x").content == b"before"
    assert [e.path for e in box.list("/workspace/unread")] == ["/workspace/unread/x"]


def test_files(box: Sandbox) -> None:
    assert box.make_directory("/workspace/d/e")
    assert not box.make_directory("/workspace/d/e")
    assert box.write("/workspace/d/f", "one\ntwo\n").created
    with pytest.raises(FileError) as caught:
        box.write("/workspace/d/f", "x", create_only=True)
    assert caught.value.reason == "FILE_ALREADY_EXISTS"
    assert box.edit("/workspace/d/f", "two", "2").occurrences == 1
    assert box.read("/workspace/d/f", offset=1).content == b"2"
    found = box.search("/workspace/d", "^[0-9]$", regexp=True, context_before=1)
    assert [(m.line, m.text, m.before) for m in found.matches] == [(2, b"2", (b"one",))]
    assert [f.path for f in box.glob("/workspace", "f*").files] == ["/workspace/d/f"]
    box.write("/workspace/d/e/nul", b"\0needle\n")
    assert not box.search("/workspace/d", "needle").matches
    assert len(box.search("/workspace/d", "needle", include_binary=True).matches) == 1
    assert not box.search("/workspace/d", "needle", include_binary=True, max_file_bytes=3).matches
    box.write("/workspace/d/e/empty", "")
    assert box.edit("/workspace/d/e/empty", "", "filled", allow_empty_old=True).size == 6
    box.move("/workspace/d/f", "/workspace/d/g")
    assert [(e.path, e.is_dir) for e in box.list("/workspace/d")] == [
        ("/workspace/d/e", True),
        ("/workspace/d/g", False),
    ]
    with pytest.raises(FileError) as caught:
        box.remove("/workspace/d")
    assert caught.value.reason == "DIRECTORY_NOT_EMPTY"
    assert box.remove("/workspace/d", recursive=True)
    assert not box.remove("/workspace/d", allow_missing=True)
    results = box.upload(
        UploadFile("/workspace/u", b"1"), UploadFile("rel", b"2"), UploadFile("/usr/x", b"3")
    )
    reasons = [r.error.reason if r.error else None for r in results]
    assert reasons[:2] == [None, "PATH_INVALID"]
    assert reasons[2] in ("FILE_READ_ONLY", "FILE_PERMISSION_DENIED")


async def test_many_at_once(real_config: Config, box: Sandbox) -> None:
    async with AsyncClient(config=real_config) as client:
        sandbox = client.sandbox(box.id)
        results = await asyncio.gather(*(sandbox.execute(f"seq {i} 20000") for i in range(1, 31)))
    for i, result in enumerate(results, start=1):
        assert result.stdout == "".join(f"{n}\n" for n in range(i, 20001))


async def test_calls_survive_a_killed_server(own_server: Server) -> None:
    # The command ends only when the server has been killed twice, so that both
    # breaks happen while it writes.
    script = "i=0; until test -e /workspace/go; do i=$((i+1)); echo $i; sleep 0.01; done; echo end"
    config = Config(address=own_server.address)
    seen = asyncio.Event()
    async with await SandgateSandbox.acreate(config=config, on_output=lambda _: seen.set()) as backend:
        task = asyncio.create_task(backend.aexecute(script))
        for _ in range(2):
            seen.clear()
            await seen.wait()
            await asyncio.to_thread(own_server.kill)
            await asyncio.to_thread(own_server.start)
        seen.clear()
        await seen.wait()
        assert (await backend.awrite("/workspace/go", "")).error is None
        response = await task
    lines = response.output.split()
    assert lines == [*(str(i) for i in range(1, len(lines))), "end"]
    assert response.exit_code == 0
