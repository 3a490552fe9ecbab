"""A proxy whose connections can be cut, refused or left without an answer."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self


class Cutter:
    """Forwards from a port of this machine to a server's address."""

    def __init__(self, address: str) -> None:
        self._target = address
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.refusing = False
        """New connections end at once."""
        self.silent = threading.Event()
        """Connections stay, and nothing comes through."""
        self.delay = 0.0
        """Seconds until anything comes through a new connection."""
        self.accepted = 0
        self._lock = threading.Lock()
        self._live: list[socket.socket] = []
        self._left: int | None = None
        self.cuts = 0

    def cut(self) -> None:
        """End every connection."""
        with self._lock:
            live, self._live = self._live, []
            self.cuts += 1
        for each in live:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def cut_after(self, size: int) -> None:
        """End every connection once so many more bytes came through."""
        self._left = size

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        # Closing alone does not wake a thread that accepts.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.silent.clear()
        self.cut()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing:
                near.close()
                continue
            self.accepted += 1
            far = self._dial()
            with self._lock:
                self._live += [near, far]
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    def _dial(self) -> socket.socket:
        if self._target.startswith("unix://"):
            far = socket.socket(socket.AF_UNIX)
            far.connect(self._target.removeprefix("unix://"))
            return far
        host, _, port = self._target.rpartition(":")
        return socket.create_connection((host, int(port)))

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        # A connection that went silent stays so, as behind a lost route.
        muted = False
        threading.Event().wait(self.delay)
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                muted = muted or self.silent.is_set()
                if not muted:
                    target.sendall(data)
                self._count(len(data))
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _count(self, size: int) -> None:
        with self._lock:
            if self._left is None:
                return
            self._left -= size
            if self._left > 0:
                return
            self._left = None
        self.cut()
