"""Whether a broken call is retried, and how long to wait before the next attempt."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final

from sandgate.errors import AuthenticationError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandgate.errors import SandgateError

_FIRST_WAIT: Final = 0.05
_LONGEST_WAIT: Final = 2.0
_LONGEST_REQUESTED: Final = 5.0
"""Longest wait, in seconds, that a server can request."""


class Retry:
    """The retry window and the backoff of one broken call. Durations in seconds.

    Args:
        limit: Upper limit of the retry window; None: the client's window.
        clock: A monotonic clock.
    """

    def __init__(self, limit: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self.progress()

    def progress(self) -> None:
        """Restart the retry window: data arrived."""
        self._since: float | None = None
        self._wait = _FIRST_WAIT
        self._renewed = False

    def next(self, error: SandgateError, window: float) -> float | None:
        """Return the seconds to wait before the next attempt.

        A rejected token that has changed since allows one attempt, at once.

        Args:
            error: What ended the last attempt.
            window: The client's retry window. It begins with the first failure.

        Returns:
            None if the retry window ends before the next attempt.
        """
        if is_renewable(error):
            first, self._renewed = not self._renewed, True
            return 0 if first else None
        now = self._clock()
        if self._since is None:
            self._since = now
        requested = min(error.retry_after or 0.0, _LONGEST_REQUESTED)
        wait = max(self._wait, requested) * random.uniform(1, 1.25)  # noqa: S311 - spreads callers, not a secret
        self._wait = min(self._wait * 2, _LONGEST_WAIT)
        limit = window if self._limit is None else min(window, self._limit)
        return wait if now + wait - self._since <= limit else None


def is_renewable(error: SandgateError) -> bool:
    """Return whether the server rejected a token that has changed since."""
    return isinstance(error, AuthenticationError) and error.token_changed


def is_break(error: SandgateError) -> bool:
    """Return whether the connection broke, so that the outcome of the call is unknown.

    A proxy that gives up on a silent stream resets it with INTERNAL or CANCELLED, without
    a reason of the server. `clients/retries.json` has the cases of all clients.
    """
    if isinstance(error, UnavailableError) or error.code == "UNAVAILABLE":
        return True
    return error.code in {"INTERNAL", "CANCELLED"} and not error.reason
