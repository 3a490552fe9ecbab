"""One sandbox per thread, against the fake server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import grpc
import pytest

from sandgate import Config
from sandgate._gen.sandbox.v1 import sandbox_lifecycle_pb2 as lifecycle_pb
from sandgate.deepagents import SandgateManager, SandgateThreadBackend
from sandgate.deepagents.threads import RECREATED, thread_sandbox_id
from sandgate.errors import SandboxNotActiveError
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


def test_thread_ids_become_valid_and_distinct_sandbox_ids() -> None:
    threads = ["a", "a b", "a-b", "a/b", "ä", "x" * 500, "x" * 501, "../.."]
    ids = [thread_sandbox_id(t) for t in threads]
    assert len(set(ids)) == len(threads)
    assert all(len(i) <= 128 and set(i) <= set("abx-.thread0123456789f") | set("abcdef") for i in ids)
    assert thread_sandbox_id("a") == ids[0]


async def test_each_thread_has_its_own_sandbox(backend: SandgateThreadBackend, fake: FakeServer) -> None:
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


async def test_concurrent_operations_of_a_thread_create_one_sandbox(config: Config, fake: FakeServer) -> None:
    backends = [SandgateThreadBackend(config=config) for _ in range(3)]
    runs = [ain_thread("t", partial(b.aexecute, "echo hi")) for b in backends for _ in range(4)]
    assert {r.output for r in await asyncio.gather(*runs)} == {"hi\n"}
    assert list(fake.sandboxes) == [thread_sandbox_id("t")]
    for backend in backends:
        await backend.aclose()


async def test_an_operation_without_a_thread_is_an_error(
    backend: SandgateThreadBackend, fake: FakeServer
) -> None:
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


async def test_recreating_is_reported(patient: SandgateThreadBackend, fake: FakeServer) -> None:
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


def _fail(fake: FakeServer) -> lifecycle_pb.Sandbox:
    (sandbox,) = fake.sandboxes.values()
    sandbox.state = lifecycle_pb.SANDBOX_STATE_FAILED
    return sandbox


async def test_a_failed_sandbox_is_lost(patient: SandgateThreadBackend, fake: FakeServer) -> None:
    in_thread("1", lambda: patient.execute("true"))
    _fail(fake)
    assert RECREATED in in_thread("1", lambda: patient.execute("echo hi")).output
    assert in_thread("1", lambda: patient.execute("echo hi")).output == "hi\n"
    _fail(fake)
    assert RECREATED in (await ain_thread("1", lambda: patient.aexecute("echo hi"))).output
    assert (await ain_thread("1", lambda: patient.aexecute("echo hi"))).output == "hi\n"
    assert fake.calls.count("DeleteSandbox") == 2


def test_a_failed_sandbox_is_lost_to_another_process(config: Config, fake: FakeServer) -> None:
    for recreate in (False, True):
        with SandgateThreadBackend(config=config, recreate=recreate) as first:
            in_thread("1", partial(first.execute, "true"))
        _fail(fake)
        for expected in (True, False):
            with SandgateThreadBackend(config=config, recreate=recreate) as second:
                if expected:
                    second.expect("1")
                result = in_thread("1", partial(second.execute, "true")).output
                assert (RECREATED in result) == recreate
                assert ("the sandbox is lost" in result) != recreate
                again = in_thread("1", partial(second.execute, "echo hi")).output
                assert (again == "hi\n") == recreate
            if recreate:
                _fail(fake)
        fake.sandboxes.clear()


def test_only_the_failed_incarnation_is_deleted(patient: SandgateThreadBackend, fake: FakeServer) -> None:
    in_thread("1", lambda: patient.execute("true"))
    failed = _fail(fake)
    replaced = lifecycle_pb.Sandbox()
    replaced.CopyFrom(failed)
    replaced.incarnation, replaced.state = "another", lifecycle_pb.SANDBOX_STATE_ACTIVE

    def answered() -> None:
        # Another process was quicker.
        fake.sandboxes[failed.sandbox_id] = replaced

    fake.after["GetSandbox"] = answered
    assert RECREATED in in_thread("1", lambda: patient.execute("true")).output
    assert fake.calls.count("DeleteSandbox") == 1
    assert fake.sandboxes[failed.sandbox_id] is replaced
    assert in_thread("1", lambda: patient.execute("echo hi")).output == "hi\n"


def test_a_suspended_sandbox_is_not_lost(patient: SandgateThreadBackend, fake: FakeServer) -> None:
    in_thread("1", lambda: patient.execute("true"))
    fake.faults["Execute"] = [
        Refused(
            grpc.StatusCode.FAILED_PRECONDITION, "SANDBOX_NOT_ACTIVE", "resume it first", state="SUSPENDED"
        )
    ]
    assert "resume it first" in in_thread("1", lambda: patient.execute("true")).output
    assert "DeleteSandbox" not in fake.calls


async def test_a_manager_replaces_a_failed_sandbox(config: Config, fake: FakeServer) -> None:
    with SandgateManager(config=config) as strict:
        made = strict.get_or_reconnect(None)
        _fail(fake)
        with pytest.raises(SandboxNotActiveError, match="failed"):
            strict.get_or_reconnect(made.id)
    with SandgateManager(config=config, recreate=True) as lenient:
        assert lenient.get_or_reconnect(made.id).id != made.id
        assert (await lenient.aget_or_reconnect(made.id)).id != made.id


async def test_files_read_at_the_start_are_missing_and_the_note_follows(
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


async def test_an_error_while_acquiring_is_a_result(backend: SandgateThreadBackend, fake: FakeServer) -> None:
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
