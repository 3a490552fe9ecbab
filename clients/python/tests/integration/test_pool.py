"""A server that keeps started sandboxes ready."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandgate import Config
from sandgate.deepagents import SandgateProvider
from sandgate.info import PoolStatus
from tests.integration.conftest import Server, needs_a_server

_TARGET = 2
_TIMEOUT = 60


@pytest.fixture
def pooled() -> Iterator[Config]:
    needs_a_server()
    with tempfile.TemporaryDirectory(prefix="sandgate-") as directory:
        config = Path(directory) / "config.yaml"
        config.write_text(f"templates: [{{name: default, pool: {_TARGET}}}]\n")
        try:
            with Server(Path(directory), "--config", str(config)) as server:
                yield Config.load(server.address)
        finally:
            # A pool outlives its server; one that keeps none deletes it.
            with Server(Path(directory)):
                pass


def _full(provider: SandgateProvider) -> PoolStatus:
    """Wait until the pool has as many as it should."""
    until = time.monotonic() + _TIMEOUT
    while (status := provider.pool_status()).available < _TARGET:
        assert time.monotonic() < until, status
        time.sleep(0.05)
    return status


def test_s5_17_warm_sandboxes_belong_to_no_caller(pooled: Config) -> None:
    with SandgateProvider(config=pooled) as provider:
        _full(provider)
        assert provider.list(status="warm").sandboxes == ()
        with provider.get_or_create() as claimed:
            assert claimed.from_pool
            assert _full(provider).active == 1
            assert provider.list(status="warm").sandboxes == ()
            assert [(s.id, s.status) for s in provider.list().sandboxes] == [(claimed.id, "running")]


def test_s5_18_s5_21_s4_11_c9_a_pool_of_started_sandboxes(pooled: Config) -> None:
    with SandgateProvider(config=pooled) as provider:
        before = _full(provider)
        assert (before.active, before.target) == (0, _TARGET)
        assert provider.stats().warm == _TARGET
        with provider.get_or_create() as claimed, provider.get_or_create(env={"A": "B"}) as cold:
            assert claimed.from_pool
            # A started sandbox cannot be given another environment.
            assert not cold.from_pool
            assert claimed.execute("echo ready").output == "ready\n"
            after = _full(provider)
            assert (after.available, after.active) == (_TARGET, 1)
            assert provider.stats().total == 2
