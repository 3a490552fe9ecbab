"""A model without intelligence, behind OpenAI's API for chats."""

from __future__ import annotations

import http.server
import json
import threading
from typing import Any, Self


class OpenAIServer:
    """Calls a tool once, then repeats what the tool returned.

    Args:
        tool: The tool's name.
        arguments: Its arguments.
    """

    def __init__(self, tool: str, **arguments: Any) -> None:
        call = {"name": tool, "arguments": json.dumps(arguments)}
        tool_call = {"index": 0, "id": "call-1", "type": "function", "function": call}
        self.tools: set[str] = set()
        """Names of the tools that were offered."""
        own = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["content-length"])))
                own.tools |= {tool["function"]["name"] for tool in request.get("tools", ())}
                results = [m["content"] for m in request["messages"] if m["role"] == "tool"]
                reply: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [tool_call]}
                if results:
                    reply = {"role": "assistant", "content": f"The tool returned: {results[-1]}"}
                self._stream(reply, "stop" if results else "tool_calls")

            def _stream(self, delta: dict[str, Any], reason: str) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                chunk = {"id": "chat-1", "object": "chat.completion.chunk", "created": 1, "model": "none"}
                for choice in (
                    {"index": 0, "delta": delta, "finish_reason": None},
                    {"index": 0, "delta": {}, "finish_reason": reason},
                ):
                    self.wfile.write(f"data: {json.dumps(chunk | {'choices': [choice]})}\n\n".encode())
                self.wfile.write(b"data: [DONE]\n\n")

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
