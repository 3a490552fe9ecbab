"""Lifecycle calls, sync and async."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable

import grpc
import pytest

from sandgate import AsyncClient, Client, Sandbox, UnavailableError
from tests.fake_files import Refused
from tests.fake_server import FakeServer


def test_lifecycle(client: Client) -> None:
    sandbox = client.create(sandbox_id="a", labels={"k": "v"})
    assert sandbox.id == "a"
    assert sandbox.incarnation
    assert sandbox.created is not None
    assert sandbox.created.labels == {"k": "v"}
    assert client.get("a").info().state == "ACTIVE"
    client.create(sandbox_id="b")
    assert [s.sandbox_id for s in client.list()] == ["a", "b"]
    assert client.delete("a")
    assert not client.delete("a")
    assert client.server_info().provider == "fake"


def test_the_context_manager_deletes_what_was_made_and_nothing_else(client: Client, fake: FakeServer) -> None:
    with client.create(sandbox_id="a"):
        with client.create(sandbox_id="a"), client.get("a"), client.sandbox("a"):
            pass
        assert "a" in fake.sandboxes
    assert "a" not in fake.sandboxes


def test_a_read_only_call_is_retried(client: Client, fake: FakeServer) -> None:
    away = Refused(grpc.StatusCode.UNAVAILABLE, "SERVER_SHUTTING_DOWN", "restarting")
    fake.faults["GetSandbox"] = [away, away]
    client.create(sandbox_id="a")
    assert client.get("a").id == "a"
    assert fake.calls.count("GetSandbox") == 3


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("DeleteSandbox", lambda box: box.delete()),
        ("SuspendSandbox", lambda box: box.suspend()),
        ("ResumeSandbox", lambda box: box.resume()),
        ("WriteFile", lambda box: box.write("/dev/null", "x")),
    ],
)
def test_an_idempotent_call_is_retried(
    sandbox: Sandbox, fake: FakeServer, name: str, call: Callable[[Sandbox], object]
) -> None:
    fake.faults[name] = [Refused(grpc.StatusCode.UNAVAILABLE, "SERVER_SHUTTING_DOWN", "restarting")]
    call(sandbox)
    assert fake.calls.count(name) == 2


def test_a_retried_creation_with_a_generated_id_owns_the_sandbox(client: Client, fake: FakeServer) -> None:
    fake.lost["CreateSandbox"] = [Refused(grpc.StatusCode.UNAVAILABLE, "SERVER_SHUTTING_DOWN", "restarting")]
    with client.create() as sandbox:
        assert sandbox.owned
        assert list(fake.sandboxes) == [sandbox.id]
    assert fake.calls.count("CreateSandbox") == 2
    assert not fake.sandboxes


def test_a_handle_follows_its_sandbox_through_a_resume(client: Client) -> None:
    sandbox = client.create(sandbox_id="a")
    other = client.get("a")
    assert sandbox.suspend().state == "SUSPENDED"
    assert client.suspend("a").state == "SUSPENDED"
    assert sandbox.resume().state == "ACTIVE"
    assert sandbox.incarnation == other.incarnation + "'"
    whichever = client.sandbox("a")
    whichever.resume()
    assert not whichever.incarnation


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("WriteFile", lambda box: box.write("/x", "x", create_only=True)),
        ("EditFile", lambda box: box.edit("/x", "a", "b")),
        ("MakeDirectory", lambda box: box.make_directory("/d")),
        ("RemoveFile", lambda box: box.remove("/x")),
        ("SignalProcess", lambda box: box.signal("e", "SIGTERM")),
    ],
)
def test_a_call_that_is_not_idempotent_is_made_once(
    sandbox: Sandbox, fake: FakeServer, name: str, call: Callable[[Sandbox], object]
) -> None:
    sandbox.info()
    fake.faults[name] = [Refused(grpc.StatusCode.UNAVAILABLE, "AGENT_UNAVAILABLE", "away")]
    with pytest.raises(UnavailableError):
        call(sandbox)
    assert fake.calls.count(name) == 1


async def test_urls(sandbox: Sandbox, async_client: AsyncClient, fake: FakeServer) -> None:
    url = sandbox.get_url(3000)
    assert (url.url, url.base_url, url.token) == ("http://x/?t", "http://x/", "t")
    assert url.expire_time == dt.datetime(1970, 1, 1, 0, 1, tzinfo=dt.UTC)
    assert "token=" not in repr(url)
    sandbox.get_url("/f", method="PUT", ttl=90)
    async with async_client:
        await async_client.sandbox("a").get_url("/g")
    port, put, get = fake.urls
    assert (port.WhichOneof("target"), port.port, port.method, port.HasField("ttl")) == (
        "port",
        3000,
        0,
        False,
    )
    assert port.expected_incarnation == sandbox.incarnation
    assert (put.WhichOneof("target"), put.path, put.method, put.ttl.seconds) == ("path", "/f", 2, 90)
    assert (get.path, get.method) == ("/g", 1)
    with pytest.raises(ValueError, match="negative"):
        sandbox.get_url(80, ttl=-1)


async def test_async_lifecycle(async_client: AsyncClient, fake: FakeServer) -> None:
    async with async_client as client:
        async with await client.create(sandbox_id="a") as sandbox:
            assert (await sandbox.info()).sandbox_id == "a"
            await client.create(sandbox_id="b")
            assert [s.sandbox_id async for s in client.list()] == ["a", "b"]
        assert list(fake.sandboxes) == ["b"]


def test_one_async_client_in_loop_after_loop(async_client: AsyncClient) -> None:
    async def ask() -> str:
        return (await async_client.server_info()).provider

    async def ask_and_close() -> str:
        async with async_client:
            return await ask()

    assert [asyncio.run(ask()) for _ in range(3)] == ["fake"] * 3
    assert asyncio.run(ask_and_close()) == "fake"


async def test_many_calls_at_once(async_client: AsyncClient) -> None:
    async with async_client:
        sandbox = await async_client.create(sandbox_id="a")
        results = await asyncio.gather(*(sandbox.execute(["echo", str(i)]) for i in range(20)))
    assert [r.stdout.strip() for r in results] == [str(i) for i in range(20)]
