"""What the sync and the async sandbox have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandgate import _plans, _stream_plans
from sandgate._follower import Follower
from sandgate._gen.sandbox.v1 import sandbox_process_pb2 as pb
from sandgate.options import execute_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandgate._calls import Plan
    from sandgate.config import Config
    from sandgate.info import SandboxInfo
    from sandgate.options import ExecuteOptions


class Handle:
    """The common part of the sync and the async sandbox."""

    def __init__(
        self, config: Config, sandbox_id: str, incarnation: str, *, created: SandboxInfo | None, owned: bool
    ) -> None:
        self._config = config
        self._target = _plans.Target(sandbox_id, incarnation)
        self.created = created
        """The sandbox as it was when this handle was made; None: no call was made."""
        self.owned = owned
        """True when this handle's `create` made the sandbox."""

    @property
    def id(self) -> str:
        """The sandbox's id."""
        return self._target.sandbox_id

    @property
    def incarnation(self) -> str:
        """The incarnation that every call expects; empty: any.

        A sandbox that lost its disk and processes is another incarnation, and
        calls fail with `SandboxReplacedError` instead of working in an empty
        sandbox.
        """
        return self._target.incarnation

    @property
    def target(self) -> _plans.Target:
        """What plans of this package address it by."""
        return self._target

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    def _follow_new(self, command: str | Sequence[str], options: ExecuteOptions) -> Follower:
        request = execute_request(self.id, self.incarnation, command, options, self._config.disconnect_grace)
        return self._follower(request)

    def _follow_old(self, exec_id: str, position: int, *, until_streams_end: bool) -> Follower:
        until = pb.FOLLOW_UNTIL_STREAMS_END if until_streams_end else pb.FOLLOW_UNTIL_LEADER_EXIT
        return self._follower(
            pb.AttachRequest(
                sandbox_id=self.id,
                expected_incarnation=self.incarnation,
                exec_id=exec_id,
                position=position,
                follow_until=until,
            )
        )

    def _connect(self, port: int, host: str, timeout: float | None) -> Plan[Any]:
        seconds = self._config.call_timeout if timeout is None else timeout
        return _stream_plans.connect(self._target, port, host, seconds)

    def _follower(self, request: pb.ExecuteRequest | pb.AttachRequest) -> Follower:
        return Follower(request)


def as_bytes(content: bytes | str) -> bytes:
    """Return text as UTF-8, bytes as they are."""
    return content.encode() if isinstance(content, str) else content
