"""Hints for people when the server cannot be reached."""

from __future__ import annotations

from typing import Final

HINTS: Final = {
    "certificate_expired": (
        "its certificate has expired or is not valid yet: renew it, or set the clocks right"
    ),
    "certificate_for_another_name": (
        "its certificate is for another name: the address must be a name or an IP address in it"
    ),
    "certificate_untrusted": (
        "its certificate is not trusted: the CA file (SANDGATE_CA_FILE) must hold the authority "
        "that issued it"
    ),
    "certificate_wanted": (
        "it ended the TLS handshake: it may want a certificate of the client, from an authority "
        "that it knows (SANDGATE_CERT_FILE and SANDGATE_KEY_FILE)"
    ),
    "not_running": "is `sandgate serve` running there?",
    "server_speaks_no_tls": (
        "it does not speak TLS, and this client does: use http://… or HOST:PORT without a CA file"
    ),
    "server_speaks_tls": "if it speaks TLS, use https://… or set the CA file (SANDGATE_CA_FILE)",
}
"""The same words in every client."""

# Parts of what gRPC and its TLS library say; the first that fits counts.
_REFUSED: Final = ("Connection refused", "No such file or directory")
_TLS: Final = (
    ("server_speaks_no_tls", ("WRONG_VERSION_NUMBER",)),
    ("certificate_expired", ("certificate has expired", "certificate is not yet valid")),
    ("certificate_for_another_name", ("Hostname Verification Check failed",)),
    ("certificate_untrusted", ("CERTIFICATE_VERIFY_FAILED",)),
    ("certificate_wanted", ("CERTIFICATE_REQUIRED", "ALERT_UNKNOWN_CA", "ALERT_BAD_CERTIFICATE")),
)
_CLOSED: Final = (
    "Socket closed",
    "Connection reset",
    "Broken pipe",
    "tcp handshaker",
    "HTTP/1.x",
    "recvmsg",
    "TSI_DATA_CORRUPTED",
)


def hint_of(message: str, *, tls: bool, reached: bool) -> str:
    """Return the key of the hint for a message of gRPC; empty: there is none.

    Args:
        message: A message of gRPC.
        tls: The client speaks TLS.
        reached: The server answered before, so that its address and TLS are right.
    """
    if tls:
        for key, signs in _TLS:
            if any(sign in message for sign in signs):
                return key
    if any(sign in message for sign in _REFUSED):
        return "not_running"
    if not reached and any(sign in message for sign in _CLOSED):
        return "certificate_wanted" if tls else "server_speaks_tls"
    return ""
