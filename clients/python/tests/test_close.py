"""Closing a client ends its calls at once; the other clients have the same cases."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

from sandgate import AsyncClient, AsyncSandbox, CallCancelledError, Client, Config, Sandbox
from sandgate.deepagents import SandgateProvider, SandgateSession
from tests.fake_files import Refused
from tests.fake_server import FakeServer, wait_for

_TIMEOUT = 25
"""Seconds: less than any retry window."""


def _restarting(fake: FakeServer, name: str) -> None:
    fake.faults[name] = [
        Refused(grpc.StatusCode.UNAVAILABLE, "SERVER_SHUTTING_DOWN", "restarting") for _ in range(999)
    ]


@pytest.fixture
def hang(fake: FakeServer) -> Iterator[Callable[[], None]]:
    """Make the calls of the server hang until the test ends."""
    ended = threading.Event()

    def wait() -> None:
        ended.wait(2 * _TIMEOUT)

    def start() -> None:
        fake.on_call = wait

    yield start
    ended.set()


_CASES: dict[str, tuple[Callable[[FakeServer, Callable[[], None]], None], Callable[[Any], Any], str, int]] = {
    "a retry of a unary call": (
        lambda fake, _: _restarting(fake, "GetSandbox"),
        lambda s: s.info(),
        "GetSandbox",
        2,
    ),
    "a retry of a stream": (
        lambda fake, _: _restarting(fake, "Execute"),
        lambda s: s.execute("true"),
        "Execute",
        2,
    ),
    "a unary call": (lambda _, hang: hang(), lambda s: s.info(), "GetSandbox", 1),
    "an upload": (lambda _, hang: hang(), lambda s: s.upload_file("/x", b"x"), "Upload", 1),
    "a download": (lambda _, hang: hang(), lambda s: s.download("/x"), "Download", 1),
    "a command": (lambda *_: None, lambda s: s.execute("exec sleep 1000"), "Execute", 1),
}


@pytest.mark.parametrize("case", _CASES)
def test_close_ends_calls(
    fake: FakeServer, client: Client, sandbox: Sandbox, hang: Callable[[], None], case: str
) -> None:
    prepare, call, name, count = _CASES[case]
    prepare(fake, hang)
    with futures.ThreadPoolExecutor(1) as threads:
        running = threads.submit(call, sandbox)
        wait_for(lambda: fake.calls.count(name) >= count)
        client.close()
        with pytest.raises(CallCancelledError, match="the client is closed"):
            running.result(_TIMEOUT)
    for later in (
        client.server_info,
        lambda: sandbox.execute("true"),
        lambda: sandbox.upload_file("/x", b""),
    ):
        with pytest.raises(CallCancelledError, match="the client is closed"):
            later()
    with pytest.raises(CallCancelledError):
        sandbox.with_metadata({"x-team": "a"}).info()
    client.close()


@pytest.mark.parametrize("case", _CASES)
async def test_close_ends_calls_async(
    fake: FakeServer, async_client: AsyncClient, hang: Callable[[], None], case: str
) -> None:
    prepare, call, name, count = _CASES[case]
    sandbox = await async_client.create(sandbox_id="one")
    prepare(fake, hang)
    running = asyncio.ensure_future(call(sandbox))
    await asyncio.to_thread(wait_for, lambda: fake.calls.count(name) >= count)
    await async_client.close()
    with pytest.raises(CallCancelledError, match="the client is closed"):
        await asyncio.wait_for(running, _TIMEOUT)
    await _check_closed(async_client, sandbox)
    await async_client.close()


async def _check_closed(client: AsyncClient, sandbox: AsyncSandbox) -> None:
    for later in (client.server_info(), sandbox.execute("true"), sandbox.upload_file("/x", b"")):
        with pytest.raises(CallCancelledError, match="the client is closed"):
            await later


def test_close_in_one_event_loop_leaves_the_others(async_client: AsyncClient) -> None:
    async def close() -> None:
        sandbox = await async_client.create()
        await async_client.close()
        await _check_closed(async_client, sandbox)

    async def ask() -> str:
        return (await async_client.server_info()).provider

    asyncio.run(close())
    assert asyncio.run(ask()) == "fake"


async def test_a_command_runs_on_after_close(fake: FakeServer, async_client: AsyncClient) -> None:
    """Its disconnect grace decides, not the client."""
    sandbox = await async_client.create(sandbox_id="one")
    running = asyncio.ensure_future(sandbox.execute("exec sleep 1000"))
    await asyncio.to_thread(wait_for, lambda: bool(fake.commands))
    await async_client.close()
    with pytest.raises(CallCancelledError):
        await running
    (command,) = fake.commands.values()
    assert not command.killed.is_set()
    assert "SignalProcess" not in fake.calls


async def test_backends_can_be_used_again_after_close(config: Config) -> None:
    backend = SandgateSession(config=config, sandbox_id="a")
    for _ in range(2):
        with backend:
            assert backend.execute("echo x").output == "x\n"
        async with backend:
            assert (await backend.aexecute("echo x")).output == "x\n"
    provider = SandgateProvider(config=config)
    for _ in range(2):
        with provider:
            assert provider.stats().total == 0
        async with provider:
            assert (await provider.astats()).total == 0


def test_close_of_a_backend_ends_its_calls(config: Config, fake: FakeServer) -> None:
    backend = SandgateSession(config=config, sandbox_id="a", raise_on_transport_error=True)
    with futures.ThreadPoolExecutor(1) as threads:
        running = threads.submit(backend.execute, "exec sleep 1000")
        wait_for(lambda: bool(fake.commands))
        backend.close()
        with pytest.raises(CallCancelledError, match="the client is closed"):
            running.result(_TIMEOUT)
    assert backend.stop()
