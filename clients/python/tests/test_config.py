"""Addresses, environment, and where a token may go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sandgate import Client, Config, InvalidRequestError
from sandgate.config import Endpoint, channel_credentials, parse_address
from tests.fake_server import FakeServer


@pytest.mark.parametrize(
    ("address", "endpoint"),
    [
        ("127.0.0.1:7777", Endpoint("dns:///127.0.0.1:7777", tls=False, local=True)),
        ("localhost:1", Endpoint("dns:///localhost:1", tls=False, local=True)),
        (":7777", Endpoint("dns:///127.0.0.1:7777", tls=False, local=True)),
        ("[::1]:7777", Endpoint("dns:///[::1]:7777", tls=False, local=True)),
        ("box.example.com:443", Endpoint("dns:///box.example.com:443", tls=False, local=False)),
        ("http://10.0.0.1:80", Endpoint("dns:///10.0.0.1:80", tls=False, local=False)),
        ("https://box.example.com:443/", Endpoint("dns:///box.example.com:443", tls=True, local=False)),
        ("tls://127.0.0.1:443", Endpoint("dns:///127.0.0.1:443", tls=True, local=True)),
        ("unix:///run/s.sock", Endpoint("unix:///run/s.sock", tls=False, local=True)),
    ],
)
def test_s1_11_s3_3_addresses_and_ports(address: str, endpoint: Endpoint) -> None:
    assert parse_address(address) == endpoint


@pytest.mark.parametrize(
    "address",
    [
        "unix://run/s",
        "ftp://a:1",
        "host",
        "host:",
        "host:x",
        "a:1/b",
        "u@h:1",
    ],
)
def test_addresses_that_are_refused(address: str) -> None:
    with pytest.raises(InvalidRequestError):
        parse_address(address)


def test_s4_16_s3_27_what_is_not_given_comes_from_the_environment() -> None:
    environ = {
        "SANDGATE_ADDRESS": "unix:///s",
        "SANDGATE_TOKEN": "t",
        "SANDGATE_CA_FILE": "ca",
        "SANDGATE_CERT_FILE": "cert",
        "SANDGATE_KEY_FILE": "key",
        "SANDGATE_TEMPLATE": "small",
    }
    config = Config.load(environ=environ)
    assert (config.address, config.token) == ("unix:///s", "t")
    assert (config.ca_file, config.cert_file, config.key_file) == ("ca", "cert", "key")
    assert config.template == "small"
    assert Config.load("a:1", token="u", environ=environ).address == "a:1"  # noqa: S106
    assert Config.load(environ={}).address == "127.0.0.1:7777"


@pytest.mark.parametrize(
    ("environ", "options", "expected"),
    [
        ({"SANDGATE_TOKEN": "e"}, {}, ("e", None)),
        ({"SANDGATE_TOKEN_FILE": "ef"}, {}, (None, "ef")),
        ({"SANDGATE_TOKEN": "e", "SANDGATE_TOKEN_FILE": "ef"}, {"token": "o"}, ("o", None)),
        ({"SANDGATE_TOKEN": "e", "SANDGATE_TOKEN_FILE": "ef"}, {"token_file": "of"}, (None, "of")),
    ],
)
def test_a_token_option_overrides_both_variables(
    environ: dict[str, str], options: dict[str, str], expected: tuple[str | None, str | None]
) -> None:
    config = Config.load(environ=environ, **options)  # type: ignore[arg-type]
    assert (config.token, config.token_file) == expected


def test_a_token_beside_a_token_file_is_an_error() -> None:
    with pytest.raises(InvalidRequestError, match="SANDGATE_TOKEN_FILE"):
        Config.load(environ={"SANDGATE_TOKEN": "e", "SANDGATE_TOKEN_FILE": "ef"})
    with pytest.raises(InvalidRequestError, match="set one of them"):
        Client("127.0.0.1:1", token="o", token_file="of")  # noqa: S106


def test_a_token_is_not_sent_over_a_network_without_tls() -> None:
    config = Config(address="box.example.com:7777", token="secret")  # noqa: S106
    with pytest.raises(InvalidRequestError, match="without TLS"):
        Client(config=config)
    with pytest.raises(InvalidRequestError, match="without TLS"):
        Client("box.example.com:7777", token_file="/token")  # noqa: S106
    allowed = Config(address="box.example.com:7777", token="secret", insecure=True)  # noqa: S106
    assert channel_credentials(allowed, parse_address(allowed.address)) is None
    secured = Config(address="https://box.example.com:7777", token="secret")  # noqa: S106
    assert channel_credentials(secured, parse_address(secured.address)) is not None


def test_a_missing_certificate_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        Client("127.0.0.1:1", ca_file=str(tmp_path / "none.pem"))


def test_the_representation_has_no_secrets() -> None:
    assert "secret" not in repr(Config(token="secret", metadata=(("k", "secret"),)))  # noqa: S106


def test_token_and_metadata_are_sent(fake: FakeServer) -> None:
    with Client(fake.address, token="secret", metadata={"x-team": "blue"}) as client:  # noqa: S106
        client.server_info()
    assert fake.metadata["authorization"] == "Bearer secret"
    assert fake.metadata["x-team"] == "blue"


@pytest.mark.parametrize("token", ["secret\n", " secret\r\n", lambda: "secret\n"])
def test_a_token_is_sent_without_the_whitespace_around_it(fake: FakeServer, token: Any) -> None:
    with Client(fake.address, token=token) as client:
        client.server_info()
    assert fake.metadata["authorization"] == "Bearer secret"


@pytest.mark.parametrize("token", ["sec\nret", "sécret", "sec ret", "sec\0ret"])
def test_a_token_that_no_header_can_carry_is_named(fake: FakeServer, token: str) -> None:
    with (
        Client(fake.address, token=token) as client,
        pytest.raises(InvalidRequestError, match="SANDGATE_TOKEN") as caught,
    ):
        client.server_info()
    assert "ret" not in str(caught.value), "the token itself is a secret"


def test_a_ca_file_without_a_certificate_is_named(tmp_path: Path) -> None:
    file = tmp_path / "passwd"
    file.write_text("root:x:0:0\n")
    with pytest.raises(InvalidRequestError, match="holds no certificate"):
        Client("https://127.0.0.1:1", ca_file=str(file))
