"""A chat model without a key: it runs the last message as a command."""

from __future__ import annotations

from collections.abc import Sequence
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
