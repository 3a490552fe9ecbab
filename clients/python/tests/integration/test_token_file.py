"""A command's stream survives the expiry of its token, on a real server."""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandgate import AsyncClient, AuthenticationError, Client, Config
from tests.fake_server import wait_for
from tests.integration.conftest import Server

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("runc") is None, reason="needs root and runc to start a server"
)


class Tokens:
    """The tokens that a server accepts, and the token file of its clients."""

    def __init__(self, directory: Path) -> None:
        self.accepted = directory / "tokens.yaml"
        self.file = directory / "token"
        self._entries = [self._entry("admin")]
        self._save()

    def renew(self, name: str, lifetime: float | None = None) -> None:
        """Accept another token, and put it into the clients' file."""
        self._entries.append(self._entry(name, lifetime))
        self._save()
        other = self.file.with_suffix(".new")
        other.write_text(f"{name}-secret\n")
        other.rename(self.file)

    def _save(self) -> None:
        other = self.accepted.with_suffix(".new")
        other.write_text(json.dumps({"tokens": self._entries}))
        other.rename(self.accepted)

    def _entry(self, name: str, lifetime: float | None = None) -> dict[str, str]:
        entry = {"name": name, "tenant": "t", "sha256": hashlib.sha256(f"{name}-secret".encode()).hexdigest()}
        if lifetime is not None:
            entry["expires"] = (dt.datetime.now(dt.UTC) + dt.timedelta(seconds=lifetime)).isoformat()
        return entry


@pytest.fixture
def served() -> Iterator[tuple[Server, Tokens]]:
    with tempfile.TemporaryDirectory(prefix="sandgate-") as name:
        directory = Path(name)
        tokens = Tokens(directory)
        admin = Config(token="admin-secret")  # noqa: S106
        with Server(directory, "--tokens-file", str(tokens.accepted), admin=admin) as server:
            yield server, tokens


def _wait_until_accepted(client: Client) -> None:
    """Wait until the server has read its tokens again."""

    def accepted() -> bool:
        try:
            client.server_info()
        except AuthenticationError:
            return False
        return True

    wait_for(accepted)


async def test_a_command_outlives_its_token(served: tuple[Server, Tokens]) -> None:
    server, tokens = served
    script = "for n in $(seq 90); do echo $n; sleep 0.1; done"
    expected = "".join(f"{n}\n" for n in range(1, 91))
    begun = {"sync": threading.Event(), "async": threading.Event()}
    client = Client(server.address, token_file=str(tokens.file))
    other = AsyncClient(server.address, token_file=str(tokens.file))
    with client, Client(server.address, token="admin-secret") as admin:  # noqa: S106
        async with other:
            for sandbox_id in ("a", "b"):
                admin.create(sandbox_id=sandbox_id)
            tokens.renew("first", 6)
            _wait_until_accepted(client)

            def sync() -> str:
                return client.sandbox("a").execute(script, on_output=lambda _: begun["sync"].set()).stdout

            async def with_asyncio() -> str:
                result = await other.sandbox("b").execute(script, on_output=lambda _: begun["async"].set())
                return result.stdout

            running = [asyncio.ensure_future(asyncio.to_thread(sync)), asyncio.ensure_future(with_asyncio())]
            for event in begun.values():
                assert await asyncio.to_thread(event.wait, 60)
            tokens.renew("second")
            assert await asyncio.gather(*running) == [expected] * 2
    records = (tokens.file.parent / "state" / "audit.log").read_text()
    assert records.count('"operation":"Attach"') >= 2
