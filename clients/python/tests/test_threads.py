"""One sandbox per thread, against the fake server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import grpc
import pytest

from sandgate import Config
from sandgate.deepagents import SandgateThreadBackend
from sandgate.deepagents.threads import RECREATED, thread_sandbox_id
from tests.fake_files import Refused
from tests.fake_server import FakeServer
from tests.scripted import ain_thread, in_thread


@pytest.fixture
def backend(config: Config) -> Iterator[SandgateThreadBackend]:
    with SandgateThreadBackend(config=config, labels={"app": "x"}, ttl=60) as made:
        yield made


@pytest.fixture
def patient(config: Config) -> Iterator[SandgateThreadBackend]:
    with SandgateThreadBackend(config=config, recreate=True) as made:
        yield made


def _gone() -> Refused:
    return Refused(grpc.StatusCode.NOT_FOUND, "SANDBOX_NOT_FOUND", "there is no such sandbox")


def test_ids_are_valid_and_differ() -> None:
    threads = ["a", "a b", "a-b", "a/b", "ä", "x" * 500, "x" * 501, "../.."]
    ids = [thread_sandbox_id(t) for t in threads]
    assert len(set(ids)) == len(threads)
    assert all(len(i) <= 128 and set(i) <= set("abx-.thread0123456789f") | set("abcdef") for i in ids)
    assert thread_sandbox_id("a") == ids[0]


async def test_each_thread_has_its_own(backend: SandgateThreadBackend, fake: FakeServer) -> None:
    assert backend.id == "sandgate-threads"
    assert "CreateSandbox" not in fake.calls
    first = in_thread("1", lambda: backend.id)
    assert in_thread("1", lambda: backend.execute("echo hi")).output == "hi\n"
    assert (await ain_thread("2", lambda: backend.aexecute("echo hi"))).output == "hi\n"
    assert (await ain_thread("1", lambda: backend.als(str(fake.directory)))).error is None
    assert list(fake.sandboxes) == [first, thread_sandbox_id("2")]
    assert fake.calls.count("CreateSandbox") == 2
    assert fake.created[0].labels["app"] == "x"
    assert fake.created[0].labels["sandgate-thread"] != fake.created[1].labels["sandgate-thread"]
    assert set(backend.acquired) == set(fake.sandboxes)


async def test_a_race_has_one_sandbox(config: Config, fake: FakeServer) -> None:
    backends = [SandgateThreadBackend(config=config) for _ in range(3)]
    runs = [ain_thread("t", partial(b.aexecute, "echo hi")) for b in backends for _ in range(4)]
    assert {r.output for r in await asyncio.gather(*runs)} == {"hi\n"}
    assert list(fake.sandboxes) == [thread_sandbox_id("t")]
    for backend in backends:
        await backend.aclose()


async def test_without_a_thread(backend: SandgateThreadBackend, fake: FakeServer) -> None:
    with pytest.raises(ValueError, match="thread_id"):
        backend.execute("true")
    with pytest.raises(ValueError, match="thread_id"):
        await backend.aread("/x")
    with pytest.raises(TypeError, match="sandbox_id"):
        SandgateThreadBackend(sandbox_id="x")
    assert not fake.sandboxes


async def test_a_lost_sandbox_is_an_error_and_stays_lost(
    backend: SandgateThreadBackend, fake: FakeServer
) -> None:
    in_thread("1", lambda: backend.execute("true"))
    fake.sandboxes.clear()
    for call in ("WriteFile", "Download", "SearchFiles"):
        fake.faults[call] = [_gone()]
    results = [
        in_thread("1", lambda: backend.execute("true")).output,
        (await ain_thread("1", lambda: backend.aexecute("true"))).output,
        in_thread("1", lambda: backend.write("/x", "x")).error,
        (await ain_thread("1", lambda: backend.adownload_files(["/x"])))[0].error,
        in_thread("1", lambda: backend.grep("x")).error,
    ]
    for text in results:
        assert text is not None
        assert "the sandbox is lost" in text
    assert fake.calls.count("CreateSandbox") == 1


def test_an_expected_sandbox_is_not_made_silently(backend: SandgateThreadBackend, fake: FakeServer) -> None:
    backend.expect("1")
    assert "the sandbox is lost" in in_thread("1", lambda: backend.execute("true")).output
    assert not fake.sandboxes


async def test_recreating_is_told(patient: SandgateThreadBackend, fake: FakeServer) -> None:
    async def execute() -> str:
        return str((await ain_thread("1", lambda: patient.aexecute("echo hi"))).output)

    await execute()
    fake.sandboxes.clear()
    assert RECREATED in await execute()
    assert await execute() == "hi\n"
    fake.sandboxes.clear()
    assert RECREATED in in_thread("1", lambda: patient.execute("echo hi")).output
    assert in_thread("1", lambda: patient.execute("echo hi")).output == "hi\n"
    fake.faults["WriteFile"] = [_gone()]
    target = str(fake.directory / "written")
    assert RECREATED in str(in_thread("1", lambda: patient.write(target, "x")).error)
    assert in_thread("1", lambda: patient.write(target, "x")).error is None


async def test_what_is_read_at_the_start_is_missing_and_the_note_comes_later(
    patient: SandgateThreadBackend, fake: FakeServer
) -> None:
    in_thread("1", lambda: patient.execute("true"))
    fake.faults["Download"] = [_gone()]
    (memory,) = await ain_thread("1", lambda: patient.adownload_files([f"{fake.directory}/none"]))
    assert memory.error == "file_not_found"
    assert in_thread("1", lambda: patient.execute("echo hi")).output == f"{RECREATED}\nhi\n"
    assert in_thread("1", lambda: patient.execute("echo hi")).output == "hi\n"
    patient.expect("2")
    (memory,) = await ain_thread("2", lambda: patient.adownload_files([f"{fake.directory}/none"]))
    assert memory.error == "file_not_found"
    assert RECREATED in in_thread("2", lambda: patient.execute("echo hi")).output


async def test_trouble_while_acquiring_is_a_result(backend: SandgateThreadBackend, fake: FakeServer) -> None:
    full = Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED", "too many sandboxes")
    fake.faults["CreateSandbox"] = [full, full, full]
    assert "too many" in in_thread("1", lambda: backend.execute("true")).output
    assert "too many" in (await ain_thread("1", lambda: backend.aexecute("true"))).output
    assert "too many" in str(in_thread("1", lambda: backend.ls("/")).error)
    assert in_thread("1", lambda: backend.ls(str(fake.directory))).error is None


async def test_stopping_starts_anew(backend: SandgateThreadBackend, fake: FakeServer) -> None:
    in_thread("1", lambda: backend.execute("true"))
    assert in_thread("1", backend.stop)
    assert not fake.sandboxes
    assert in_thread("1", lambda: backend.execute("echo hi")).output == "hi\n"
    assert await ain_thread("1", backend.astop)
    assert not fake.sandboxes
