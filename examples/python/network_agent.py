"""A deep agent with a network, in which every step is real but the model.

It installs a package, clones a private repository with a secret that it cannot
read, starts a web server, and returns the server's URL. README.md says what the
server's configuration must have.

    export INDEX=https://packages.example.com/simple/
    export REPOSITORY=https://git.example.com/team/site.git
    python network_agent.py

The sandbox ends with a line, or the end, of the standard input.
"""

from __future__ import annotations

import os
import sys
from typing import Any
from urllib.parse import urlsplit

from deepagents import create_deep_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.tools import tool
from scripted import ScriptedModel

from sandgate import Client, EgressRule, EgressSecret
from sandgate.deepagents import SandgateSandbox

INDEX = os.environ["INDEX"]
REPOSITORY = os.environ["REPOSITORY"]

TASK = f"Publish the README.md of {REPOSITORY} as a web page, made by the package markdown."

SERVE = """\
nohup python3 -m http.server 8000 --directory site >server.log 2>&1 &
curl -sf --retry 30 --retry-delay 1 --retry-connrefused -o /dev/null http://127.0.0.1:8000/"""

CALLS = [
    ToolCall(name="execute", args={"command": "pip install -q markdown"}, id="call-1"),
    ToolCall(name="execute", args={"command": f"git clone -q {REPOSITORY} site"}, id="call-2"),
    ToolCall(
        name="execute", args={"command": "python3 -m markdown site/README.md > site/index.html"}, id="call-3"
    ),
    ToolCall(name="execute", args={"command": SERVE}, id="call-4"),
    ToolCall(name="get_url", args={"port": 8000}, id="call-5"),
]


def answered(results: list[str]) -> str:
    """Return what the model says in the end."""
    failed = any("[Command failed" in result for result in results)
    return "A command failed." if failed else f"The page is at {results[-1]}"


def rules() -> list[EgressRule]:
    """Return what the sandbox may reach: the two hosts, and one of them with a secret."""
    index, git = urlsplit(INDEX), urlsplit(REPOSITORY)
    allowed = [
        EgressRule(hosts=[index.hostname or ""], ports=[index.port or 443], methods=["GET", "HEAD"]),
        EgressRule(
            hosts=[git.hostname or ""],
            ports=[git.port or 443],
            secret=EgressSecret("git-token", user="x-access-token"),
        ),
    ]
    if private := os.environ.get("PRIVATE"):  # the CIDR of hosts whose addresses are not public
        allowed.append(EgressRule(cidrs=[private], ports=[index.port or 443, git.port or 443]))
    return allowed


def main() -> int:
    """Let the agent do its task; print the transcript."""
    with (
        SandgateSandbox.create(
            labels={"example": "network"},
            ttl=3600,
            env={"PIP_INDEX_URL": INDEX},
            network="PROXY",
            network_allow=rules(),
        ) as backend,
        Client() as client,
    ):
        print(f"sandbox {backend.id}\nuser: {TASK}")

        @tool
        def get_url(port: int) -> str:
            """Return a URL at which a browser reaches a port of the sandbox."""
            return client.sandbox(backend.id).get_url(port).url

        # A real model is one line: model="anthropic:claude-sonnet-4-5".
        model = ScriptedModel(calls=CALLS, answer=answered)
        agent = create_deep_agent(model=model, backend=backend, tools=[get_url])
        answer = ""
        task: Any = {"messages": [HumanMessage(TASK)]}
        for step in agent.stream(task, stream_mode="updates"):
            for update in step.values():
                for message in (update or {}).get("messages") or ():
                    if isinstance(message, ToolMessage):
                        print(message.text)
                    elif isinstance(message, AIMessage):
                        for call in message.tool_calls:
                            print(f"\nagent calls {call['name']}: {call['args']}")
                        if answer := message.text:
                            print(f"\nagent: {answer}", flush=True)
        if not answer.startswith("The page is at"):
            return 1
        sys.stdin.readline()
    return 0


if __name__ == "__main__":
    sys.exit(main())
