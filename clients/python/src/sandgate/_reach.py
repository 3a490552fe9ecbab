"""Whether the server was reached, and the error when it cannot be."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sandgate._hints import HINTS, hint_of
from sandgate.config import parse_address
from sandgate.errors import SandgateError, UnavailableError, from_rpc

if TYPE_CHECKING:
    import grpc

    from sandgate._calls import RetryStep, UnaryStep
    from sandgate.config import Config


class Reach:
    """What a client knows about reaching its server."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._tls = parse_address(config.address).tls or bool(config.ca_file or config.cert_file)
        self.reached = False
        """The server answered at least once."""

    @property
    def window(self) -> float:
        """The retry window in seconds.

        0 until the server has answered: a wrong address is more likely than a restart.
        """
        return self._config.reconnect_timeout if self.reached else 0.0

    def wait(self, step: RetryStep) -> float | None:
        """Return the seconds to wait before the next attempt; None: there is none."""
        wait = step.retry.next(step.error, self.window)
        if wait is None or (step.call is not None and wait >= self.left(step.call)):
            return None
        return wait

    def left(self, step: UnaryStep) -> float:
        """Return the seconds that are left of a call's timeout, at least 0."""
        timeout = self._config.call_timeout if step.timeout is None else step.timeout
        return max(step.since + timeout - time.monotonic(), 0.0)

    def error(self, raised: grpc.RpcError) -> SandgateError:
        """Convert an error of gRPC, with a hint on what to do."""
        failure = from_rpc(raised)
        if failure.reason:
            self.reached = True
        if not isinstance(failure, UnavailableError) or failure.reason:
            return failure
        hint = hint_of(failure.message, tls=self._tls, reached=self.reached)
        address = self._config.address
        failure.message = f"the server at {address} cannot be reached: {_innermost(failure.message)}"
        if hint:
            failure.message += f"; {HINTS[hint]}"
        failure.args = (failure.message,)
        return failure


def _innermost(message: str) -> str:
    """Shorten gRPC's nested descriptions."""
    return message.rpartition("last error: ")[2].removeprefix("UNAVAILABLE: ") or message
