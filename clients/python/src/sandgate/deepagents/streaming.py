"""`SandgateStreaming`: a command's output on LangGraph's `tools` stream."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from langchain.agents.middleware import AgentMiddleware

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from langchain.agents.middleware.types import ToolCallRequest
    from langchain_core.messages import ToolMessage
    from langgraph.types import Command

_emit: Final[ContextVar[Callable[[str], None] | None]] = ContextVar("sandgate_emit", default=None)


def emit(text: str) -> None:
    """Hand a piece of output to the tool call that runs here, if it streams."""
    emit = _emit.get()
    if emit is not None:
        emit(text)


class SandgateStreaming(AgentMiddleware[Any, Any, Any]):
    """Streams what a command writes while the agent's `execute` tool runs.

    With it, `agent.stream(..., stream_mode=["tools", "custom"])` gives each piece
    of output as a `tool-output-delta` of its tool call. LangGraph gives the same
    for "tools" alone, but only when the step is over. Without that stream mode
    nothing happens. One instance serves any number of agents.
    """

    def wrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]],
    ) -> ToolMessage | Command[Any]:
        """Run a tool whose commands stream."""
        with _streaming(request):
            return handler(request)

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Async twin of `wrap_tool_call`."""
        with _streaming(request):
            return await handler(request)


@contextmanager
def _streaming(request: ToolCallRequest) -> Iterator[None]:
    # Older versions of LangGraph have no such method: then nothing streams.
    token = _emit.set(getattr(request.runtime, "emit_output_delta", None))
    try:
        yield
    finally:
        _emit.reset(token)
