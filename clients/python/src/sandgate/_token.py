"""The bearer token of a client, which may change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from sandgate.errors import AuthenticationError, InvalidRequestError, SandgateError

if TYPE_CHECKING:
    from sandgate.config import Config

_MAX_FILE_BYTES: Final = 64 * 1024


class TokenSource:
    """Returns the token of a client. Safe for several threads."""

    def __init__(self, config: Config) -> None:
        self._token = config.token
        self._path = config.token_file
        self._last = ""
        """The last token of the file."""

    def current(self) -> str:
        """Return the token of this moment; empty: there is none.

        Raises:
            AuthenticationError: The callable failed, or the file never had a token.
            InvalidRequestError: The token cannot be sent in a header.
        """
        # A token that was read from a file or a Secret ends in a newline.
        token = self._read().strip()
        if not (token.isascii() and token.isprintable()) or " " in token:
            raise InvalidRequestError(
                "the token cannot be sent: it must be printable ASCII without spaces (SANDGATE_TOKEN)",
                code="INVALID_ARGUMENT",
            )
        return token

    def changed(self, sent: str) -> bool:
        """Return whether the token has changed since it was sent."""
        try:
            return self.current() != sent
        except SandgateError:
            return False

    def _read(self) -> str:
        if self._path:
            return self._read_file(self._path)
        if self._token is None or isinstance(self._token, str):
            return self._token or ""
        try:
            return self._token()
        except Exception as e:
            raise AuthenticationError(f"the token source failed: {e}", code="UNAUTHENTICATED") from e

    def _read_file(self, path: str) -> str:
        # While the file is being replaced, it may be missing or empty.
        cause = None
        try:
            with Path(path).open("rb") as file:
                raw = file.read(_MAX_FILE_BYTES + 1)
        except OSError as e:
            cause, why = e, e.strerror
        else:
            if len(raw) > _MAX_FILE_BYTES:
                why = f"it has more than {_MAX_FILE_BYTES} bytes"
            elif raw.strip():
                self._last = raw.decode("latin-1")
                return self._last
            else:
                why = "it is empty"
        if not self._last:
            raise AuthenticationError(
                f"the token file {path} cannot be used: {why}", code="UNAUTHENTICATED"
            ) from cause
        return self._last
