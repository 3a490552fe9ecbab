"""One sandbox per thread, with a real deep agent and a real server."""

from __future__ import annotations

import asyncio
from typing import Any

from deepagents import create_deep_agent
from langgraph.checkpoint.memory import InMemorySaver

from sandgate import Client, Config
from sandgate.deepagents import SandgateThreadBackend
from sandgate.deepagents.threads import RECREATED, thread_sandbox_id
from tests.scripted import ScriptedModel, outputs, turn


def _thread(name: str) -> Any:
    return {"configurable": {"thread_id": f"py threads/{name}"}}


async def test_threads_keep_apart_and_a_lost_sandbox_is_reported(
    real_config: Config, real_client: Client
) -> None:
    saver = InMemorySaver()

    def agent(backend: SandgateThreadBackend) -> Any:
        return create_deep_agent(model=ScriptedModel(), backend=backend, checkpointer=saver)

    async with SandgateThreadBackend(config=real_config, ttl=600) as backend:
        first = agent(backend)
        await asyncio.gather(
            *(first.ainvoke(turn(f"echo {n} > mine"), _thread(n)) for n in ("one", "two")),
        )
        for name in ("one", "two"):
            (output,) = outputs(await asyncio.to_thread(first.invoke, turn("cat mine"), _thread(name)))
            assert name in output
    # Another process finds the same sandboxes.
    async with SandgateThreadBackend(config=real_config, ttl=600) as backend:
        (output,) = outputs(await agent(backend).ainvoke(turn("cat mine"), _thread("one")))
        assert "one" in output
        lost = thread_sandbox_id("py threads/one")
        assert lost in backend.acquired
        real_client.delete(lost)
        (output,) = outputs(await agent(backend).ainvoke(turn("cat mine"), _thread("one")))
        assert "the sandbox is lost" in output
        # A new one of the same name is not taken for the old one.
        real_client.create(sandbox_id=lost, ttl=600)
        (output,) = outputs(await agent(backend).ainvoke(turn("cat mine"), _thread("one")))
        assert "the sandbox is lost" in output
    async with SandgateThreadBackend(config=real_config, ttl=600, recreate=True) as backend:
        await agent(backend).ainvoke(turn("true"), _thread("one"))
        real_client.delete(lost)
        received, after = outputs(await agent(backend).ainvoke(turn("ls", "echo hi"), _thread("one")))
        assert RECREATED in received
        assert RECREATED not in after
        assert "hi" in after
    for name in ("one", "two"):
        assert real_client.delete(thread_sandbox_id(f"py threads/{name}"))
