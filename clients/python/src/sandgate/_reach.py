"""Whether the server was reached, and what to say when it cannot be."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from sandgate.config import parse_address
from sandgate.errors import SandgateError, UnavailableError, from_rpc

if TYPE_CHECKING:
    import grpc

    from sandgate._calls import WaitStep
    from sandgate.config import Config

# What TLS libraries and gRPC say, and what to tell a person.
_TLS_HINTS: Final = {
    "WRONG_VERSION_NUMBER": (
        "it does not speak TLS, and this client does: use http://… or HOST:PORT without a CA file"
    ),
    "CERTIFICATE_VERIFY_FAILED": (
        "its certificate is not trusted: ca_file (SANDGATE_CA_FILE) must hold the authority that issued it"
    ),
    "Hostname Verification Check failed": (
        "its certificate is for another name: the address must be a name or an IP address in it"
    ),
    "CERTIFICATE_REQUIRED": (
        "it wants a certificate of the client: set cert_file and key_file "
        "(SANDGATE_CERT_FILE, SANDGATE_KEY_FILE)"
    ),
}
_PLAIN_HINT: Final = "if it speaks TLS, use https://… or set ca_file (SANDGATE_CA_FILE)"
_CLOSED_HINT: Final = (
    "it ended the TLS handshake: it may want a certificate of the client "
    "(cert_file and key_file, SANDGATE_CERT_FILE and SANDGATE_KEY_FILE)"
)
_REFUSED_HINT: Final = "is `sandgate serve` running there?"
_CLOSED: Final = (
    "Socket closed",
    "Connection reset",
    "Broken pipe",
    "tcp handshaker",
    "HTTP/1.x",
    "recvmsg",
    "TSI_DATA_CORRUPTED",
)
_REFUSED: Final = ("Connection refused", "No such file or directory")


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
        hint = self._hint(told.message)
        address = self._config.address
        told.message = f"the server at {address} cannot be reached: {_innermost(told.message)}"
        if hint:
            told.message += f"; {hint}"
        told.args = (told.message,)
        return told

    def _hint(self, message: str) -> str:
        if self._tls:
            for sign, hint in _TLS_HINTS.items():
                if sign in message:
                    return hint
        if any(sign in message for sign in _REFUSED):
            return _REFUSED_HINT
        if not self.reached and any(sign in message for sign in _CLOSED):
            return _CLOSED_HINT if self._tls else _PLAIN_HINT
        return ""


def _innermost(message: str) -> str:
    """Shorten gRPC's nested descriptions."""
    return message.rpartition("last error: ")[2].removeprefix("UNAVAILABLE: ") or message
