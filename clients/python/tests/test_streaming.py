"""Deltas and cancellation of a real deep agent with a scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from deepagents import create_deep_agent

from sandgate import Config
from sandgate.deepagents import SandgateSandbox, SandgateStreaming
from tests.fake_server import FakeServer, wait_for
from tests.scripted import ScriptedModel, outputs, turn


@pytest.fixture
def backend(config: Config) -> Iterator[SandgateSandbox]:
    with SandgateSandbox.create(config=config) as made:
        yield made


def _agent(backend: SandgateSandbox) -> Any:
    return create_deep_agent(model=ScriptedModel(), backend=backend, middleware=[SandgateStreaming()])


def _deltas(events: list[dict[str, Any]]) -> list[str]:
    return [e["delta"] for e in events if e["event"] == "tool-output-delta"]


# LangGraph gives the events of a step while it runs only beside "custom".
_LIVE = ["tools", "custom"]

# The second line waits for a file that is made when the first was seen.
_WAITING = "echo first; until test -e {0}; do sleep 0.01; done; echo second"


def test_the_stock_tool_streams(backend: SandgateSandbox, fake: FakeServer) -> None:
    seen = fake.directory / "seen"
    events = []
    for _, event in _agent(backend).stream(turn(_WAITING.format(seen)), stream_mode=_LIVE):
        events.append(event)
        if "first\n" in _deltas(events):
            seen.touch()
    assert _deltas(events) == ["first\n", "second\n"]
    assert len({e["tool_call_id"] for e in events}) == 1


async def test_the_stock_tool_streams_async(backend: SandgateSandbox, fake: FakeServer) -> None:
    seen = fake.directory / "seen"
    events = []
    async for _, event in _agent(backend).astream(turn(_WAITING.format(seen)), stream_mode=_LIVE):
        events.append(event)
        if "first\n" in _deltas(events):
            seen.touch()
    assert _deltas(events) == ["first\n", "second\n"]


def test_the_mode_alone_has_all_deltas_too(backend: SandgateSandbox) -> None:
    events = list(_agent(backend).stream(turn("echo a; echo b"), stream_mode="tools"))
    assert "".join(_deltas(events)) == "a\nb\n"


async def test_another_stream_mode_is_undisturbed(backend: SandgateSandbox) -> None:
    agent = _agent(backend)
    assert "hi" in outputs(agent.invoke(turn("echo hi")))[0]
    assert "hi" in outputs(await agent.ainvoke(turn("echo hi")))[0]


async def test_cancelling_the_run_kills_the_command(backend: SandgateSandbox, fake: FakeServer) -> None:
    started = fake.directory / "started"
    running = asyncio.ensure_future(_agent(backend).ainvoke(turn(f"touch {started}; sleep 4242")))
    await asyncio.to_thread(wait_for, started.exists)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    (command,) = fake.commands.values()
    assert command.killed.wait(60)
    assert command.process.wait(60) == -9
