"""`SandgatePython`: a sandbox as a tool, for agents with virtual files."""

from __future__ import annotations

import posixpath
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NotRequired

from langchain.agents.middleware import AgentMiddleware, AgentState
from langchain.agents.middleware.types import PrivateStateAttr
from langchain.tools import ToolRuntime  # noqa: TC002 - looked at when the tool is made
from langchain_core.messages import SystemMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.types import Command

from sandgate.aio import AsyncClient
from sandgate.client import Client
from sandgate.deepagents import _contract as contract
from sandgate.deepagents import _python_run
from sandgate.deepagents._options import MAX_OUTPUT_SIZE, CreateOptions, split_options
from sandgate.errors import SandgateError
from sandgate.options import new_sandbox_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Unpack

    from langchain.agents.middleware.types import ModelRequest, ModelResponse

    from sandgate._calls import Plan
    from sandgate._plans import Target
    from sandgate.options import ExecuteOptions, SandboxSpec
    from sandgate.process import Result

UPLOAD_DIR: Final = "/workspace"
IDLE_TTL: Final = 600.0
"""Seconds after which the sandbox of a run that crashed is gone."""

TOOL_MODE_PROMPT_SUFFIX: Final = (
    "\n\nYou have a tool `execute_python(code)` that runs Python 3 in a sandbox. The sandbox is made "
    "with the first call of a turn and gone when the turn ends: its processes and installed packages "
    "do not last. Before each call your files are copied to `{upload_dir}` inside it, so your file "
    "`/data.csv` is `{upload_dir}/data.csv` there; what the code writes below `{upload_dir}` is copied "
    "back to your files."
)

_COMMAND: Final = ("python3", "-")

_DESCRIPTION: Final = (
    "Run Python 3 code in a sandbox. Your files are below {upload_dir} there, and files that the code "
    "writes below {upload_dir} become yours. Returns the exit code and the output."
)


class PythonState(AgentState[Any]):
    """The state of an agent that has the tool."""

    python_sandbox: NotRequired[Annotated[str | None, PrivateStateAttr]]


class SandgatePython(AgentMiddleware[PythonState, Any, Any]):
    """Gives an agent the tool `execute_python`, and each run a sandbox for it.

    The agent keeps its files in the graph's state, as with deepagents' default
    backend. They are copied into the sandbox before each call, and what the code
    made or changed is copied back. The sandbox is made with the first call and
    deleted when the run ends; that of a run that crashed ends by `idle_ttl`.

    Args:
        upload_dir: Directory of the sandbox that stands for "/" of the files.
        timeout: Seconds that the code may take; None: the server's default.
        max_file_bytes: Larger files are not copied back, which the result says.
        **options: What describes a sandbox (`sandgate.options.SandboxSpec`) and
            the options of `SandgateSandbox`. Default of `idle_ttl`: 600.
    """

    state_schema = PythonState

    def __init__(
        self,
        *,
        upload_dir: str = UPLOAD_DIR,
        timeout: float | None = 300,
        max_file_bytes: int = 1024 * 1024,
        **options: Unpack[CreateOptions],
    ) -> None:
        super().__init__()
        given = split_options(options)
        if "sandbox_id" in given.spec:
            raise TypeError("each run has its own sandbox, so no sandbox_id can be given")
        self._given = given
        self._given.spec.setdefault("idle_ttl", IDLE_TTL)
        self._client = Client(config=given.config)
        self._async_client = AsyncClient(config=given.config)
        self._upload_dir = posixpath.normpath(upload_dir)
        self._timeout = timeout
        self._seeded: dict[str, set[str]] = {}
        self._max_file_bytes = max_file_bytes
        self.prompt_suffix = TOOL_MODE_PROMPT_SUFFIX.format(upload_dir=self._upload_dir)
        """What is added to the system prompt."""
        self.tools = [
            StructuredTool.from_function(
                name="execute_python",
                description=_DESCRIPTION.format(upload_dir=self._upload_dir),
                func=self._tool(),
                coroutine=self._atool(),
            )
        ]

    def close(self) -> None:
        """Close the sync connection; a later call opens another."""
        self._client.disconnect()

    async def aclose(self) -> None:
        """Close the running loop's connection and the sync one, as `close` does."""
        await self._async_client.disconnect()
        self._client.disconnect()

    def before_agent(self, state: PythonState, runtime: Any) -> dict[str, Any]:  # noqa: ARG002
        """Choose the run's sandbox id, so that calls side by side share it."""
        return {"python_sandbox": new_sandbox_id()}

    async def abefore_agent(self, state: PythonState, runtime: Any) -> dict[str, Any]:
        """Async twin of `before_agent`."""
        return self.before_agent(state, runtime)

    def after_agent(self, state: PythonState, runtime: Any) -> dict[str, Any]:  # noqa: ARG002
        """Delete the run's sandbox."""
        if sandbox_id := state.get("python_sandbox"):
            self._seeded.pop(sandbox_id, None)
            # What cannot be deleted now ends by `idle_ttl`.
            with suppress(SandgateError):
                self._client.delete(sandbox_id)
        return {"python_sandbox": None}

    async def aafter_agent(self, state: PythonState, runtime: Any) -> dict[str, Any]:  # noqa: ARG002
        """Async twin of `after_agent`."""
        if sandbox_id := state.get("python_sandbox"):
            self._seeded.pop(sandbox_id, None)
            with suppress(SandgateError):
                await self._async_client.delete(sandbox_id)
        return {"python_sandbox": None}

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Describe the tool to the model."""
        return handler(self._instructed(request))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """Async twin of `wrap_model_call`."""
        return await handler(self._instructed(request))

    def _instructed(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        known = request.system_message
        blocks: list[Any] = list(known.content_blocks) if known is not None else []
        blocks.append({"type": "text", "text": self.prompt_suffix})
        return request.override(system_message=SystemMessage(content=blocks))

    def _tool(self) -> Callable[..., Any]:
        def execute_python(code: str, runtime: ToolRuntime) -> Any:
            call = _Call(self._upload_dir, self._max_file_bytes, runtime, self._seeded)
            try:
                sandbox = self._client.create(**self._spec(runtime))
                self._client.run(call.put(sandbox.target))
                result = sandbox.execute(_COMMAND, **self._options(code))
                return self._client.run(call.answer(sandbox.target, result))
            except SandgateError as e:
                return call.failed(e)

        return execute_python

    def _atool(self) -> Callable[..., Awaitable[Any]]:
        async def execute_python(code: str, runtime: ToolRuntime) -> Any:
            call = _Call(self._upload_dir, self._max_file_bytes, runtime, self._seeded)
            try:
                sandbox = await self._async_client.create(**self._spec(runtime))
                await self._async_client.run(call.put(sandbox.target))
                result = await sandbox.execute(_COMMAND, **self._options(code))
                return await self._async_client.run(call.answer(sandbox.target, result))
            except SandgateError as e:
                return call.failed(e)

        return execute_python

    def _spec(self, runtime: ToolRuntime) -> SandboxSpec:
        spec = self._given.spec.copy()
        spec["sandbox_id"] = _sandbox_of(runtime.state)
        return spec

    def _options(self, code: str) -> ExecuteOptions:
        options: ExecuteOptions = {
            "stdin": code,
            "cwd": self._upload_dir,
            "merged": True,
            "max_output_bytes": self._given.own.get("max_output_size", MAX_OUTPUT_SIZE),
        }
        if self._timeout is not None:
            options["timeout"] = self._timeout
        return options


class _Call:
    """One call of the tool."""

    def __init__(
        self, directory: str, max_file_bytes: int, runtime: ToolRuntime, seeded: dict[str, set[str]]
    ) -> None:
        self._directory = directory
        self._max_file_bytes = max_file_bytes
        self._runtime = runtime
        self._files: _python_run.VirtualFiles = runtime.state.get("files") or {}
        self._known = seeded.setdefault(_sandbox_of(runtime.state), set())
        self._before: _python_run.Listing = {}

    def put(self, target: Target) -> Plan[None]:
        stale = self._known - self._files.keys()
        self._before = yield from _python_run.put(target, self._files, stale, self._directory)
        self._known.difference_update(stale)
        self._known.update(self._files)

    def answer(self, target: Target, result: Result) -> Plan[Any]:
        changed, large = yield from _python_run.take(
            target, self._before, self._files, self._directory, self._max_file_bytes
        )
        self._known.update(name for name, data in changed.items() if data is not None)
        text = f"exit={result.code}\n{result.output}"
        if result.timed_out:
            text += f"\n[ended after {result.exited.wall_time:.0f} s: out of time]"
        if result.truncated:
            text += "\n[output truncated]"
        for path in large:
            text += f"\n[{path} has more than {self._max_file_bytes} bytes and was not copied back]"
        message = self._message(text)
        return Command(update={"messages": [message], "files": changed}) if changed else message

    def failed(self, error: SandgateError) -> ToolMessage:
        return self._message(f"Error: {contract.describe(error)}", "error")

    def _message(self, text: str, status: Literal["success", "error"] = "success") -> ToolMessage:
        call_id = self._runtime.tool_call_id or ""
        return ToolMessage(text, tool_call_id=call_id, name="execute_python", status=status)


def _sandbox_of(state: Any) -> str:
    sandbox_id = state.get("python_sandbox")
    if not sandbox_id:
        raise ValueError("execute_python runs only in an agent that has SandgatePython as a middleware")
    return str(sandbox_id)
