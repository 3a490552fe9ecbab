"""Tokens that are replaced in a file; the other clients have the same cases."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from sandgate import AsyncClient, AuthenticationError, Client, Output, SandgateError, Started
from tests.fake_server import FakeServer, revoked

_MAX_BYTES = 64 * 1024


class TokenFile:
    """A file that is replaced as a refresher does it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, token: str) -> None:
        other = self.path.with_suffix(".new")
        other.write_text(token)
        other.rename(self.path)


@pytest.fixture
def file(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "token")


Call = Callable[[str, Callable[[Any], Any]], Awaitable[Any]]


@pytest.fixture(params=["sync", "async"])
async def call(request: pytest.FixtureRequest, fake: FakeServer, file: TokenFile) -> AsyncIterator[Call]:
    """Make a call with the sync or the async client that reads the file."""
    client = Client(fake.address, token_file=str(file.path))
    other = AsyncClient(fake.address, token_file=str(file.path))

    async def made(of: str, act: Callable[[Any], Any]) -> Any:
        if request.param == "sync":
            return act(client if of == "client" else client.sandbox("a"))
        return await act(other if of == "client" else other.sandbox("a"))

    with client:
        async with other:
            yield made


async def test_the_file_is_read_again_when_it_changes(call: Call, fake: FakeServer, file: TokenFile) -> None:
    async def info() -> None:
        await call("client", lambda c: c.server_info())

    for content, why in (("\n", "it is empty"), ("x" * (_MAX_BYTES + 1), "it has more than 65536 bytes")):
        file.write(content)
        with pytest.raises(AuthenticationError, match=f"token file {file.path} cannot be used: {why}"):
            await info()
    file.path.unlink()
    with pytest.raises(AuthenticationError, match="No such file") as caught:
        await info()
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert fake.calls == []
    for token in ("one", "two"):
        fake.token = token
        file.write(f"{token}\n")
        await info()
    assert len(fake.calls) == 2
    # While the file is being replaced, the client has the last token.
    file.write("")
    await info()
    file.path.unlink()
    await info()
    assert len(fake.calls) == 4


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("GetSandbox", lambda box: box.info()),
        ("SignalProcess", lambda box: box.signal("x")),
        ("Execute", lambda box: box.execute("true")),
        ("Download", lambda box: box.download_file("/dev/null")),
        ("Upload", lambda box: box.upload_file("/dev/null/x", b"x")),
        ("Forward", lambda box: box.connect(1)),
    ],
)
@pytest.mark.parametrize("renewed", [False, True])
async def test_a_rejected_call_is_made_once_more_if_the_token_has_changed(
    call: Call, fake: FakeServer, file: TokenFile, name: str, act: Callable[[Any], Any], *, renewed: bool
) -> None:
    file.write("old")
    fake.token = "new"  # noqa: S105
    fake.on_rejected = (lambda: file.write("new")) if renewed else None
    failure: SandgateError | None = None
    try:
        await call("sandbox", act)
    except SandgateError as e:
        failure = e
    assert isinstance(failure, AuthenticationError) != renewed
    assert fake.rejected == [name]


async def test_a_source_that_always_changes_leads_to_one_retry(fake: FakeServer) -> None:
    fake.token = "never"  # noqa: S105
    numbers = count()
    with Client(fake.address, token=lambda: f"t{next(numbers)}") as client:
        with pytest.raises(AuthenticationError):
            client.server_info()
        with pytest.raises(AuthenticationError):
            client.sandbox("a").execute("true")
    async with AsyncClient(fake.address, token=lambda: f"t{next(numbers)}") as other:
        with pytest.raises(AuthenticationError):
            await other.sandbox("a").execute("true")
    assert fake.calls == ["GetServerInfo"] * 2 + ["Execute"] * 4


async def test_the_outcome_of_a_call_that_was_revoked_while_it_ran_is_unknown(
    call: Call, fake: FakeServer, file: TokenFile
) -> None:
    target = file.path.with_name("target")
    target.write_text("a")

    # The server answers, then revokes the token while the next call runs.
    fake.faults["GetServerInfo"] = [revoked()]
    fake.lost["EditFile"] = [revoked()]

    async def again(of: str, act: Callable[[Any], Any]) -> Any:
        file.write("old")
        fake.on_call = lambda: file.write("new")
        return await call(of, act)

    await again("client", lambda c: c.server_info())
    assert fake.calls == ["GetServerInfo", "GetServerInfo"]
    with pytest.raises(AuthenticationError):
        await again("sandbox", lambda box: box.edit(str(target), "a", "aa"))
    assert fake.calls.count("EditFile") == 1
    assert target.read_text() == "aa"


def test_a_stream_continues_with_the_next_token(fake: FakeServer, file: TokenFile) -> None:
    file.write("t0")
    fake.token = "t0"  # noqa: S105
    output, number = b"", 0
    with Client(fake.address, token_file=str(file.path)) as client:
        sandbox = client.create(sandbox_id="a")
        steps = [file.path.with_name(f"step{i}") for i in range(5)]
        script = "; ".join(f"echo {i}; until [ -e {s} ]; do sleep 0.01; done" for i, s in enumerate(steps))
        with contextlib.closing(sandbox.execute_stream(script)) as events:
            for event in events:
                if isinstance(event, Output):
                    output += event.data
                    file.write(f"t{number + 1}")
                    fake.token = f"t{number + 1}"
                    steps[number].touch()
                    number += 1
    assert output == b"0\n1\n2\n3\n4\n"
    assert fake.calls.count("Execute") == 1
    assert fake.calls.count("Attach") == 5


async def test_a_stream_continues_with_the_next_token_async(fake: FakeServer, file: TokenFile) -> None:
    file.write("t0")
    fake.token = "t0"  # noqa: S105
    output, number = b"", 0
    async with AsyncClient(fake.address, token_file=str(file.path)) as client:
        sandbox = await client.create(sandbox_id="a")
        steps = [file.path.with_name(f"step{i}") for i in range(5)]
        script = "; ".join(f"echo {i}; until [ -e {s} ]; do sleep 0.01; done" for i, s in enumerate(steps))
        async for event in sandbox.execute_stream(script):
            if isinstance(event, Output):
                output += event.data
                file.write(f"t{number + 1}")
                fake.token = f"t{number + 1}"
                steps[number].touch()
                number += 1
    assert output == b"0\n1\n2\n3\n4\n"
    assert fake.calls.count("Execute") == 1
    assert fake.calls.count("Attach") == 5


def test_a_stream_whose_token_expired_for_good_ends(fake: FakeServer, file: TokenFile) -> None:
    file.write("old")
    fake.token = "old"  # noqa: S105
    with Client(fake.address, token_file=str(file.path)) as client:
        sandbox = client.create(sandbox_id="a")
        events = sandbox.execute_stream("echo half; sleep 100")
        assert isinstance(next(events), Started)
        assert isinstance(next(events), Output)
        fake.token = "new"  # noqa: S105
        with pytest.raises(AuthenticationError):
            next(events)
    assert "Attach" not in fake.calls
