"""Watches, sync and async."""

from __future__ import annotations

import asyncio
import itertools

import grpc
import pytest

from sandgate import AsyncClient, Client, InvalidRequestError, UnavailableError
from tests.fake_files import Refused
from tests.fake_server import FakeServer


@pytest.mark.parametrize(("cursor", "first"), [("", 1), ("10", 11)])
def test_a_watch_continues_after_each_break(client: Client, cursor: str, first: int) -> None:
    client.server_info()
    got = list(itertools.islice(client.watch(cursor=cursor, labels={"k": "v"}, types=["CREATED"]), 6))
    assert [e.cursor for e in got] == [str(i) for i in range(first, first + 6)]
    assert [e.event_id for e in got] == [f"e{e.cursor}" for e in got]
    assert (got[0].type, got[0].reason, got[0].state, got[0].labels) == (
        "CREATED",
        "UNSPECIFIED",
        "UNSPECIFIED",
        {"k": "v"},
    )


def test_an_async_watch_continues_after_each_break(fake: FakeServer) -> None:
    async def main() -> list[str]:
        async with AsyncClient(fake.address) as client:
            await client.server_info()
            got: list[str] = []
            async for event in client.watch(cursor="10"):
                got.append(event.cursor)
                if len(got) == 5:
                    break
            return got

    assert asyncio.run(main()) == ["11", "12", "13", "14", "15"]


def test_a_watch_that_the_server_refuses_ends(client: Client, fake: FakeServer) -> None:
    with pytest.raises(InvalidRequestError, match="cursor"):
        next(client.watch(cursor="x"))
    with pytest.raises(InvalidRequestError, match="NOTHING"):
        client.watch(types=["NOTHING"])  # type: ignore[list-item]
    away = Refused(grpc.StatusCode.PERMISSION_DENIED, "CALL_FORBIDDEN", "no")
    fake.faults["WatchSandboxes"] = [away]
    watch = client.watch()
    with pytest.raises(Exception, match="no"):
        next(watch)


def test_a_watch_without_a_server_ends(fake: FakeServer) -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(UnavailableError):
        next(client.watch())
    assert fake.calls == []
