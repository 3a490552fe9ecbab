"""Fixtures: the fake server, and clients of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandgate import AsyncClient, Client, Config, Sandbox
from tests.fake_server import FakeServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeServer]:
    # The rest of the API answers UNIMPLEMENTED.
    # Not tmp_path: its name grows with the test's, and a socket's path is short.
    server = FakeServer(tmp_path_factory.mktemp("fake"))  # type: ignore[abstract]
    yield server
    server.stop()


@pytest.fixture
def config(fake: FakeServer) -> Config:
    return Config(address=fake.address)


@pytest.fixture
def client(config: Config) -> Iterator[Client]:
    with Client(config=config) as made:
        yield made


@pytest.fixture
def async_client(config: Config) -> AsyncClient:
    return AsyncClient(config=config)


@pytest.fixture
def sandbox(client: Client) -> Sandbox:
    return client.create(sandbox_id="one")


@pytest.fixture
def work(fake: FakeServer) -> Path:
    path = fake.directory / "work"
    path.mkdir()
    return path
