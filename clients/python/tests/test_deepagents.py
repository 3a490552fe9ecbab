"""The backend's promises to deepagents, against the fake server."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from deepagents.backends.protocol import BackendProtocol, ExecuteResponse, SandboxBackendProtocol
from deepagents.backends.sandbox import BaseSandbox

from sandgate import Config, SandboxNotFoundError, SandgateError, UnavailableError
from sandgate.deepagents import SandgateSandbox
from sandgate.process import Exited, Output, Started
from tests.fake_files import Refused
from tests.fake_server import FakeServer

# How each method of the contract is called here. `execute` and what is defined
# by running a command are the only ones that may run one.
_RUNS_COMMANDS = {"execute", "execute_with_offload"}
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "ls": ("{w}",),
    "read": ("{w}/f",),
    "write": ("{w}/n/w", "x"),
    "edit": ("{w}/f", "one", "two"),
    "grep": ("two", "{w}"),
    "glob": ("*", "{w}"),
    "delete": ("{w}/d",),
    "upload_files": ([("{w}/u", b"x")],),
    "download_files": (["{w}/f"],),
}


@pytest.fixture
def backend(config: Config) -> Iterator[SandgateSandbox]:
    with SandgateSandbox.create(config=config, sandbox_id="agent") as made:
        yield made


def _here(value: Any, work: Path) -> Any:
    match value:
        case str():
            return value.replace("{w}", str(work))
        case list() | tuple():
            return type(value)(_here(v, work) for v in value)
    return value


def _public_methods(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


async def _call(backend: SandgateSandbox, name: str, work: Path) -> Any:
    arguments = _here(_ARGUMENTS[name.removeprefix("a") if name != "als" else "ls"], work)
    result = getattr(backend, name)(*arguments)
    return await result if inspect.isawaitable(result) else result


def test_it_is_what_deepagents_looks_for(backend: SandgateSandbox) -> None:
    assert isinstance(backend, SandboxBackendProtocol)
    assert isinstance(backend, BaseSandbox)
    assert "timeout" in inspect.signature(SandgateSandbox.execute).parameters
    assert "max_count" in inspect.signature(SandgateSandbox.grep).parameters
    assert SandgateSandbox.delete is not BackendProtocol.delete


def test_every_signature_is_the_contracts() -> None:
    for name in _public_methods(BaseSandbox):
        ours = inspect.signature(getattr(SandgateSandbox, name)).parameters
        theirs = inspect.signature(getattr(BaseSandbox, name)).parameters
        assert list(ours) == list(theirs), name
        assert [p.default for p in ours.values()] == [p.default for p in theirs.values()], name


async def test_no_file_method_runs_a_command(
    backend: SandgateSandbox, work: Path, fake: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> ExecuteResponse:
        raise AssertionError("a file method ran a command")

    for name in ("execute", "aexecute", "execute_stream", "aexecute_stream"):
        monkeypatch.setattr(SandgateSandbox, name, refuse)
    tried = set()
    for name in sorted(_public_methods(BaseSandbox)):
        if name.removeprefix("a") in _RUNS_COMMANDS:
            continue
        (work / "d").mkdir(exist_ok=True)
        (work / "f").write_text("one\ntwo\n")
        result = await _call(backend, name, work)
        for one in result if isinstance(result, list) else [result]:
            assert one.error is None, name
        tried.add(name)
    assert backend._write_preflight(f"{work}/p/x") is None
    assert await backend._awrite_preflight(f"{work}/q/x") is None
    assert tried == {*_ARGUMENTS, *(f"a{name}" for name in _ARGUMENTS)}
    assert "Execute" not in fake.calls


@pytest.mark.parametrize("name", [*_ARGUMENTS, *(f"a{name}" for name in _ARGUMENTS)])
async def test_a_transport_error_is_a_result_and_not_a_missing_file(
    config: Config, work: Path, fake: FakeServer, name: str
) -> None:
    impatient = dataclasses.replace(config, reconnect_timeout=0.1)
    backend = SandgateSandbox("agent", config=impatient)
    away = [Refused(grpc.StatusCode.UNAVAILABLE, "AGENT_UNAVAILABLE", "the agent is away") for _ in range(99)]
    for call in ("ListDirectory", "ReadLines", "WriteFile", "EditFile", "SearchFiles", "GlobFiles"):
        fake.faults[call] = list(away)
    for call in ("RemoveFile", "Upload", "Download"):
        fake.faults[call] = list(away)
    result = await _call(backend, name, work)
    for one in result if isinstance(result, list) else [result]:
        assert "AGENT_UNAVAILABLE" in one.error
        assert "not_found" not in one.error
        assert "not found" not in one.error


@pytest.mark.parametrize("name", [*_ARGUMENTS, *(f"a{name}" for name in _ARGUMENTS)])
async def test_transport_errors_raise_on_request(
    config: Config, work: Path, fake: FakeServer, name: str
) -> None:
    backend = SandgateSandbox("agent", config=config, raise_on_transport_error=True)
    for call in ("ListDirectory", "ReadLines", "WriteFile", "EditFile", "SearchFiles", "GlobFiles"):
        fake.faults[call] = [Refused(grpc.StatusCode.NOT_FOUND, "SANDBOX_NOT_FOUND", "gone")]
    for call in ("RemoveFile", "Upload", "Download"):
        fake.faults[call] = [Refused(grpc.StatusCode.NOT_FOUND, "SANDBOX_NOT_FOUND", "gone")]
    with pytest.raises(SandboxNotFoundError):
        await _call(backend, name, work)
    result = await _call(backend, name, work)
    assert result is not None, "a missing file is a result still"
    await backend.aclose()


def test_the_id_is_known_before_any_call(tmp_path: Path) -> None:
    backend = SandgateSandbox("x", config=Config(address=f"unix://{tmp_path}/none"))
    assert backend.id == "x"
    with pytest.raises(ValueError, match="id"):
        SandgateSandbox("", config=Config(address=f"unix://{tmp_path}/none"))
    backend.close()


def test_create_and_connect(config: Config, fake: FakeServer) -> None:
    with SandgateSandbox.create(config=config, labels={"a": "b"}) as made:
        with SandgateSandbox.connect(made.id, config=config) as other:
            assert other.id == made.id
        assert made.id in fake.sandboxes
    assert made.id not in fake.sandboxes
    with pytest.raises(SandboxNotFoundError):
        SandgateSandbox.connect(made.id, config=config)


async def test_async_create_and_connect(config: Config, fake: FakeServer) -> None:
    async with await SandgateSandbox.acreate(config=config) as made:
        async with await SandgateSandbox.aconnect(made.id, config=config) as other:
            assert (await other.aexecute("echo hi")).output == "hi\n"
        assert made.id in fake.sandboxes
    assert made.id not in fake.sandboxes


async def _both(backend: SandgateSandbox, command: str, **options: Any) -> ExecuteResponse:
    sync = await asyncio.to_thread(backend.execute, command, **options)
    own = await backend.aexecute(command, **options)
    assert own == sync
    return own


async def test_output_is_combined_in_order(backend: SandgateSandbox) -> None:
    response = await _both(backend, "echo a; echo b >&2; echo c; exit 5")
    assert response == ExecuteResponse(output="a\nb\nc\n", exit_code=5, truncated=False)


async def test_output_keeps_nul_and_replaces_what_is_no_text(backend: SandgateSandbox) -> None:
    response = await _both(backend, r"printf 'a\000\377\303\251\303'")
    assert response.output == "a\0\ufffdé\ufffd"


async def test_a_timeout_has_124_and_the_output_so_far(backend: SandgateSandbox) -> None:
    response = await _both(backend, "echo before; sleep 100", timeout=1)
    assert response == ExecuteResponse("before\nCommand timed out after 1 seconds", 124, truncated=False)


async def test_timeouts_of_zero_and_less(backend: SandgateSandbox) -> None:
    assert (await _both(backend, "echo x", timeout=0)).exit_code == 0
    with pytest.raises(ValueError, match="non-negative"):
        backend.execute("true", timeout=-1)
    with pytest.raises(ValueError, match="non-negative"):
        await backend.aexecute("true", timeout=-1)


async def test_signals_are_128_and_more(backend: SandgateSandbox) -> None:
    assert (await _both(backend, "kill -SEGV $$")).exit_code == 139


async def test_output_is_capped(config: Config) -> None:
    async with await SandgateSandbox.acreate(config=config, max_output_size=10) as backend:
        response = await _both(backend, "printf 0123456789; exit 1")
        assert response == ExecuteResponse("0123456789", 1, truncated=False)
        response = await _both(backend, "printf 0123456789x; exit 1")
        assert response == ExecuteResponse("0123456789", 1, truncated=True)


async def test_output_is_reported_as_it_comes(config: Config) -> None:
    received = list[str]()

    async def later(text: str) -> None:
        await asyncio.sleep(0)
        received.append(text)

    async with await SandgateSandbox.acreate(config=config, on_output=received.append) as backend:
        await asyncio.to_thread(backend.execute, "echo a")
        await backend.aexecute("echo b")
        backend.on_output = later
        await backend.aexecute("echo c")
    assert "".join(received) == "a\nb\nc\n"


async def test_streams(backend: SandgateSandbox) -> None:
    events = list(backend.execute_stream("echo a; exit 2"))
    assert [type(e) for e in events] == [Started, Output, Exited]
    assert [type(e) async for e in backend.aexecute_stream("echo a")] == [Started, Output, Exited]


async def test_execute_returns_transport_errors_or_raises_them_on_request(
    backend: SandgateSandbox, fake: FakeServer, config: Config
) -> None:
    del fake.sandboxes["agent"]
    response = await _both(backend, "true")
    assert response.exit_code is None
    assert response.output.startswith("Error: SandboxNotFoundError: there is no sandbox 'agent'")
    strict = SandgateSandbox("agent", config=config, raise_on_transport_error=True)
    with pytest.raises(SandgateError):
        strict.execute("true")
    with pytest.raises(SandgateError):
        await strict.aexecute("true")
    await strict.aclose()


def test_an_unreachable_server_is_an_error(tmp_path: Path) -> None:
    config = Config(address=f"unix://{tmp_path}/none")
    backend = SandgateSandbox("x", config=config)
    assert backend.execute("true").output.startswith("Error: UnavailableError")
    (response,) = backend.download_files(["/memories/AGENTS.md"])
    assert response.error is not None
    assert response.error.startswith("UnavailableError")
    with pytest.raises(UnavailableError):
        SandgateSandbox.connect("x", config=config)
    backend.close()


def test_partial_success_keeps_the_order(backend: SandgateSandbox, work: Path) -> None:
    files = [
        (f"{work}/a", b"1"),
        ("rel", b"2"),
        (f"{work}/a/b", b"3"),
        ("/\ud800", b"4"),
        (f"{work}/c", b"5"),
    ]
    uploaded = backend.upload_files(files)
    assert [r.path for r in uploaded] == [path for path, _ in files]
    assert [r.error for r in uploaded] == [None, "invalid_path", "invalid_path", "invalid_path", None]
    paths = [f"{work}/c", f"{work}/none", "rel", str(work), f"{work}/a", f"{work}/c"]
    downloaded = backend.download_files(paths)
    assert [r.path for r in downloaded] == paths
    assert [r.content for r in downloaded] == [b"5", None, None, None, b"1", b"5"]
    errors = [None, "file_not_found", "invalid_path", "is_directory", None, None]
    assert [r.error for r in downloaded] == errors
    assert backend.upload_files([]) == []
    assert backend.download_files([]) == []


def test_several_event_loops(backend: SandgateSandbox) -> None:
    async def run(text: str) -> str:
        return (await backend.aexecute(f"echo {text}")).output

    assert [asyncio.run(run(str(i))) for i in range(3)] == ["0\n", "1\n", "2\n"]


def test_text_that_cannot_be_sent_is_a_result_too(backend: SandgateSandbox, work: Path) -> None:
    bad = "/\ud800"
    (work / "f").write_text("x")
    assert backend.ls(bad).error == f"Path '{bad}': invalid_path"
    assert backend.read(bad).error == f"File '{bad}': invalid_path"
    assert backend.read(f"{bad}.png").error == f"File '{bad}.png': invalid_path"
    assert backend.write(bad, "x").error == f"Failed to write file '{bad}': invalid_path"
    assert backend.write(f"{work}/w", bad).error
    assert backend.edit(bad, "a", "b").error == f"Error editing file '{bad}': invalid_path"
    assert backend.edit(f"{work}/f", bad, "b").error
    assert backend.grep("x", bad).error == f"Path '{bad}': invalid_path"
    assert backend.grep(bad, str(work)).error
    assert backend.glob("*", bad).error == f"Path '{bad}': invalid_path"
    assert backend.glob(bad, str(work)).error
    assert backend.delete(bad).error == f"Error deleting file '{bad}': invalid_path"
    assert backend.execute(f"echo {bad}").output.startswith("Error: ")
