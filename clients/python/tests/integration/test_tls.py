"""TLS, client certificates, tokens and metadata, against servers that want them."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from sandgate import (
    AsyncClient,
    AuthenticationError,
    Client,
    Config,
    InvalidRequestError,
    SandboxNotFoundError,
    UnavailableError,
)
from tests.integration import certificates
from tests.integration.conftest import BINARY, Server, needs_a_server
from tests.integration.test_troubleshooting import message_of


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sandgate-tls-") as name:
        certificates.make(Path(name))
        yield Path(name)


def _files(made: Path, *names: str) -> list[str]:
    return [str(made / name) for name in names]


def _as(made: Path, name: str) -> Config:
    cert, key, ca = _files(made, f"{name}.pem", f"{name}.key", "ca.pem")
    return Config(ca_file=ca, cert_file=cert, key_file=key)


@contextmanager
def _serving(made: Path, certificate: str, *more: str, admin: Config) -> Iterator[str]:
    needs_a_server()
    cert, key = _files(made, f"{certificate}.pem", f"{certificate}.key")
    flags = ("--tls-cert", cert, "--tls-key", key, *more)
    with (
        tempfile.TemporaryDirectory(prefix="sandgate-") as directory,
        Server(Path(directory), *flags, listen="127.0.0.1:0", admin=admin) as server,
    ):
        yield server.address


@pytest.fixture(scope="module")
def mutual(made: Path) -> Iterator[str]:
    """Serve for clients with a certificate only."""
    with _serving(
        made, "server", "--tls-client-ca", str(made / "ca.pem"), admin=_as(made, "client")
    ) as address:
        yield address


@pytest.fixture(scope="module")
def expired(made: Path) -> Iterator[str]:
    """Speak gRPC with a certificate that was good until yesterday.

    No sandgate: nobody could reach one to clean it up.
    """
    key, cert = ((made / f"expired.{kind}").read_bytes() for kind in ("key", "pem"))
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, cert)]))
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.fixture(scope="module")
def elsewhere(made: Path) -> Iterator[str]:
    """Serve with a certificate for another name."""
    admin = replace(_as(made, "client"), server_name="elsewhere.example.com")
    with _serving(made, "elsewhere", "--tls-client-ca", str(made / "ca.pem"), admin=admin) as address:
        yield address


@pytest.fixture(scope="module")
def token(made: Path) -> str:
    """Make a token, and the file of the server that knows it."""
    done = subprocess.run(
        [BINARY, "token", "new", "--name", "bob", "--tenant", "research"],
        capture_output=True,
        text=True,
        check=True,
    )
    (made / "tokens.yaml").write_text("tokens:\n" + done.stderr.splitlines()[-1] + "\n")
    return done.stdout.strip()


@pytest.fixture(scope="module")
def tokens(made: Path, token: str) -> Iterator[str]:
    """Serve for clients with a token."""
    admin = Config(ca_file=str(made / "ca.pem"), token=token)
    with _serving(made, "server", "--tokens-file", str(made / "tokens.yaml"), admin=admin) as address:
        yield address


@pytest.fixture(scope="module")
def plain() -> Iterator[str]:
    needs_a_server()
    with (
        tempfile.TemporaryDirectory(prefix="sandgate-") as directory,
        Server(Path(directory), listen="127.0.0.1:0") as server,
    ):
        yield server.address


def test_a_client_certificate(mutual: str, made: Path) -> None:
    config = replace(_as(made, "client"), address=mutual)
    with Client(config=config) as client:
        info = client.server_info()
        assert (info.principal, info.tenant) == ("alice", "research")
        with client.create(ttl=600) as sandbox:
            assert sandbox.execute("echo secured").stdout == "secured\n"
            content = os.urandom(3 << 20)
            sandbox.upload_file("/workspace/x", content)
            assert sandbox.download_file("/workspace/x").content == content


async def test_a_client_certificate_async(mutual: str, made: Path) -> None:
    config = replace(_as(made, "client"), address=mutual)
    async with AsyncClient(config=config) as client, await client.create(ttl=600) as sandbox:
        assert (await sandbox.execute("echo secured")).stdout == "secured\n"
        await sandbox.upload_file("/workspace/x", b"x")


def test_c22_s5_31_a_token_and_the_environment(
    tokens: str, made: Path, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDGATE_ADDRESS", tokens)
    monkeypatch.setenv("SANDGATE_TOKEN", token)
    monkeypatch.setenv("SANDGATE_CA_FILE", str(made / "ca.pem"))
    with Client() as client:
        info = client.server_info()
        assert (info.principal, info.tenant) == ("bob", "research")
    with Client(token="sgt_wrong") as client, pytest.raises(AuthenticationError) as caught:  # noqa: S106
        client.server_info()
    assert caught.value.reason == "CREDENTIALS_INVALID"
    assert re.match(message_of("The token is not known"), str(caught.value)), str(caught.value)
    monkeypatch.delenv("SANDGATE_TOKEN")
    with Client() as client, pytest.raises(AuthenticationError):
        client.server_info()


def test_metadata_of_every_call_comes_through(tokens: str, made: Path, token: str) -> None:
    metadata = {"x-request-id": "from-the-client"}
    with Client(tokens, ca_file=str(made / "ca.pem"), token=token, metadata=metadata) as client:
        with pytest.raises(SandboxNotFoundError) as caught:
            client.get("none")
        assert caught.value.request_id == "from-the-client"
        with pytest.raises(SandboxNotFoundError) as caught:
            client.sandbox("none").execute("true")
        assert caught.value.request_id == "from-the-client"
        with pytest.raises(SandboxNotFoundError) as caught:
            client.sandbox("none").with_metadata({"x-request-id": "from-the-call"}).execute("true")
        assert caught.value.request_id == "from-the-call"


def test_a_token_that_changes_is_known_again(tokens: str, made: Path, token: str) -> None:
    current = ["sgt_old"]
    with Client(tokens, ca_file=str(made / "ca.pem"), token=lambda: current[0]) as client:
        with pytest.raises(AuthenticationError):
            client.server_info()
        current[0] = token
        assert client.server_info().principal == "bob"


_WRONG = {
    "The server speaks TLS and the client does not": ("mutual", None),
    "The client speaks TLS and the server does not": ("plain", "ca.pem"),
    "The server's certificate is not trusted": ("mutual", "other.pem"),
    "The server's certificate has expired": ("expired", "ca.pem"),
    "The server's certificate is for another name": ("elsewhere", "ca.pem"),
    "The server wants a certificate of the client": ("mutual", "ca.pem"),
}


@pytest.mark.parametrize("case", _WRONG)
async def test_s5_31_errors_of_tls_have_a_hint(case: str, made: Path, request: pytest.FixtureRequest) -> None:
    server, ca = _WRONG[case]
    hint = message_of(case)
    address = request.getfixturevalue(server)
    ca_file = str(made / ca) if ca else None
    config = Config(address=address, ca_file=ca_file)
    with Client(config=config) as client:
        with pytest.raises(UnavailableError, match=hint) as caught:
            client.server_info()
        assert f"the server at {address} cannot be reached" in str(caught.value)
        with pytest.raises(UnavailableError, match=hint):
            client.sandbox("x").execute("true")
        with pytest.raises(UnavailableError, match=hint):
            client.sandbox("x").upload_file("/x", b"")
    async with AsyncClient(config=config) as other:
        with pytest.raises(UnavailableError, match=hint):
            await other.server_info()


def test_an_unreachable_server_has_a_hint() -> None:
    with (
        Client("127.0.0.1:1") as client,
        pytest.raises(UnavailableError, match="is `sandgate serve` running"),
    ):
        client.server_info()


def test_a_file_that_is_missing_is_named(made: Path) -> None:
    with pytest.raises(InvalidRequestError, match="no-such-file"):
        Client("127.0.0.1:1", ca_file=str(made / "no-such-file"))
    with pytest.raises(InvalidRequestError, match="cert_file and key_file"):
        Client("127.0.0.1:1", cert_file=str(made / "client.pem"))
