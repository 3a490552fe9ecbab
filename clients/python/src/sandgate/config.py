"""Where the server is and how to reach it."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import urlsplit

import grpc

from sandgate.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_ADDRESS: Final = "127.0.0.1:7777"
"""The server's address if neither an argument nor the environment names one."""

_MAX_REPLY_BYTES: Final = 32 * 1024 * 1024
"""Largest message from the server. The server rejects requests that are too large,
with a reason."""

DEFAULT_CHANNELS: Final = 2
"""Connections of one client at most, by default."""

Token: TypeAlias = str | Callable[[], str]
"""A bearer token, or a callable that returns one, for tokens that change. It is
called before every attempt of a call, and after a rejected one, in any thread or on the
event loop, so it should cache the token until it is about to expire."""

Metadata: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Config:
    """How a client connects to its server. Durations in seconds."""

    address: str = DEFAULT_ADDRESS
    token: Token | None = field(default=None, repr=False)
    token_file: str | None = None
    """A file with the token, in place of `token`: a regular file of up to 64 KiB, which
    is read before every attempt of a call. While it is missing or empty, the last token
    counts; if there is none, calls raise `AuthenticationError`."""
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    server_name: str | None = None
    """The name that the server's certificate must have, if not the address's."""
    insecure: bool = False
    template: str = ""
    """Template of sandboxes that are created without one. Empty: the server's
    `default`."""
    metadata: Metadata = field(default=(), repr=False)
    call_timeout: float = 60.0
    create_timeout: float = 600.0
    reconnect_timeout: float = 60.0
    """The retry window: how long the client retries a broken call (a unary one at most
    30 s) and reattaches to a command. 0: it does not retry."""
    disconnect_grace: float = 60.0
    keepalive_time: float = 30.0
    """Interval of keepalive pings. The server closes connections that send more
    than one in 5 s."""
    keepalive_timeout: float = 10.0
    """A connection without a reply to a ping for this long is broken."""
    channels: int = DEFAULT_CHANNELS
    """Connections at most. A second one is opened when the first one has a
    stream, and so on: a stream then waits less for the others."""

    def __post_init__(self) -> None:
        if self.channels < 1:
            raise ValueError(f"a client needs at least one channel, not {self.channels}")
        if self.token and self.token_file:
            raise InvalidRequestError(
                "a token and a token file are both set; set one of them "
                "(SANDGATE_TOKEN, SANDGATE_TOKEN_FILE)",
                code="INVALID_ARGUMENT",
            )

    @classmethod
    def load(
        cls,
        address: str | None = None,
        *,
        token: Token | None = None,
        token_file: str | None = None,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        insecure: bool = False,
        metadata: Mapping[str, str] | None = None,
        channels: int | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Config:
        """Read what is not given from the environment."""
        env = os.environ if environ is None else environ
        if not token and not token_file:
            token, token_file = env.get("SANDGATE_TOKEN"), env.get("SANDGATE_TOKEN_FILE")
        return cls(
            address=address or env.get("SANDGATE_ADDRESS") or DEFAULT_ADDRESS,
            token=token or None,
            token_file=token_file or None,
            ca_file=ca_file or env.get("SANDGATE_CA_FILE") or None,
            cert_file=cert_file or env.get("SANDGATE_CERT_FILE") or None,
            key_file=key_file or env.get("SANDGATE_KEY_FILE") or None,
            insecure=insecure,
            template=env.get("SANDGATE_TEMPLATE") or "",
            metadata=tuple((metadata or {}).items()),
            channels=DEFAULT_CHANNELS if channels is None else channels,
        )


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A parsed address: what gRPC dials, and what it means for security."""

    target: str
    tls: bool
    local: bool


def parse_address(address: str) -> Endpoint:
    """Parse `host:port`, `https://host:port`, `http://…` or `unix:///path`.

    Raises:
        InvalidRequestError: The address has another form.
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        scheme, rest = "http", address
    if scheme == "unix":
        if not rest.startswith("/"):
            raise _invalid_address(address, "a unix socket is written unix:///path")
        return Endpoint(f"unix://{rest}", tls=False, local=True)
    if scheme not in ("http", "https", "tls"):
        raise _invalid_address(address, "its scheme is not unix, https, tls or http")
    try:
        parts = urlsplit(f"//{rest.removesuffix('/')}")
        host, port = parts.hostname or "127.0.0.1", parts.port
    except ValueError:
        port = None
    if port is None or parts.path or parts.username is not None:
        raise _invalid_address(address, "it must be HOST:PORT or unix:///path")
    literal = f"[{host}]" if ":" in host else host
    return Endpoint(f"dns:///{literal}:{port}", tls=scheme in ("https", "tls"), local=_is_loopback(host))


def channel_credentials(config: Config, endpoint: Endpoint) -> grpc.ChannelCredentials | None:
    """Return the TLS credentials of the connection; None: without TLS.

    Raises:
        InvalidRequestError: A file cannot be read, or a token would go over a
            network without TLS.
    """
    if not (endpoint.tls or config.ca_file or config.cert_file):
        if (config.token or config.token_file) and not endpoint.local and not config.insecure:
            raise InvalidRequestError(
                f"a token is not sent to {config.address} without TLS; "
                "use https://… or a CA file, or allow it with insecure=True",
                code="INVALID_ARGUMENT",
            )
        return None
    if (config.cert_file is None) != (config.key_file is None):
        raise InvalidRequestError(
            "a client certificate needs both cert_file and key_file", code="INVALID_ARGUMENT"
        )
    try:
        return grpc.ssl_channel_credentials(
            root_certificates=_authorities(config.ca_file),
            private_key=_read(config.key_file),
            certificate_chain=_read(config.cert_file),
        )
    except OSError as e:
        raise InvalidRequestError(f"a certificate or key cannot be read: {e}", code="INVALID_ARGUMENT") from e


def channel_options(config: Config) -> list[tuple[str, int | str]]:
    """Return the options of a channel, sync or async."""
    named = [("grpc.ssl_target_name_override", config.server_name)] if config.server_name else []
    return [
        *named,
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", _MAX_REPLY_BYTES),
        ("grpc.keepalive_time_ms", round(config.keepalive_time * 1000)),
        ("grpc.keepalive_timeout_ms", round(config.keepalive_timeout * 1000)),
        # Newer versions of gRPC wait for the ping itself, by default a minute.
        ("grpc.http2.ping_timeout_ms", round(config.keepalive_timeout * 1000)),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # Despite its name, how long one attempt to connect may take at least.
        ("grpc.min_reconnect_backoff_ms", 5_000),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        # One connection per client: channels with equal options would share it
        # otherwise, and closing one would not close the other's calls.
        ("grpc.use_local_subchannel_pool", 1),
    ]


def joined(first: Metadata, second: Mapping[str, str]) -> Metadata:
    """Return both, the second one's values where both have a key."""
    return (*(pair for pair in first if pair[0] not in second), *second.items())


def _authorities(path: str | None) -> bytes | None:
    read = _read(path)
    if read is not None and b"-----BEGIN CERTIFICATE-----" not in read:
        raise InvalidRequestError(
            f"the CA file {path} holds no certificate in PEM form (SANDGATE_CA_FILE)", code="INVALID_ARGUMENT"
        )
    return read


def _read(path: str | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _invalid_address(address: str, why: str) -> InvalidRequestError:
    return InvalidRequestError(f"the address {address!r} cannot be used: {why}", code="INVALID_ARGUMENT")
