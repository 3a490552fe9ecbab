"""`SandgateProvider`: makes, finds and removes sandboxes for deepagents."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, cast, get_args

from sandgate import _plans
from sandgate._context import AsyncManaged, Managed
from sandgate.aio import AsyncClient
from sandgate.client import Client
from sandgate.deepagents._acquire import usable
from sandgate.deepagents._options import CreateOptions, split_options
from sandgate.deepagents.backend import SandgateSandbox
from sandgate.errors import SandboxExistsError, TemplateNotFoundError, UnsupportedError
from sandgate.options import new_sandbox_id

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Unpack

    from sandgate._calls import Plan
    from sandgate.info import CleanupResult, PoolStatus, SandboxInfo
    from sandgate.options import SandboxOptions, SandboxSpec, SandboxState

Status = Literal["pending", "running", "suspended", "terminated", "warm"]

_STATUS: Final[dict[str, Status]] = {
    "CREATING": "pending",
    "ACTIVE": "running",
    "SUSPENDED": "suspended",
    "DELETING": "terminated",
    "FAILED": "terminated",
}


@dataclass(frozen=True, slots=True)
class ListedSandbox:
    """One sandbox of a list."""

    id: str
    status: Status
    labels: Mapping[str, str]
    created_at: dt.datetime | None
    info: SandboxInfo
    """Everything that the server reports."""


@dataclass(frozen=True, slots=True)
class SandboxPage:
    """One page of a list."""

    sandboxes: tuple[ListedSandbox, ...]
    cursor: str | None
    """Where the next page begins; None: this was the last one."""


@dataclass(frozen=True, slots=True)
class ProviderStats:
    """Counts of the caller's sandboxes."""

    total: int
    running: int
    warm: int
    """Ready in the pool and not claimed; not part of `total`."""
    idle: int
    """Of the running ones, those without activity for longer than the threshold."""
    thread_ids: int
    """Sandboxes that belong to a thread, each to its own."""


THREAD_LABEL: Final = "sandgate-thread"
"""Label of a sandbox that belongs to a thread: a digest of the thread's id."""


class SandgateProvider(Managed, AsyncManaged):
    """Makes, finds and removes sandboxes. Safe for several threads and loops.

    It holds no sandboxes: what it does is asked of the server each time, so
    that several processes can do the same work. As a context manager it closes
    its connections; sandboxes stay.

    Args:
        default_labels: Labels of every sandbox that it makes.
        ttl_seconds: Lifetime from creation, unless a call says otherwise; 0: none;
            None: the server's.
        ttl_idle_seconds: Lifetime without activity, likewise.
        **options: What describes a sandbox (`sandgate.options.SandboxSpec`) and
            the options of `SandgateSandbox`; a call's own go before them.
    """

    def __init__(
        self,
        *,
        default_labels: Mapping[str, str] | None = None,
        ttl_seconds: float | None = None,
        ttl_idle_seconds: float | None = None,
        **options: Unpack[CreateOptions],
    ) -> None:
        self._options = split_options(options)
        self._spec = self._options.spec
        self._labels = {**(default_labels or {}), **self._spec.pop("labels", {})}
        if ttl_seconds is not None:
            self._spec["ttl"] = ttl_seconds
        if ttl_idle_seconds is not None:
            self._spec["idle_ttl"] = ttl_idle_seconds
        self._client = Client(config=self._options.config)
        self._async_client = AsyncClient(config=self._options.config)

    def get_or_create(
        self,
        *,
        sandbox_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        ttl_seconds: float | None = None,
        ttl_idle_seconds: float | None = None,
        **spec: Unpack[SandboxOptions],
    ) -> SandgateSandbox:
        """Take the sandbox of an id, or make it where there is none.

        Callers that race for one id get the same sandbox. Closing the result as a
        context manager leaves the sandbox; `stop` or `delete` ends it. Whoever
        must not get an empty sandbox in place of a lost one calls `reconnect`.

        Args:
            sandbox_id: Default: made up, so that a new sandbox is made.
            labels: Added to the default ones when it is made.
            ttl_seconds: Lifetime from creation; 0: none.
            ttl_idle_seconds: Lifetime without activity; 0: none.
            **spec: What describes the sandbox; not compared with an existing one's.

        Raises:
            SandgateError: The sandbox could not be made.
        """
        wanted = self._wanted(sandbox_id, labels, ttl_seconds, ttl_idle_seconds, spec)
        return self._backend(self._client.run(self._get_or_create(wanted)))

    async def aget_or_create(
        self,
        *,
        sandbox_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        ttl_seconds: float | None = None,
        ttl_idle_seconds: float | None = None,
        **spec: Unpack[SandboxOptions],
    ) -> SandgateSandbox:
        """Async twin of `get_or_create`."""
        wanted = self._wanted(sandbox_id, labels, ttl_seconds, ttl_idle_seconds, spec)
        return self._backend(await self._async_client.run(self._get_or_create(wanted)))

    def reconnect(self, sandbox_id: str) -> SandgateSandbox:
        """Take an existing sandbox.

        Raises:
            SandboxNotFoundError: There is no such sandbox.
            SandboxNotActiveError: It failed.
        """
        return self._backend(usable(self._client.run(_plans.get(sandbox_id))))

    async def areconnect(self, sandbox_id: str) -> SandgateSandbox:
        """Async twin of `reconnect`."""
        return self._backend(usable(await self._async_client.run(_plans.get(sandbox_id))))

    def list(
        self,
        *,
        status: Status | None = None,
        labels: Mapping[str, str] | None = None,
        cursor: str | None = None,
    ) -> SandboxPage:
        """Give a page of the caller's sandboxes that have the default labels.

        Args:
            status: Only those in this status. `warm` lists none, since a pool's
                sandboxes belong to no caller; `pool_status` counts them.
            labels: Only those that have all of these too.
            cursor: Where the page begins; from the page before.

        Raises:
            ValueError: There is no such status.
        """
        return self._client.run(self._page(status, labels, cursor))

    async def alist(
        self,
        *,
        status: Status | None = None,
        labels: Mapping[str, str] | None = None,
        cursor: str | None = None,
    ) -> SandboxPage:
        """Async twin of `list`."""
        return await self._async_client.run(self._page(status, labels, cursor))

    def delete(self, *, sandbox_id: str) -> None:
        """End a sandbox and everything in it; that there is none is no error."""
        self._client.delete(sandbox_id)

    async def adelete(self, *, sandbox_id: str) -> None:
        """Async twin of `delete`."""
        await self._async_client.delete(sandbox_id)

    def cleanup(self, max_idle_seconds: float | None = None) -> CleanupResult:
        """Delete sandboxes that were idle for longer; a running command is no idleness.

        Of all the caller's sandboxes it takes those with the default labels.

        Args:
            max_idle_seconds: None: only those past their own lifetime.
        """
        return self._client.cleanup(max_idle=max_idle_seconds, labels=self._labels)

    async def acleanup(self, max_idle_seconds: float | None = None) -> CleanupResult:
        """Async twin of `cleanup`."""
        return await self._async_client.cleanup(max_idle=max_idle_seconds, labels=self._labels)

    def pool_status(self) -> PoolStatus:
        """Return the counts of the pool of this provider's template.

        Raises:
            UnsupportedError: The server keeps no pools.
            TemplateNotFoundError: It keeps none of this template.
        """
        return self._client.pool_status(self._spec.get("template", ""))

    async def apool_status(self) -> PoolStatus:
        """Async twin of `pool_status`."""
        return await self._async_client.pool_status(self._spec.get("template", ""))

    def stats(self, idle_threshold_seconds: float = 300) -> ProviderStats:
        """Count the caller's sandboxes that have the default labels."""
        return self._client.run(self._stats(idle_threshold_seconds))

    async def astats(self, idle_threshold_seconds: float = 300) -> ProviderStats:
        """Async twin of `stats`."""
        return await self._async_client.run(self._stats(idle_threshold_seconds))

    def close(self) -> None:
        """Close the sync connection; a later call opens another. Sandboxes stay."""
        self._client.disconnect()

    async def aclose(self) -> None:
        """Close the running loop's connection and the sync one, as `close` does. Sandboxes stay."""
        await self._async_client.disconnect()
        self._client.disconnect()

    def _leave(self) -> None:
        self.close()

    async def _aleave(self) -> None:
        await self.aclose()

    def _wanted(
        self,
        sandbox_id: str | None,
        labels: Mapping[str, str] | None,
        ttl: float | None,
        idle_ttl: float | None,
        spec: SandboxOptions,
    ) -> SandboxSpec:
        wanted = cast("SandboxSpec", {**self._spec, **spec})
        wanted["sandbox_id"] = sandbox_id or wanted.get("sandbox_id") or new_sandbox_id()
        wanted["labels"] = {**self._labels, **(labels or {})}
        if ttl is not None:
            wanted["ttl"] = ttl
        if idle_ttl is not None:
            wanted["idle_ttl"] = idle_ttl
        return wanted

    def _get_or_create(self, wanted: SandboxSpec) -> Plan[SandboxInfo]:
        try:
            found, _ = yield from _plans.create(wanted, self._options.config)
        except SandboxExistsError:
            # It was made with another spec: that one is the sandbox of this id.
            found = yield from _plans.get(wanted["sandbox_id"])
        return found

    def _backend(self, found: SandboxInfo) -> SandgateSandbox:
        return SandgateSandbox._found(found, self._options)  # noqa: SLF001 - of one package

    def _stats(self, threshold: float) -> Plan[ProviderStats]:
        found: list[SandboxInfo] = []
        token = ""
        while True:
            page = yield from _plans.list_page(self._labels, (), 0, token)
            found += page.sandboxes
            token = page.next_page_token
            if not token:
                break
        try:
            pool = yield from _plans.pool_status(self._spec.get("template", ""), self._options.config)
            warm = pool.available
        except (UnsupportedError, TemplateNotFoundError):
            # The server keeps no pools, or none of this template.
            warm = 0
        running = [s for s in found if s.state == "ACTIVE"]
        before = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=threshold)
        active = [s.last_activity_time or s.create_time for s in running]
        return ProviderStats(
            total=len(found),
            running=len(running),
            warm=warm,
            idle=sum(1 for at in active if at is not None and at < before),
            thread_ids=len({s.labels[THREAD_LABEL] for s in found if THREAD_LABEL in s.labels}),
        )

    def _page(
        self, status: Status | None, labels: Mapping[str, str] | None, cursor: str | None
    ) -> Plan[SandboxPage]:
        if status == "warm":
            # Started sandboxes of a pool have no id and no owner before they are claimed.
            return SandboxPage((), None)
        states = [cast("SandboxState", state) for state, word in _STATUS.items() if word == status]
        if status is not None and not states:
            known = ", ".join(get_args(Status))
            raise ValueError(f"status must be one of {known}, got {status!r}")
        wanted = {**self._labels, **(labels or {})}
        page = yield from _plans.list_page(wanted, states, 0, cursor or "")
        return SandboxPage(
            tuple(
                ListedSandbox(s.sandbox_id, _STATUS.get(s.state, "pending"), s.labels, s.create_time, s)
                for s in page.sandboxes
            ),
            page.next_page_token or None,
        )
