"""Connections to ports: sockets that behave as such, and end as such."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import http.server
import os
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING

import pytest

from sandgate import (
    AsyncClient,
    Client,
    ConnectionLostError,
    DeadlineExceededError,
    PortClosedError,
    Sandbox,
    SandboxReplacedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fake_server import FakeServer

_SIZE = 16 << 20


@contextlib.contextmanager
def listener(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Accept connections on a port until the end, each in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)  # Ends `accept`, which a close does not.


def echo(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        while data := connection.recv(1 << 16):
            connection.sendall(data)


def digest_after_the_end(connection: socket.socket) -> None:
    with connection:
        digest = hashlib.sha256()
        while data := connection.recv(1 << 16):
            digest.update(data)
        connection.sendall(digest.digest())


def reset(connection: socket.socket) -> None:
    connection.recv(1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.fixture(autouse=True)
def nothing_leaks(fake: FakeServer) -> Iterator[None]:
    yield
    assert fake.wait_for_forwards(0)
    deadline = time.monotonic() + 10
    while names := [t.name for t in threading.enumerate() if t.name == "sandgate-forward"]:
        assert time.monotonic() < deadline, names
        time.sleep(0.01)


def test_both_directions_end_on_their_own(sandbox: Sandbox) -> None:
    content = os.urandom(_SIZE)
    with listener(digest_after_the_end) as port, sandbox.connect(port) as connection:
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as replies:
            assert replies.read() == hashlib.sha256(content).digest()


def test_sixteen_mebibytes_come_back(sandbox: Sandbox) -> None:
    content = os.urandom(_SIZE)
    with listener(echo) as port, sandbox.connect(port) as connection:

        def send() -> None:
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        received = bytearray()
        while data := connection.recv(1 << 16):
            received += data
        sender.join()
        assert received == content


def test_http_client_uses_it(sandbox: Sandbox) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[::-1])

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        session = http.client.HTTPConnection("localhost", server.server_port)
        session.sock = sandbox.connect(server.server_port)
        for text in (b"abc", b"keeps the connection"):
            session.request("POST", "/", text)
            assert session.getresponse().read() == text[::-1]
        session.close()
        server.shutdown()


def test_a_closed_port_is_an_error(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(PortClosedError) as caught:
        sandbox.connect(port)
    assert caught.value.reason == "PORT_CLOSED"


def test_a_server_that_restarts_is_waited_for(sandbox: Sandbox, fake: FakeServer) -> None:
    fake.faults_of_forward += ["SERVER_SHUTTING_DOWN", "SERVER_SHUTTING_DOWN"]
    with listener(echo) as port, sandbox.connect(port) as connection:
        connection.sendall(b"x")
        assert connection.recv(1) == b"x"
    assert len(fake.forwarded) == 3


def test_it_waits_only_for_its_timeout(sandbox: Sandbox) -> None:
    with pytest.raises(DeadlineExceededError, match=r"port 1 .* within 0\.1 s"):
        sandbox.connect(1, host="slow", timeout=0.1)


def test_a_reset_is_an_error_and_no_end(sandbox: Sandbox) -> None:
    with listener(reset) as port, sandbox.connect(port) as connection:
        connection.sendall(b"x")
        with pytest.raises(ConnectionResetError) as caught:
            connection.recv(1)
        assert isinstance(caught.value.__cause__, ConnectionLostError)
        assert caught.value.__cause__.reason == "CONNECTION_RESET"
        with pytest.raises(ConnectionResetError), connection.dup() as other:
            other.makefile("rb").read()
        with pytest.raises(BrokenPipeError):
            connection.sendall(bytes(1 << 20))


def test_a_client_that_closes_ends_its_connections(fake: FakeServer) -> None:
    with listener(echo) as port, Client(fake.address) as client:
        connection = client.create().connect(port)
        connection.settimeout(10)
        client.close()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
        connection.close()


def test_what_was_sent_before_the_close_arrives(sandbox: Sandbox) -> None:
    arrived: list[bytes] = []
    done = threading.Event()

    def keep(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as file:
            arrived.append(file.read())
        done.set()

    content = os.urandom(1 << 20)
    with listener(keep) as port:
        connection = sandbox.connect(port)
        connection.sendall(content)
        connection.close()
        assert done.wait(10)
    assert arrived == [content]


def test_a_program_that_sends_to_a_closed_socket_is_reset(sandbox: Sandbox, fake: FakeServer) -> None:
    def flood(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while True:
                connection.sendall(bytes(1 << 16))

    with listener(flood) as port:
        sandbox.connect(port).close()
        assert fake.wait_for_forwards(0)


def test_a_program_that_does_not_close_is_reset_in_bounded_time(
    sandbox: Sandbox, fake: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandgate._connect._LINGER_SECONDS", 0.1)
    closing = threading.Event()

    def hold(connection: socket.socket) -> None:
        with connection:
            connection.recv(1)
            closing.wait(10)

    with listener(hold) as port:
        connection = sandbox.connect(port)
        connection.shutdown(socket.SHUT_WR)
        assert fake.wait_for_forwards(1), "a half-close keeps it"
        connection.close()
        assert fake.wait_for_forwards(0)
        closing.set()


def test_it_carries_the_incarnation_and_the_metadata(client: Client, fake: FakeServer) -> None:
    with listener(echo) as port:
        sandbox = client.create(sandbox_id="one").with_metadata({"x-request-id": "r1"})
        sandbox.connect(port).close()
    start, metadata = fake.forwarded[-1]
    assert (start.sandbox_id, start.expected_incarnation, start.host) == ("one", "inc-1", "localhost")
    assert metadata["x-request-id"] == "r1"
    fake.faults_of_forward.append("SANDBOX_REPLACED")
    with pytest.raises(SandboxReplacedError):
        sandbox.connect(port)


async def test_async_streams(async_client: AsyncClient) -> None:
    content = os.urandom(_SIZE)
    async with async_client:
        sandbox = await async_client.create()
        with listener(digest_after_the_end) as port:
            reader, writer = await sandbox.connect(port)
            writer.write(content)
            await writer.drain()
            writer.write_eof()
            assert await reader.read() == hashlib.sha256(content).digest()
            writer.close()
            await writer.wait_closed()


async def test_async_errors(async_client: AsyncClient) -> None:
    async with async_client:
        sandbox = await async_client.create()
        with listener(reset) as port:
            reader, writer = await sandbox.connect(port)
            writer.write(b"x")
            with pytest.raises(ConnectionResetError) as caught:
                await reader.read()
            assert isinstance(caught.value.__cause__, ConnectionLostError)
            writer.close()
        with pytest.raises(PortClosedError):
            await sandbox.connect(port)
        with pytest.raises(DeadlineExceededError):
            await sandbox.connect(1, host="slow", timeout=0.1)


async def test_a_cancelled_task_opens_no_connection(async_client: AsyncClient, fake: FakeServer) -> None:
    async with async_client:
        sandbox = await async_client.create()
        task = asyncio.create_task(sandbox.connect(1, host="slow"))
        await asyncio.to_thread(fake.wait_for_forwards, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
