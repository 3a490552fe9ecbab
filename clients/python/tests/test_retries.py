"""Which calls are retried after which errors: `clients/retries.json`, for all clients."""

from __future__ import annotations

import inspect
import io
import json
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any, TypedDict

import grpc
import pytest

from sandgate import AsyncClient, AsyncSandbox, Client, Config, Sandbox, SandboxNotFoundError, SandgateError
from sandgate import _calls as calls
from sandgate import _retry as retry
from sandgate._gen.sandbox.v1 import sandbox_files_pb2, sandbox_service_pb2
from tests.fake_files import Refused


class _Error(TypedDict):
    code: str
    reason: str
    retry_info: bool
    error: str
    retried: list[str]


_TABLE = json.loads((Path(__file__).parents[2] / "retries.json").read_text())
_METHODS: dict[str, str] = _TABLE["methods"]
_ERRORS: list[_Error] = _TABLE["errors"]
_PERMANENT = Refused(grpc.StatusCode.NOT_FOUND, "SANDBOX_NOT_FOUND", "permanent")
_RETRY_AFTER = 1
"""Seconds."""

AnyClient = Client | AsyncClient
AnySandbox = Sandbox | AsyncSandbox


class _FailingServer(grpc.GenericRpcHandler):
    """Fails every call: with the errors of `planned`, then as permanent."""

    def __init__(self) -> None:
        self.planned: list[Refused] = []
        self.calls: list[str] = []

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        self.calls.append(handler_call_details.method.rpartition("/")[2])
        error = self.planned.pop(0) if self.planned else _PERMANENT

        def fail(_: object, context: grpc.ServicerContext) -> Iterator[bytes]:
            error.abort(context)
            yield b""

        return grpc.stream_stream_rpc_method_handler(fail)

    def plan(self, error: Refused) -> None:
        self.planned, self.calls = [error], []


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[_FailingServer, str]]:
    handler = _FailingServer()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((handler,))
    address = f"unix://{tmp_path_factory.mktemp('failing')}/server.sock"
    server.add_insecure_port(address)
    server.start()
    yield handler, address
    server.stop(None).wait()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace waiting before a retry by a list of the seconds."""
    waited: list[float] = []
    next_wait = retry.Retry.next

    def at_once(self: retry.Retry, error: SandgateError, window: float) -> float | None:
        wait = next_wait(self, error, window)
        if wait is not None:
            waited.append(wait)
        return wait and 0.0

    monkeypatch.setattr(retry.Retry, "next", at_once)
    return waited


def _plan(client: AnyClient, what: calls.Call[Any, Any], request: Any) -> object:
    return client.run(calls.call(what, request))


async def _end(result: Any) -> None:
    """Take everything of a result, which may be awaitable or a generator."""
    if inspect.isawaitable(result):
        result = await result
    if inspect.isasyncgen(result):
        async for _ in result:
            pass
    elif inspect.isgenerator(result):
        for _ in result:
            pass


_CALLS: dict[str, Callable[[Any, Any], object]] = {
    "GetServerInfo": lambda client, _: client.server_info(),
    "CreateSandbox": lambda client, _: client.create(),
    "GetSandbox": lambda client, _: client.get("a"),
    "ListSandboxes": lambda client, _: client.list_page(),
    "UpdateSandbox": lambda client, _: client.update("a", renew=True),
    "DeleteSandbox": lambda client, _: client.delete("a"),
    "CleanupSandboxes": lambda client, _: client.cleanup(),
    "SuspendSandbox": lambda client, _: client.suspend("a"),
    "ResumeSandbox": lambda client, _: client.resume("a"),
    "GetPoolStatus": lambda client, _: client.pool_status(),
    "Execute": lambda _, sandbox: sandbox.execute_stream("true"),
    "Attach": lambda _, sandbox: sandbox.attach("x"),
    "WriteStdin": lambda _, sandbox: sandbox.write_stdin("x", b"x", offset=0),
    "SignalProcess": lambda _, sandbox: sandbox.signal("x", "SIGTERM"),
    "ResizeTerminal": lambda _, sandbox: sandbox.resize_terminal("x", 24, 80),
    "ListProcesses": lambda _, sandbox: sandbox.processes(),
    "Upload": lambda _, sandbox: sandbox.upload_file("/x", b"x"),
    "GetUpload": lambda client, _: _plan(client, calls.GET_UPLOAD, sandbox_files_pb2.GetUploadRequest()),
    "Download": lambda _, sandbox: sandbox.download_file("/x", io.BytesIO()),
    "StatFile": lambda _, sandbox: sandbox.stat("/x"),
    "ListDirectory": lambda _, sandbox: sandbox.list("/"),
    "MakeDirectory": lambda _, sandbox: sandbox.make_directory("/d"),
    "MoveFile": lambda _, sandbox: sandbox.move("/x", "/y"),
    "RemoveFile": lambda _, sandbox: sandbox.remove("/x"),
    "ReadLines": lambda _, sandbox: sandbox.read("/x"),
    "WriteFile": lambda _, sandbox: sandbox.write("/x", "x"),
    "EditFile": lambda _, sandbox: sandbox.edit("/x", "a", "b"),
    "SearchFiles": lambda _, sandbox: sandbox.search("/", "x"),
    "GlobFiles": lambda _, sandbox: sandbox.glob("/", "*"),
    "Forward": lambda _, sandbox: sandbox.connect(80),
    "CreateSandboxUrl": lambda _, sandbox: sandbox.get_url(80),
    "WatchSandboxes": lambda client, _: client.watch(),
}


def test_the_table_has_every_method() -> None:
    service = sandbox_service_pb2.DESCRIPTOR.services_by_name["SandboxService"]
    assert set(_METHODS) == {method.name for method in service.methods} == set(_CALLS)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
async def test_methods_are_retried_as_in_the_table(
    failing: tuple[_FailingServer, str], waits: list[float], kind: type[AnyClient]
) -> None:
    server, address = failing
    client = kind(config=Config(address=address))
    sandbox = client.sandbox("a")
    for method, repeats in _METHODS.items():
        server.plan(Refused(grpc.StatusCode.UNAVAILABLE, "SERVER_SHUTTING_DOWN", "restarting"))
        with pytest.raises(SandgateError) as caught:
            await _end(_CALLS[method](client, sandbox))
        expected = "UNAVAILABLE" if repeats == "once" else "NOT_FOUND"
        assert (method, caught.value.code) == (method, expected)
        assert server.calls == [method] * (1 if repeats == "once" else 2)
    assert waits
    await _end(client.close())


@pytest.mark.parametrize("kind", [Client, AsyncClient])
async def test_errors_are_retried_as_in_the_table(
    failing: tuple[_FailingServer, str], waits: list[float], kind: type[AnyClient]
) -> None:
    server, address = failing
    client = kind(config=Config(address=address))
    sandbox = client.sandbox("a")
    with pytest.raises(SandboxNotFoundError):
        await _end(client.get("a"))
    for row in _ERRORS:
        for repeats, method in (("idempotent", "GetSandbox"), ("once", "EditFile"), ("stream", "Attach")):
            error = Refused(getattr(grpc.StatusCode, row["code"]), row["reason"], "failed")
            error.retry_after = _RETRY_AFTER if row["retry_info"] else None
            server.plan(error)
            waits.clear()
            with pytest.raises(SandgateError) as caught:
                await _end(_CALLS[method](client, sandbox))
            outcome = type(caught.value).__name__, len(server.calls)
            retried = repeats in row["retried"]
            expected = ("SandboxNotFoundError", 2) if retried else (row["error"], 1)
            assert (row, method, *outcome) == (row, method, *expected)
            if row["retry_info"] and retried:
                assert waits[0] >= _RETRY_AFTER
            elif row["retry_info"]:
                assert caught.value.retry_after == _RETRY_AFTER
    await _end(client.close())
