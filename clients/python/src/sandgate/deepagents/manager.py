"""`SandgateManager`: agents and graphs whose threads have sandboxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NotRequired

from deepagents import create_deep_agent
from langchain.agents.middleware import AgentMiddleware, AgentState
from langchain_core.runnables import Runnable, RunnableLambda

from sandgate._context import AsyncManaged, Managed
from sandgate.deepagents._acquire import is_lost
from sandgate.deepagents.provider import SandgateProvider
from sandgate.deepagents.streaming import SandgateStreaming
from sandgate.deepagents.threads import SandgateThreadBackend, current_thread
from sandgate.errors import SandgateError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Unpack

    from sandgate.deepagents._options import CreateOptions
    from sandgate.deepagents.backend import SandgateSandbox
    from sandgate.info import CleanupResult

SANDBOX_KEY: Final = "sandbox_id"
"""The field of a graph's state that holds the id of its thread's sandbox."""


class SandboxState(AgentState[Any]):
    """The state of an agent, with its sandbox's id."""

    sandbox_id: NotRequired[str | None]


class _KeepId(AgentMiddleware[SandboxState, Any, Any]):
    """Keeps the sandbox's id in the state, which shows whether a sandbox was lost."""

    state_schema = SandboxState

    def __init__(self, backend: SandgateThreadBackend) -> None:
        super().__init__()
        self._backend = backend

    def before_agent(self, state: SandboxState, runtime: Any) -> None:  # noqa: ARG002 - the hook's signature
        if state.get(SANDBOX_KEY):
            self._backend.expect(current_thread())

    async def abefore_agent(self, state: SandboxState, runtime: Any) -> None:
        self.before_agent(state, runtime)

    def before_model(self, state: SandboxState, runtime: Any) -> dict[str, Any] | None:  # noqa: ARG002
        return _changed(self._backend, state.get(SANDBOX_KEY), SANDBOX_KEY)

    async def abefore_model(self, state: SandboxState, runtime: Any) -> dict[str, Any] | None:
        return self.before_model(state, runtime)


class SandgateManager(Managed, AsyncManaged):
    """Gives each thread of a LangGraph application a sandbox of its own.

    A sandbox is made with the first tool call of its thread and found again by
    every process. Its id is kept in the graph's state, so that a lost sandbox
    differs from one that was never made: it is an error of each operation, or
    with `recreate` a new sandbox of which the AI agent is notified.

    As a context manager, sync or async, it shuts down at the end.

    Args:
        default_labels: Labels of every sandbox.
        ttl_seconds: Lifetime of a sandbox from its creation; 0: none; None: the
            server's.
        ttl_idle_seconds: Lifetime without activity, likewise.
        recreate: Make a new sandbox for a thread that lost its own.
        skip_cleanup: `shutdown` leaves the sandboxes, for their lifetimes to end.
        **options: What describes a sandbox (`sandgate.options.SandboxSpec`, but
            `sandbox_id`) and the options of `SandgateSandbox`.
    """

    def __init__(
        self,
        *,
        default_labels: Mapping[str, str] | None = None,
        ttl_seconds: float | None = None,
        ttl_idle_seconds: float | None = None,
        recreate: bool = False,
        skip_cleanup: bool = False,
        **options: Unpack[CreateOptions],
    ) -> None:
        options["labels"] = {**(default_labels or {}), **options.get("labels", {})}
        if ttl_seconds is not None:
            options["ttl"] = ttl_seconds
        if ttl_idle_seconds is not None:
            options["idle_ttl"] = ttl_idle_seconds
        self.backend = SandgateThreadBackend(recreate=recreate, **options)
        """The backend of all agents, for graphs that are built by hand."""
        self.provider = SandgateProvider(**options)
        """The provider behind `get_or_reconnect` and `cleanup`."""
        self._recreate = recreate
        self._skip_cleanup = skip_cleanup

    def create_agent(self, model: Any, *, checkpointer: Any = None, **kwargs: Any) -> Any:
        """Return a deep agent whose threads have sandboxes.

        It is the agent's own graph, so all its steps and the output of its
        commands stream. It is to be run with a `thread_id`.

        Args:
            model: As for `create_deep_agent`.
            checkpointer: Keeps threads over runs.
            **kwargs: For `create_deep_agent`, but `backend`.
        """
        own = [SandgateStreaming(), _KeepId(self.backend)]
        middleware = [*own, *kwargs.pop("middleware", ())]
        return create_deep_agent(
            model, backend=self.backend, middleware=middleware, checkpointer=checkpointer, **kwargs
        )

    def create_setup_node(self, *, state_sandbox_key: str = SANDBOX_KEY) -> Runnable[Any, dict[str, Any]]:
        """Return a node that makes or takes the thread's sandbox at once.

        It writes the sandbox's id to the state. Nodes after it use `backend`.
        A lost sandbox is a `SandboxReplacedError`, unless `recreate` is set.
        """

        def setup(state: Any) -> dict[str, Any]:
            self._expect(state, state_sandbox_key)
            return {state_sandbox_key: self.backend.acquire()}

        async def asetup(state: Any) -> dict[str, Any]:
            self._expect(state, state_sandbox_key)
            return {state_sandbox_key: await self.backend.aacquire()}

        return RunnableLambda(setup, afunc=asetup, name="sandbox_setup")

    def create_agent_node(
        self, model: Any, *, state_sandbox_key: str = SANDBOX_KEY, **kwargs: Any
    ) -> Runnable[Any, dict[str, Any]]:
        """Return a node that runs a deep agent on the state's `messages`.

        It writes the messages and the sandbox's id to the state. The agent's
        steps are those of a subgraph.

        Args:
            model: As for `create_deep_agent`.
            state_sandbox_key: The state's field for the sandbox's id.
            **kwargs: For `create_deep_agent`, but `backend`.
        """
        agent = self.create_agent(model, **kwargs)

        def given(state: Any) -> Any:
            self._expect(state, state_sandbox_key)
            return {"messages": state["messages"]}

        def written(state: Any, result: Any) -> dict[str, Any]:
            changed = _changed(self.backend, state.get(state_sandbox_key), state_sandbox_key)
            return {"messages": result["messages"], **(changed or {})}

        def run(state: Any) -> dict[str, Any]:
            return written(state, agent.invoke(given(state)))

        async def arun(state: Any) -> dict[str, Any]:
            return written(state, await agent.ainvoke(given(state)))

        return RunnableLambda(run, afunc=arun, name="sandbox_agent")

    def get_or_reconnect(self, sandbox_id: str | None) -> SandgateSandbox:
        """Take an existing sandbox, or make one where no id is known yet.

        Raises:
            SandboxNotFoundError: It is lost, and `recreate` is not set; with it,
                a new sandbox with another id is made.
            SandboxNotActiveError: It failed, likewise.
        """
        if sandbox_id:
            try:
                return self.provider.reconnect(sandbox_id)
            except SandgateError as e:
                if not (self._recreate and is_lost(e)):
                    raise
        return self.provider.get_or_create()

    async def aget_or_reconnect(self, sandbox_id: str | None) -> SandgateSandbox:
        """Async twin of `get_or_reconnect`."""
        if sandbox_id:
            try:
                return await self.provider.areconnect(sandbox_id)
            except SandgateError as e:
                if not (self._recreate and is_lost(e)):
                    raise
        return await self.provider.aget_or_create()

    def cleanup(self, max_idle_seconds: float | None = None) -> CleanupResult:
        """Delete idle sandboxes with the default labels; see `SandgateProvider.cleanup`."""
        return self.provider.cleanup(max_idle_seconds)

    async def acleanup(self, max_idle_seconds: float | None = None) -> CleanupResult:
        """Async twin of `cleanup`."""
        return await self.provider.acleanup(max_idle_seconds)

    def shutdown(self) -> None:
        """Delete the sandboxes of the threads served here, and close the connections.

        Every one is tried. With `skip_cleanup` all stay.

        Raises:
            SandgateError: One could not be deleted.
        """
        failed: list[SandgateError] = []
        for sandbox_id in () if self._skip_cleanup else self.backend.acquired:
            try:
                self.provider.delete(sandbox_id=sandbox_id)
            except SandgateError as e:
                failed.append(e)
        self.backend.close()
        self.provider.close()
        if failed:
            raise failed[0]

    async def ashutdown(self) -> None:
        """Async twin of `shutdown`."""
        failed: list[SandgateError] = []
        for sandbox_id in () if self._skip_cleanup else self.backend.acquired:
            try:
                await self.provider.adelete(sandbox_id=sandbox_id)
            except SandgateError as e:
                failed.append(e)
        await self.backend.aclose()
        await self.provider.aclose()
        if failed:
            raise failed[0]

    def _leave(self) -> None:
        self.shutdown()

    async def _aleave(self) -> None:
        await self.ashutdown()

    def _expect(self, state: Any, key: str) -> None:
        if state.get(key):
            self.backend.expect(current_thread())


def _changed(backend: SandgateThreadBackend, known: Any, key: str) -> dict[str, Any] | None:
    """Return the update that the state needs, if any."""
    sandbox_id = backend.id
    return {key: sandbox_id} if sandbox_id != known and sandbox_id in backend.acquired else None
