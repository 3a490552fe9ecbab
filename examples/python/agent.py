"""A deep agent that does a task in a real sandbox, without any key or network.

The model is scripted: it issues the tool calls that a real one would, and looks
at their results. Everything else is real: the agent, its tools, the sandbox.

    sandgate serve &
    python agent.py

Exits with 0 when the task was done, with 1 when it was not.
"""

from __future__ import annotations

import sys
from typing import Any

from deepagents import create_deep_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from scripted import ScriptedModel

from sandgate.deepagents import SandgateSandbox

TASK = "Write a program that finds the primes below 50, run it, and tell me their sum."

PROGRAM = """\
import time

total = 0
for n in range(2, 50):
    if all(n % d for d in range(2, n)):
        total += n
        print(n, flush=True)
        time.sleep(0.05)
with open("/workspace/result.txt", "w") as result:
    result.write(f"sum={total}\\n")
"""

CALLS = [
    ToolCall(name="write_file", args={"file_path": "/workspace/primes.py", "content": PROGRAM}, id="call-1"),
    ToolCall(name="execute", args={"command": "python3 /workspace/primes.py"}, id="call-2"),
    ToolCall(name="read_file", args={"file_path": "/workspace/result.txt"}, id="call-3"),
]


def answered(results: list[str]) -> str:
    """Return what the model says in the end."""
    found = [word for word in results[-1].split() if word.startswith("sum=")]
    return f"The sum is {found[0].removeprefix('sum=')}." if found else "I found no result."


def show(output: str) -> None:
    """Print what a command writes, as it comes."""
    print(output, end="", flush=True)


def main() -> int:
    """Let the agent do its task; print the transcript."""
    with SandgateSandbox.create(labels={"example": "python"}, ttl=600, on_output=show) as backend:
        print(f"sandbox {backend.id}")
        agent = create_deep_agent(
            # A real model is one line: model="anthropic:claude-sonnet-4-5",
            model=ScriptedModel(calls=CALLS, answer=answered),
            backend=backend,
        )
        print(f"\nuser: {TASK}")
        answer = ""
        task: Any = {"messages": [HumanMessage(TASK)]}
        for step in agent.stream(task, stream_mode="updates"):
            for update in step.values():
                for message in (update or {}).get("messages") or ():
                    answer = tell(message) or answer
    return 0 if answer == "The sum is 328." else 1


def tell(message: BaseMessage) -> str:
    """Print one message of the transcript; return the text of an answer."""
    if isinstance(message, ToolMessage):
        print(f"{message.name} returned:\n{message.text}")
    elif isinstance(message, AIMessage) and message.tool_calls:
        for call in message.tool_calls:
            print(f"\nagent calls {call['name']}({', '.join(call['args'])})")
    elif isinstance(message, AIMessage):
        print(f"\nagent: {message.text}")
        return str(message.text)
    return ""


if __name__ == "__main__":
    sys.exit(main())
