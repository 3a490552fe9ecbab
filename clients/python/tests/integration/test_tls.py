"""TLS, client certificates, tokens and metadata, against servers that want them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

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
from tests.integration.conftest import BINARY, Server, needs_a_server
from tests.integration.test_troubleshooting import message_of


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """Give a directory with two authorities, and certificates of the first."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("needs openssl to make certificates")
    with tempfile.TemporaryDirectory(prefix="sandgate-tls-") as name:
        directory = Path(name)

        def openssl(*arguments: str) -> None:
            subprocess.run([program, *arguments], cwd=directory, check=True, capture_output=True)

        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        for ca in ("ca", "other"):
            names = ("-keyout", f"{ca}.key", "-out", f"{ca}.pem", "-subj", f"/CN={ca}")
            openssl("req", "-x509", *curve, *names, "-days", "1")
        for who, extension in (
            ("server", "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth"),
            ("client", "subjectAltName=DNS:alice\nextendedKeyUsage=clientAuth"),
            ("elsewhere", "subjectAltName=DNS:elsewhere.example.com\nextendedKeyUsage=serverAuth"),
        ):
            (directory / f"{who}.ext").write_text(extension)
            openssl(
                "req", *curve, "-keyout", f"{who}.key", "-out", f"{who}.csr", "-subj", "/O=research/CN=alice"
            )
            signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "1")
            openssl(
                "x509", "-req", "-in", f"{who}.csr", *signing, "-extfile", f"{who}.ext", "-out", f"{who}.pem"
            )
        yield directory


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


_WRONG = {
    "The server speaks TLS and the client does not": ("mutual", None),
    "The client speaks TLS and the server does not": ("plain", "ca.pem"),
    "The server's certificate is not trusted": ("mutual", "other.pem"),
    "The server wants a certificate of the client": ("mutual", "ca.pem"),
}


@pytest.mark.parametrize("case", _WRONG)
async def test_s5_31_what_is_wrong_with_tls_is_said(
    case: str, made: Path, request: pytest.FixtureRequest
) -> None:
    server, ca = _WRONG[case]
    hint = message_of(case)
    address = request.getfixturevalue(server)
    ca_file = str(made / ca) if ca else None
    config = Config(address=address, ca_file=ca_file, connect_timeout=0.5)
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


def test_a_certificate_for_another_name(made: Path) -> None:
    with (
        _serving(
            made,
            "elsewhere",
            "--tls-client-ca",
            str(made / "ca.pem"),
            admin=replace(_as(made, "client"), server_name="elsewhere.example.com"),
        ) as address,
        Client(config=replace(_as(made, "client"), address=address, connect_timeout=0.5)) as client,
        pytest.raises(UnavailableError, match="its certificate is for another name"),
    ):
        client.server_info()


def test_nobody_there_says_so() -> None:
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
