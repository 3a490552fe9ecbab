"""Chat models without a key: one runs the last message as a command, one plays a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable


class CommandModel(BaseChatModel):
    """Calls the tool `execute` with the user's message and replies with the output."""

    @property
    def _llm_type(self) -> str:
        return "commands"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Runnable[Any, AIMessage]:
        """Accept any tools: the model calls only `execute`."""
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **_: Any,
    ) -> ChatResult:
        last = messages[-1]
        if isinstance(last, ToolMessage):
            reply = AIMessage(last.text)
        else:
            request = next(m for m in reversed(messages) if isinstance(m, HumanMessage))
            call = ToolCall(name="execute", args={"command": request.text}, id=f"call-{len(messages)}")
            reply = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=reply)])


class ScriptedModel(BaseChatModel):
    """Issues one tool call after the other, then answers from what they returned."""

    calls: list[ToolCall]
    answer: Callable[[list[str]], str]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Runnable[Any, AIMessage]:
        """Check that the agent offers every tool that the script calls."""
        offered = {getattr(tool, "name", None) for tool in tools}
        missing = {call["name"] for call in self.calls} - offered
        if missing:
            raise RuntimeError(f"the agent does not offer {', '.join(sorted(missing))}")
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **_: Any,
    ) -> ChatResult:
        results = [str(m.text) for m in messages if isinstance(m, ToolMessage)]
        if len(results) < len(self.calls):
            reply = AIMessage("", tool_calls=[self.calls[len(results)]])
        else:
            reply = AIMessage(self.answer(results))
        return ChatResult(generations=[ChatGeneration(message=reply)])
