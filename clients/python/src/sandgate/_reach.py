"""Whether the server was reached, and the error when it cannot be."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sandgate._hints import HINTS, hint_of
from sandgate.config import parse_address
from sandgate.errors import SandgateError, UnavailableError, from_rpc

if TYPE_CHECKING:
    import grpc

    from sandgate._calls import WaitStep
    from sandgate.config import Config


class Reach:
    """What a client knows about reaching its server."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._tls = parse_address(config.address).tls or bool(config.ca_file or config.cert_file)
        self.reached = False
        """The server answered at least once."""

    def may_retry(self, step: WaitStep) -> bool:
        """Return whether another attempt may follow after a wait."""
        window = step.window
        if window is None:
            window = self._config.reconnect_timeout if self.reached else self._config.connect_timeout
        return time.monotonic() + step.seconds - step.since < window

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
