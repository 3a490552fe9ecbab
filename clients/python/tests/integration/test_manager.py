"""Agents and graphs of the manager, against a real server."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest
from langchain_core.messages import AnyMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict

from sandgate import Client, Config, SandboxNotFoundError, SandboxReplacedError
from sandgate.deepagents import SandgateManager
from sandgate.deepagents.threads import RECREATED, thread_sandbox_id
from tests.integration.conftest import Server
from tests.scripted import ScriptedModel, outputs, turn


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    sandbox_id: str | None


def _thread(name: str) -> Any:
    return {"configurable": {"thread_id": name}}


async def test_s5_24_s5_25_an_agents_threads(real_config: Config, real_client: Client) -> None:
    saver = InMemorySaver()
    one, two = thread_sandbox_id("m1"), thread_sandbox_id("m2")
    async with SandgateManager(config=real_config, ttl_seconds=600, skip_cleanup=True) as manager:
        agent = manager.create_agent(ScriptedModel(), checkpointer=saver, system_prompt="Be brief.")
        await asyncio.gather(*(agent.ainvoke(turn(f"echo {n} > f"), _thread(n)) for n in ("m1", "m2")))
        result = await asyncio.to_thread(agent.invoke, turn("cat f"), _thread("m1"))
        assert "m1" in outputs(result)[0]
        assert result["sandbox_id"] == one
        assert agent.get_state(_thread("m2")).values["sandbox_id"] == two
        deltas = [
            event["delta"]
            async for _, event in agent.astream(turn("cat f"), _thread("m2"), stream_mode=["tools", "custom"])
            if event["event"] == "tool-output-delta"
        ]
        assert deltas == ["m2\n"]
    # In another process, what the state knows to have been is not made silently.
    real_client.delete(one)
    async with SandgateManager(config=real_config, ttl_seconds=600, skip_cleanup=True) as manager:
        agent = manager.create_agent(ScriptedModel(), checkpointer=saver)
        assert "sandbox is lost" in outputs(await agent.ainvoke(turn("cat f"), _thread("m1")))[0]
        assert "m2" in outputs(await agent.ainvoke(turn("cat f"), _thread("m2")))[0]
    with SandgateManager(config=real_config, ttl_seconds=600, recreate=True) as manager:
        agent = manager.create_agent(ScriptedModel(), checkpointer=saver, memory=["/workspace/AGENTS.md"])
        received, after = outputs(agent.invoke(turn("cat f", "echo hi"), _thread("m1")))
        assert RECREATED in received
        assert RECREATED not in after
        agent.invoke(turn("true"), _thread("m2"))
        assert set(manager.backend.acquired) == {one, two}
    for sandbox_id in (one, two):
        with pytest.raises(SandboxNotFoundError):
            real_client.get(sandbox_id)


async def test_s1_23_s1_27_threads_outlive_the_server(own_server: Server) -> None:
    config = Config(address=own_server.address)
    async with SandgateManager(config=config, ttl_seconds=600) as manager:
        agent = manager.create_agent(ScriptedModel(), checkpointer=InMemorySaver())
        for name in ("r1", "r2"):
            await agent.ainvoke(turn(f"echo {name} > f"), _thread(name))
        await asyncio.to_thread(own_server.kill)
        await asyncio.to_thread(own_server.start)
        for name in ("r1", "r2"):
            assert name in outputs(await agent.ainvoke(turn("cat f"), _thread(name)))[0]


async def test_s5_25_nothing_is_made_before_the_first_tool_call(
    real_config: Config, real_client: Client
) -> None:
    async with SandgateManager(config=real_config, default_labels={"tests": "lazy"}) as manager:
        agent = manager.create_agent(ScriptedModel(calls=False))
        assert "sandbox_id" not in await agent.ainvoke(turn("true"), _thread("lazy"))
        assert not list(real_client.list(labels={"tests": "lazy"}))


async def test_s5_26_nodes(real_config: Config, real_client: Client) -> None:
    async with SandgateManager(config=real_config, ttl_seconds=600) as manager:
        builder = StateGraph(State)
        builder.add_node("setup", manager.create_setup_node())
        builder.add_node("agent", manager.create_agent_node(ScriptedModel()))
        builder.add_edge(START, "setup")
        builder.add_edge("setup", "agent")
        builder.add_edge("agent", END)
        graph: Any = builder.compile(checkpointer=InMemorySaver())
        await graph.ainvoke(turn("echo kept > f"), _thread("nodes"))
        result = await asyncio.to_thread(graph.invoke, turn("cat f"), _thread("nodes"))
        assert "kept" in outputs(result)[0]
        assert result["sandbox_id"] == thread_sandbox_id("nodes")
        assert real_client.delete(result["sandbox_id"])
        manager.backend.expect("nodes")
        assert "sandbox is lost" in outputs(await graph.ainvoke(turn("cat f"), _thread("nodes")))[0]
    async with SandgateManager(config=real_config, ttl_seconds=600) as other:
        setup = other.create_setup_node()
        with pytest.raises(SandboxReplacedError):
            await setup.ainvoke({"sandbox_id": "x"}, _thread("nodes"))
        assert await setup.ainvoke({}, _thread("fresh")) == {"sandbox_id": thread_sandbox_id("fresh")}


async def test_s5_27_get_or_reconnect(real_config: Config) -> None:
    async with SandgateManager(config=real_config, ttl_seconds=600) as manager:
        made = await manager.aget_or_reconnect(None)
        assert manager.get_or_reconnect(made.id).id == made.id
        assert made.stop()
        with pytest.raises(SandboxNotFoundError):
            await manager.aget_or_reconnect(made.id)
    async with SandgateManager(config=real_config, recreate=True, default_labels={"tests": "m"}) as manager:
        new = manager.get_or_reconnect(made.id)
        assert new.id != made.id
        assert new.execute("echo hi").output == "hi\n"
        assert (await manager.acleanup(0)).deleted == (new.id,)
        assert manager.cleanup(0).deleted == ()


@pytest.mark.parametrize("twin", [False, True])
async def test_s5_27_shutdown_deletes_the_sandboxes_of_its_threads(
    real_config: Config,
    real_client: Client,
    twin: bool,  # noqa: FBT001
) -> None:
    names = (f"shutdown-{twin}", f"kept-{twin}")
    ids = [thread_sandbox_id(name) for name in names]
    other = SandgateManager(config=real_config, ttl_seconds=600, skip_cleanup=True)
    manager = SandgateManager(config=real_config, ttl_seconds=600)
    for served, name in ((manager, names[0]), (other, names[1])):
        served.create_agent(ScriptedModel()).invoke(turn("echo hi > f"), _thread(name))
    await manager.ashutdown() if twin else manager.shutdown()
    with pytest.raises(SandboxNotFoundError):
        real_client.get(ids[0])
    # With skip_cleanup, and for another manager's threads, nothing is deleted.
    await other.ashutdown() if twin else other.shutdown()
    assert real_client.get(ids[1]).execute("cat f").stdout == "hi\n"
    real_client.delete(ids[1])
