"""Metadata of a client and of a call, and tokens that change."""

from __future__ import annotations

from itertools import count

import pytest
from opentelemetry import propagate
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sandgate import AsyncClient, AuthenticationError, Client, Config
from sandgate.deepagents import SandgateSandbox
from tests.fake_server import FakeServer


def _sent(fake: FakeServer, key: str) -> list[tuple[str, str | None]]:
    return [(name, metadata.get(key)) for name, metadata in fake.headers]


def test_metadata_of_a_call_is_added_to_the_clients(fake: FakeServer) -> None:
    with Client(fake.address, metadata={"x-team": "blue", "x-request-id": "all"}) as client:
        sandbox = client.create(sandbox_id="a")
        one = sandbox.with_metadata({"x-request-id": "one"})
        assert one.execute("echo x").stdout == "x\n"
        one.upload_file("/x", b"x")
        one.download_file("/x")
        sandbox.info()
        client.with_metadata({"x-request-id": "two"}).with_metadata({"x-trace": "7"}).get("a").info()
    assert _sent(fake, "x-request-id") == [
        ("CreateSandbox", "all"),
        ("Execute", "one"),
        ("Upload", "one"),
        ("Download", "one"),
        ("GetSandbox", "all"),
        ("GetSandbox", "two"),
        ("GetSandbox", "two"),
    ]
    assert {team for _, team in _sent(fake, "x-team")} == {"blue"}
    assert [trace for _, trace in _sent(fake, "x-trace")][-2:] == ["7", "7"]


async def test_metadata_of_a_call_is_added_to_the_clients_async(fake: FakeServer) -> None:
    async with AsyncClient(fake.address, metadata={"x-request-id": "all"}) as client:
        sandbox = await client.create(sandbox_id="a")
        one = sandbox.with_metadata({"x-request-id": "one"})
        assert (await one.execute("echo x")).stdout == "x\n"
        await one.upload_file("/x", b"x")
        await one.download_file("/x")
        await sandbox.info()
        await client.with_metadata({"x-request-id": "two"}).get("a")
    assert _sent(fake, "x-request-id") == [
        ("CreateSandbox", "all"),
        ("Execute", "one"),
        ("Upload", "one"),
        ("Download", "one"),
        ("GetSandbox", "all"),
        ("GetSandbox", "two"),
    ]


def test_a_call_belongs_to_the_trace_around_it(client: Client, fake: FakeServer) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    context = TraceContextTextMapPropagator().extract({"traceparent": parent})
    headers: dict[str, str] = {}
    propagate.inject(headers, context)
    with client.create(sandbox_id="a") as sandbox:
        # The stream breaks once: its second call belongs to the trace too.
        fake.cut_after = [3]
        assert sandbox.with_metadata(headers).execute("echo 123456").stdout == "123456\n"
    assert _sent(fake, "traceparent") == [
        ("CreateSandbox", None),
        ("Execute", parent),
        ("Attach", parent),
        ("DeleteSandbox", None),
    ]


def test_a_handle_with_metadata_leaves_the_sandbox_alone(client: Client, fake: FakeServer) -> None:
    with client.create(sandbox_id="a") as sandbox:
        with sandbox.with_metadata({"x-trace": "7"}) as other:
            assert (other.id, other.incarnation) == (sandbox.id, sandbox.incarnation)
        assert "a" in fake.sandboxes
    assert "a" not in fake.sandboxes


def test_a_token_function_is_called_for_every_call(fake: FakeServer) -> None:
    numbers = count(1)
    # The stream breaks once: its second try has the token of that moment.
    fake.cut_after = [3]
    with Client(fake.address, token=lambda: f"t{next(numbers)}") as client:
        sandbox = client.create(sandbox_id="a")
        assert sandbox.execute("echo 123456").stdout == "123456\n"
        sandbox.upload_file("/x", b"x")
        client.get("a")
    assert _sent(fake, "authorization") == [
        ("CreateSandbox", "Bearer t1"),
        ("Execute", "Bearer t2"),
        ("Attach", "Bearer t3"),
        ("Upload", "Bearer t4"),
        ("GetSandbox", "Bearer t5"),
    ]


async def test_a_backend_takes_a_token_that_changes(fake: FakeServer) -> None:
    numbers = count(1)
    config = Config(address=fake.address, token=lambda: f"t{next(numbers)}")
    with SandgateSandbox.create(config=config) as backend:
        backend.execute("true")
        await backend.aexecute("true")
    tokens = [token for _, token in _sent(fake, "authorization")]
    assert tokens == [f"Bearer t{n}" for n in range(1, len(tokens) + 1)]


def _sealed() -> str:
    raise OSError("the vault is sealed")


async def test_a_token_function_that_fails_is_an_authentication_error(fake: FakeServer) -> None:
    config = Config(address=fake.address, token=_sealed)
    with Client(config=config) as client:
        for call in (
            client.server_info,
            lambda: client.sandbox("a").execute("true"),
            lambda: client.sandbox("a").upload_file("/x", b""),
            lambda: client.sandbox("a").download_file("/x"),
        ):
            with pytest.raises(AuthenticationError, match="the vault is sealed") as caught:
                call()
            assert isinstance(caught.value.__cause__, OSError)
    async with AsyncClient(config=config) as other:
        with pytest.raises(AuthenticationError, match="the vault is sealed"):
            await other.server_info()
        with pytest.raises(AuthenticationError, match="the vault is sealed"):
            await other.sandbox("a").execute("true")
        with pytest.raises(AuthenticationError, match="the vault is sealed"):
            await other.sandbox("a").upload_file("/x", b"")
    assert fake.calls == []


def test_a_backend_takes_where_its_server_is(fake: FakeServer, config: Config) -> None:
    with SandgateSandbox.create(address=fake.address, token="t") as backend:  # noqa: S106
        assert backend.execute("echo hi").output == "hi\n"
    assert set(_sent(fake, "authorization")) >= {("CreateSandbox", "Bearer t"), ("Execute", "Bearer t")}
    with pytest.raises(TypeError, match="either config or address"):
        SandgateSandbox.create(address=fake.address, config=config)
