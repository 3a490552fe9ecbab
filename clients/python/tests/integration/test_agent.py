"""A real deep agent with a scripted model, against a real server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from deepagents import create_deep_agent

from sandgate import Config, Sandbox
from sandgate.deepagents import SandgateSandbox, SandgateStreaming
from tests.fake_server import wait_for
from tests.scripted import ScriptedModel, turn


async def test_output_streams_and_cancelling_leaves_no_process(real_config: Config, box: Sandbox) -> None:
    backend = SandgateSandbox.connect(box.id, config=real_config)
    agent: Any = create_deep_agent(model=ScriptedModel(), backend=backend, middleware=[SandgateStreaming()])
    deltas: list[str] = []

    async def run() -> None:
        command = "echo first; setsid sleep 4243 & sleep 4243"
        async for _, event in agent.astream(turn(command), stream_mode=["tools", "custom"]):
            if event["event"] == "tool-output-delta":
                deltas.append(event["delta"])

    running = asyncio.ensure_future(run())
    await asyncio.to_thread(wait_for, lambda: "first\n" in deltas)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    look = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -cx 4243"
    await asyncio.to_thread(wait_for, lambda: box.execute(look).stdout == "0\n")
    assert not box.processes()
    await backend.aclose()
