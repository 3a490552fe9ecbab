"""Retries of broken calls; the other clients have the same cases."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest

from sandgate import AsyncClient, Client, Config, DeadlineExceededError, SandgateError, UnavailableError
from sandgate._retry import Retry
from tests.fake_files import Refused
from tests.fake_server import FakeServer, wait_for


def _away(retry_after: int | None = None) -> Refused:
    away = Refused(grpc.StatusCode.UNAVAILABLE, "SERVER_SHUTTING_DOWN", "restarting")
    away.retry_after = retry_after
    return away


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_backoff_doubles_up_to_two_seconds_until_the_window_ends() -> None:
    clock, error = _Clock(), UnavailableError("away")
    retry = Retry(clock=clock)
    expected = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]
    while (wait := retry.next(error, 60)) is not None:
        least = expected.pop(0) if expected else 2.0
        assert least <= wait <= least * 1.25
        clock.now += wait
    assert 57.5 <= clock.now <= 60
    retry.progress()
    assert retry.next(error, 60) == pytest.approx(0.05, rel=0.25)


def test_the_window_begins_with_the_first_failure_and_has_a_limit() -> None:
    clock, error = _Clock(), UnavailableError("away")
    retry = Retry(30, clock)
    clock.now = 100
    assert retry.next(error, 60) is not None
    clock.now = 129
    assert retry.next(error, 60) is not None
    clock.now = 130
    assert retry.next(error, 60) is None
    assert Retry(30, clock).next(error, 0) is None


@pytest.mark.parametrize(("requested", "least"), [(0.0, 0.05), (1.0, 1.0), (5.0, 5.0), (3600.0, 5.0)])
def test_a_server_can_request_a_longer_wait_of_up_to_five_seconds(requested: float, least: float) -> None:
    error = SandgateError("away", code="UNAVAILABLE", retry_after=requested)
    wait = Retry().next(error, 60)
    assert wait is not None
    assert least <= wait <= least * 1.25


def test_retry_info_delays_the_next_attempt(client: Client, fake: FakeServer) -> None:
    fake.faults["GetServerInfo"] = [_away(retry_after=1)]
    begun = time.monotonic()
    client.server_info()
    assert time.monotonic() - begun >= 1
    assert fake.calls == ["GetServerInfo", "GetServerInfo"]


async def test_retry_info_delays_the_next_attempt_async(async_client: AsyncClient, fake: FakeServer) -> None:
    fake.faults["GetServerInfo"] = [_away(retry_after=1)]
    begun = time.monotonic()
    async with async_client:
        await async_client.server_info()
    assert time.monotonic() - begun >= 1
    assert fake.calls == ["GetServerInfo", "GetServerInfo"]


async def test_a_call_outlasts_a_server_that_is_away_for_ten_seconds(
    client: Client, async_client: AsyncClient, fake: FakeServer
) -> None:
    client.server_info()
    async with async_client:
        await async_client.server_info()
        fake.pause()
        calls = [
            asyncio.ensure_future(asyncio.to_thread(client.server_info)),
            asyncio.ensure_future(async_client.server_info()),
        ]
        done, _ = await asyncio.wait(calls, timeout=10)
        assert not done
        fake.start()
        assert [info.provider for info in await asyncio.gather(*calls)] == ["fake"] * 2


async def test_a_call_whose_outcome_is_unknown_is_not_repeated(
    client: Client, async_client: AsyncClient, fake: FakeServer
) -> None:
    path = fake.directory / "file"
    path.write_text("a")
    client.server_info()
    async with async_client:
        await async_client.server_info()
        fake.lost["EditFile"] = [_away(), _away()]
        with pytest.raises(UnavailableError):
            client.sandbox("x").edit(str(path), "a", "aa")
        with pytest.raises(UnavailableError):
            await async_client.sandbox("x").edit(str(path), "aa", "aaa")
    assert fake.calls.count("EditFile") == 2
    assert path.read_text() == "aaa"


def test_the_timeout_holds_for_all_attempts(fake: FakeServer) -> None:
    with Client(config=Config(address=fake.address, call_timeout=1.0)) as client:
        client.server_info()
        fake.faults["GetSandbox"] = [_away() for _ in range(99)]
        begun = time.monotonic()
        with pytest.raises((UnavailableError, DeadlineExceededError)):
            client.get("x")
        assert time.monotonic() - begun < 25  # less than the retry window
    assert 1 < fake.calls.count("GetSandbox") < 8


def test_no_call_is_repeated_before_the_server_has_answered(fake: FakeServer) -> None:
    fake.pause()
    begun = time.monotonic()
    with Client(config=Config(address=fake.address)) as client:
        with pytest.raises(UnavailableError, match="is `sandgate serve` running"):
            client.server_info()
        with pytest.raises(UnavailableError, match="is `sandgate serve` running"):
            client.sandbox("x").execute("true")
    assert time.monotonic() - begun < 5


def test_a_retry_window_of_zero_repeats_nothing(fake: FakeServer) -> None:
    with Client(config=Config(address=fake.address, reconnect_timeout=0)) as client:
        client.server_info()
        fake.faults["GetServerInfo"] = [_away()]
        with pytest.raises(UnavailableError):
            client.server_info()
    wait_for(lambda: len(fake.calls) == 2)
