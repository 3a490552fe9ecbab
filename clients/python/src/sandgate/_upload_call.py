"""The call that sends the frames of an upload.

Both clients send on gRPC's sync stack. Its async one reports an internal error
in place of the server's status when the server answers before all is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandgate._calls import UploadStep
    from sandgate._gen.sandbox.v1 import sandbox_files_pb2 as pb


class UploadCall:
    """One Upload call in flight."""

    def __init__(self, stub: Any, step: UploadStep, metadata: tuple[tuple[str, str], ...]) -> None:
        self._step = step
        self._failed: Exception | None = None
        self._ready = threading.Event()
        self._call: Any = stub.Upload.future(self._frames(), metadata=metadata)
        self._ready.set()

    def _frames(self) -> Iterator[pb.UploadRequest]:
        # gRPC runs this in a thread of its own, and ends the stream politely when
        # it raises. The server refuses a file without its trailer then; cancelling
        # the call reports the source's own error.
        try:
            yield from self._step.frames()
        except Exception as e:  # noqa: BLE001 - raised again by the caller
            self._failed = e
            self._ready.wait()
            self._call.cancel()

    def wait(self) -> pb.UploadResponse:
        """Return the response.

        Raises:
            Exception: What the source raised, or what gRPC did.
        """
        try:
            response: pb.UploadResponse = self._call.result()
        except (grpc.RpcError, grpc.FutureCancelledError):
            if self._failed is not None:
                raise self._failed from None
            raise
        finally:
            self._call.cancel()
        return response

    async def wait_async(self) -> pb.UploadResponse:
        """Async twin of `wait`."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def notify(_: object) -> None:
            # The loop may be gone by then.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(done.set)

        self._call.add_done_callback(notify)
        try:
            await done.wait()
        except BaseException:
            self._call.cancel()
            raise
        return self.wait()
