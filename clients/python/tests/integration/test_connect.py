"""Connections to programs that listen in a real sandbox."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import os
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from sandgate import (
    AsyncClient,
    Config,
    ConnectionLostError,
    InvalidRequestError,
    PortClosedError,
    Sandbox,
)

_SIZE = 16 << 20

# Listens on three ports: the SHA-256 of what came until its end; a reset after the
# first byte; HTTP. The first line tells them.
_PROGRAM = """
import hashlib, http.server, socket, socketserver, struct, threading

class Digest(socketserver.BaseRequestHandler):
    def handle(self):
        digest = hashlib.sha256()
        while data := self.request.recv(1 << 16):
            digest.update(data)
        self.request.sendall(digest.digest())

class Reset(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.recv(1)
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

class Length(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = str(len(self.rfile.read(int(self.headers["content-length"])))).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

class Quick(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def shutdown_request(self, request):
        request.close()  # Not a shutdown first, which would end the connection politely.

servers = [Quick(("127.0.0.1", 0), Digest), Quick(("127.0.0.1", 0), Reset),
           http.server.ThreadingHTTPServer(("127.0.0.1", 0), Length)]
for server in servers:
    threading.Thread(target=server.serve_forever).start()
print(*(server.server_address[1] for server in servers), flush=True)
"""


@pytest.fixture(scope="module")
def ports(box: Sandbox) -> Iterator[list[int]]:
    box.write("/tmp/listen.py", _PROGRAM)
    with closing(box.execute_stream(["python3", "/tmp/listen.py"])) as events:
        next(events)
        yield [int(port) for port in next(events).text.split()]  # type: ignore[union-attr]


def test_a_socket_with_half_close(box: Sandbox, ports: list[int]) -> None:
    content = os.urandom(_SIZE)
    with box.connect(ports[0]) as connection:
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as reply:
            assert reply.read() == hashlib.sha256(content).digest()


def test_http(box: Sandbox, ports: list[int]) -> None:
    session = http.client.HTTPConnection("localhost")
    session.sock = box.connect(ports[2])
    with closing(session):
        for size in (3, 1 << 20):
            session.request("POST", "/", bytes(size))
            assert session.getresponse().read() == str(size).encode()


def test_errors(box: Sandbox, ports: list[int]) -> None:
    with box.connect(ports[1]) as connection:
        connection.sendall(b"x")
        with pytest.raises(ConnectionResetError) as caught:
            connection.recv(1)
        assert isinstance(caught.value.__cause__, ConnectionLostError)
        assert caught.value.__cause__.reason == "CONNECTION_RESET"
    with pytest.raises(PortClosedError):
        box.connect(1)
    with pytest.raises(InvalidRequestError):
        box.connect(1 << 16)
    with pytest.raises(InvalidRequestError):
        box.connect(ports[0], host="192.0.2.1")


async def test_async_streams(real_config: Config, box: Sandbox, ports: list[int]) -> None:
    content = os.urandom(_SIZE)
    async with AsyncClient(config=real_config) as client:
        sandbox = client.sandbox(box.id)

        async def once() -> None:
            reader, writer = await sandbox.connect(ports[0])
            writer.write(content)
            writer.write_eof()
            assert await reader.read() == hashlib.sha256(content).digest()
            writer.close()
            await writer.wait_closed()

        await asyncio.gather(once(), once())
        reader, writer = await sandbox.connect(ports[1])
        writer.write(b"x")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
