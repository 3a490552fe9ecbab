"""A model that issues the tool calls of a script, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableLambda

T = TypeVar("T")


class ScriptedModel(BaseChatModel):
    """Executes each line of the last human message, then says `done`."""

    calls: bool = True
    """Without, it says `done` at once."""
    script: tuple[str, ...] = ()
    """What it executes in place of the message. All of it must succeed."""
    tool: str = "execute"
    """The tool that takes the lines."""
    argument: str = "command"

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Runnable[Any, AIMessage]:
        assert self.tool in {getattr(tool, "name", None) for tool in tools}
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **_: Any,
    ) -> ChatResult:
        asked = max(i for i, m in enumerate(messages) if isinstance(m, HumanMessage))
        lines = list(self.script) or str(messages[asked].text).splitlines()
        ended = sum(isinstance(m, ToolMessage) for m in messages[asked:])
        if self.script:
            failed = [str(m.text) for m in messages if isinstance(m, ToolMessage) and "Error" in str(m.text)]
            assert not failed, failed
        reply = AIMessage("done")
        if self.calls and ended < len(lines):
            call = ToolCall(name=self.tool, args={self.argument: lines[ended]}, id=f"call-{len(messages)}")
            reply = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=reply)])


def turn(*commands: str) -> Any:
    """Return the input of a turn that runs these commands."""
    return {"messages": [HumanMessage("\n".join(commands))]}


def outputs(result: dict[str, Any]) -> list[str]:
    """Return what the tools answered in the last turn."""
    messages: list[BaseMessage] = result["messages"]
    asked = max(i for i, m in enumerate(messages) if isinstance(m, HumanMessage))
    return [str(m.text) for m in messages[asked:] if isinstance(m, ToolMessage)]


def in_thread(thread_id: str, work: Callable[[], T]) -> T:
    run: Any = RunnableLambda(lambda _: work())
    result: T = run.invoke(None, {"configurable": {"thread_id": thread_id}})
    return result


async def ain_thread(thread_id: str, work: Callable[[], Any]) -> Any:
    async def call(_: Any) -> Any:
        return await work()

    return await RunnableLambda(call).ainvoke(None, {"configurable": {"thread_id": thread_id}})
