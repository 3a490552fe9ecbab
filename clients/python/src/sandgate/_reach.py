"""Whether the server was reached, and what to say when it cannot be."""

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

    def has_patience(self, step: WaitStep) -> bool:
        """Tell whether another attempt may be made after a wait."""
        patience = step.patience
        if patience is None:
            patience = self._config.reconnect_timeout if self.reached else self._config.connect_timeout
        return time.monotonic() + step.seconds - step.since < patience

    def explain(self, error: grpc.RpcError) -> SandgateError:
        """Turn what gRPC raised into an error that says what to do."""
        told = from_rpc(error)
        if told.reason:
            self.reached = True
        if not isinstance(told, UnavailableError) or told.reason:
            return told
        hint = hint_of(told.message, tls=self._tls, reached=self.reached)
        address = self._config.address
        told.message = f"the server at {address} cannot be reached: {_innermost(told.message)}"
        if hint:
            told.message += f"; {HINTS[hint]}"
        told.args = (told.message,)
        return told


def _innermost(message: str) -> str:
    """Shorten gRPC's nested descriptions."""
    return message.rpartition("last error: ")[2].removeprefix("UNAVAILABLE: ") or message
