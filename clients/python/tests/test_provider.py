"""The provider, against the fake server."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from sandgate import Config, SandboxNotFoundError
from sandgate._gen.sandbox.v1 import sandbox_lifecycle_pb2 as pb
from sandgate.deepagents import SandgateProvider
from sandgate.deepagents.provider import Status
from tests.fake_files import Refused
from tests.fake_server import FakeServer


@pytest.fixture
def provider(config: Config) -> Iterator[SandgateProvider]:
    with SandgateProvider(config=config, default_labels={"app": "x"}, ttl_seconds=60) as made:
        yield made


def test_s5_20_defaults_and_a_calls_own(provider: SandgateProvider, fake: FakeServer) -> None:
    first = provider.get_or_create(labels={"user": "u"}, ttl_idle_seconds=5, image="python:3.12")
    asked = fake.created[-1]
    assert asked.sandbox_id == first.id
    assert dict(asked.labels) == {"app": "x", "user": "u"}
    assert (asked.ttl.seconds, asked.idle_ttl.seconds, asked.spec.image) == (60, 5, "python:3.12")
    provider.get_or_create(ttl_seconds=0)
    assert fake.created[-1].HasField("ttl")
    assert fake.created[-1].ttl.seconds == 0
    assert provider.get_or_create().id != first.id
    assert first.execute("echo hi").output == "hi\n"
    first.close()
    assert first.id in fake.sandboxes


async def test_an_id_is_used_or_generated(provider: SandgateProvider, fake: FakeServer) -> None:
    assert provider.get_or_create(sandbox_id="t").id == "t"
    assert (await provider.aget_or_create(sandbox_id="t")).id == "t"
    fake.faults["CreateSandbox"] = [
        Refused(grpc.StatusCode.ALREADY_EXISTS, "SANDBOX_SPEC_DIFFERS", "made with another spec")
        for _ in range(2)
    ]
    assert provider.get_or_create(sandbox_id="t", image="other").id == "t"
    assert (await provider.aget_or_create(sandbox_id="t", image="other")).id == "t"
    assert (await provider.areconnect("t")).id == provider.reconnect("t").id == "t"


async def test_s5_19_deleting_is_idempotent_and_reconnecting_makes_nothing(
    provider: SandgateProvider, fake: FakeServer
) -> None:
    provider.get_or_create(sandbox_id="t")
    provider.delete(sandbox_id="t")
    provider.delete(sandbox_id="t")
    await provider.adelete(sandbox_id="t")
    with pytest.raises(SandboxNotFoundError):
        provider.reconnect("t")
    with pytest.raises(SandboxNotFoundError):
        await provider.areconnect("t")
    assert not fake.sandboxes


async def test_s5_17_c8_pages(provider: SandgateProvider) -> None:
    made = {provider.get_or_create(sandbox_id=f"s{i}").id for i in range(3)}
    seen, cursor = [], None
    while True:
        page = provider.list(cursor=cursor)
        assert page == await provider.alist(cursor=cursor)
        seen += [(s.id, s.status, s.labels["app"]) for s in page.sandboxes]
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == [(name, "running", "x") for name in sorted(made)]


@pytest.mark.parametrize(
    ("status", "states"),
    [
        ("running", [pb.SANDBOX_STATE_ACTIVE]),
        ("pending", [pb.SANDBOX_STATE_CREATING]),
        ("terminated", [pb.SANDBOX_STATE_DELETING, pb.SANDBOX_STATE_FAILED]),
        (None, []),
    ],
)
def test_statuses(
    provider: SandgateProvider, fake: FakeServer, status: Status | None, states: list[int]
) -> None:
    provider.list(status=status, labels={"a": "b"})
    assert list(fake.listed[-1].states) == states
    assert dict(fake.listed[-1].labels) == {"app": "x", "a": "b"}


def test_an_unknown_status_is_rejected(provider: SandgateProvider) -> None:
    with pytest.raises(ValueError, match="status must be one of"):
        provider.list(status="asleep")  # type: ignore[arg-type]
