"""A chat service: one deep agent, one sandbox per conversation.

    pip install 'sandgate[deepagents]' fastapi uvicorn
    sandgate serve &
    MODEL=anthropic:claude-sonnet-4-5 uvicorn app:app

Without MODEL, the agent needs no key: it runs the last message as a command.

    curl -X POST 'localhost:8000/chat/conversation-1' -d '{"message": "uname -a"}' \
        -H 'content-type: application/json'

Nothing that a sandbox needs is kept in the process. Any number of replicas serve
any conversation, in any order; they only have to share a checkpointer in place of
the one in memory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from sandgate.deepagents import SandgateManager


class Question(BaseModel):
    """What a user says."""

    message: str


def chosen_model() -> Any:
    """Return the model that MODEL names, or one that needs no key."""
    if name := os.environ.get("MODEL"):
        return name
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from scripted import CommandModel  # noqa: PLC0415 - only where no model is named

    return CommandModel()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Connect when the service starts, disconnect when it ends. Sandboxes stay."""
    async with SandgateManager(
        ttl_idle_seconds=1800, default_labels={"app": "chat"}, skip_cleanup=True, recreate=True
    ) as manager:
        app.state.manager = manager
        app.state.agent = manager.create_agent(chosen_model(), checkpointer=InMemorySaver())
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/chat/{thread_id}")
async def chat(thread_id: str, question: Question) -> dict[str, str]:
    """Answer in a conversation; its sandbox is made with the first command."""
    result = await app.state.agent.ainvoke(
        {"messages": [{"role": "user", "content": question.message}]},
        {"configurable": {"thread_id": thread_id}},
    )
    return {"reply": result["messages"][-1].text, "sandbox_id": result.get("sandbox_id") or ""}


@app.get("/sandboxes")
async def sandboxes() -> list[dict[str, str]]:
    """List the sandboxes of all conversations, whichever replica made them."""
    page = await app.state.manager.provider.alist(labels={"app": "chat"})
    return [{"id": found.id, "status": found.status} for found in page.sandboxes]


@app.delete("/sandboxes/{sandbox_id}")
async def delete(sandbox_id: str) -> None:
    """End a conversation's sandbox."""
    await app.state.manager.provider.adelete(sandbox_id=sandbox_id)
