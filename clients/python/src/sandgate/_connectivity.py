"""Whether the server has answered, the metadata of calls, and the errors of failed ones."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from sandgate._hints import HINTS, hint_of
from sandgate._retry import is_break
from sandgate._token import TokenSource
from sandgate.config import joined, parse_address
from sandgate.errors import (
    AuthenticationError,
    CallCancelledError,
    SandgateError,
    UnavailableError,
    from_rpc,
)

if TYPE_CHECKING:
    import grpc

    from sandgate._calls import RetryStep, UnaryStep
    from sandgate.config import Config, Metadata


_AUTHORIZATION: Final = "authorization"


class Connectivity:
    """State of the connection to a server, and the metadata of its calls."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._tls = parse_address(config.address).tls or bool(config.ca_file or config.cert_file)
        self._token = TokenSource(config)
        self.reached = False
        """The server answered at least once."""

    def metadata(self, more: Metadata) -> Metadata:
        """Return the metadata of one attempt, with the token of this moment.

        Args:
            more: The call's own metadata; its keys override the client's.

        Raises:
            AuthenticationError: There is no token.
            InvalidRequestError: The token cannot be sent in a header.
        """
        own = joined(self._config.metadata, dict(more))
        token = self._token.current()
        return (*own, (_AUTHORIZATION, f"Bearer {token}")) if token else own

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

    def error(self, raised: grpc.RpcError, sent: Metadata, *, closed: bool) -> SandgateError:
        """Convert an error of gRPC, with a hint on what to do.

        Args:
            raised: The error.
            sent: The metadata of the attempt that failed.
            closed: The client was closed, so a broken connection is that.
        """
        failure = from_rpc(raised)
        if closed and is_break(failure):
            return closed_error()
        if failure.reason:
            self.reached = True
        if isinstance(failure, AuthenticationError):
            token = dict(sent).get(_AUTHORIZATION, "").removeprefix("Bearer ")
            failure.token_changed = self._token.changed(token)
        if not isinstance(failure, UnavailableError) or failure.reason:
            return failure
        hint = hint_of(failure.message, tls=self._tls, reached=self.reached)
        address = self._config.address
        failure.message = f"the server at {address} cannot be reached: {_innermost(failure.message)}"
        if hint:
            failure.message += f"; {HINTS[hint]}"
        failure.args = (failure.message,)
        return failure


def closed_error() -> CallCancelledError:
    """Return the error of a call of a client that was closed."""
    return CallCancelledError("the client is closed", code="CANCELLED", reason="CALL_CANCELLED")


def _innermost(message: str) -> str:
    """Shorten gRPC's nested descriptions."""
    return message.rpartition("last error: ")[2].removeprefix("UNAVAILABLE: ") or message
