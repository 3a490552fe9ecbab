"""The provider of `dcode --sandbox sandgate` (deepagents-code).

Only deepagents-code loads this module, by its entry point; nothing else of this
package needs it. Where the server is, is read from the environment.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NoReturn

from deepagents_code.integrations import sandbox_provider as dcode

from sandgate.deepagents import SandgateProvider, SandgateSandbox
from sandgate.deepagents._options import DEFAULT_WORKING_DIRECTORY
from sandgate.errors import SandboxNotFoundError, SandgateError

if TYPE_CHECKING:
    from deepagents_code.integrations.sandbox_provider import SandboxProviderMetadata


IDLE_SECONDS: Final = 3600
"""Lifetime without activity of a session's sandbox, unless the configuration has
`ttl_idle_seconds`: dcode ends without deleting it."""


class SandgateDcodeProvider(dcode.SandboxProvider):
    """Makes a sandbox for a session, or takes the one of `--sandbox-id`.

    `[sandboxes.providers.sandgate]` in dcode's configuration needs this class as its
    `class_path`. Its `params` are those of `SandgateProvider.get_or_create`:
    `template`, `image`, `env`, `labels`, `ttl_seconds`, `ttl_idle_seconds`, ….
    """

    @property
    def metadata(self) -> SandboxProviderMetadata:
        """What dcode shows and allows."""
        return dcode.SandboxProviderMetadata(
            name="sandgate",
            working_dir=DEFAULT_WORKING_DIRECTORY,
            install=dcode.SandboxInstallHint(kind="package", name="sandgate[deepagents]"),
            supports_sandbox_id=True,
        )

    def get_or_create(self, *, sandbox_id: str | None = None, **kwargs: Any) -> SandgateSandbox:
        """Make a sandbox, or take an existing one.

        Raises:
            SandboxNotFoundError: That of dcode: there is no such sandbox.
            SandboxError: That of dcode: the server could not do it.
        """
        try:
            if sandbox_id:
                return self._provider.reconnect(sandbox_id)
            return self._provider.get_or_create(**kwargs)
        except SandgateError as e:
            _refuse(e)

    async def aget_or_create(self, *, sandbox_id: str | None = None, **kwargs: Any) -> SandgateSandbox:
        """Async twin of `get_or_create`."""
        try:
            if sandbox_id:
                return await self._provider.areconnect(sandbox_id)
            return await self._provider.aget_or_create(**kwargs)
        except SandgateError as e:
            _refuse(e)

    def delete(self, *, sandbox_id: str, **kwargs: Any) -> None:  # noqa: ARG002 - the interface's signature
        """End a sandbox; that there is none is no error."""
        try:
            self._provider.delete(sandbox_id=sandbox_id)
        except SandgateError as e:
            _refuse(e)

    async def adelete(self, *, sandbox_id: str, **kwargs: Any) -> None:  # noqa: ARG002
        """Async twin of `delete`."""
        try:
            await self._provider.adelete(sandbox_id=sandbox_id)
        except SandgateError as e:
            _refuse(e)

    # dcode makes a provider only to read its metadata, so nothing is opened and
    # nothing can fail before the first use.
    @cached_property
    def _provider(self) -> SandgateProvider:
        return SandgateProvider(ttl_idle_seconds=IDLE_SECONDS)


def _refuse(error: SandgateError) -> NoReturn:
    kind = dcode.SandboxNotFoundError if isinstance(error, SandboxNotFoundError) else dcode.SandboxError
    raise kind(str(error)) from error
