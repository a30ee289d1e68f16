"""A small OpenAI-compatible chat server on loopback, with and without streaming. Standard library only."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Messages = list[dict[str, Any]]


@dataclass
class Reply:
    """What the server says to one request."""

    text: str = ""
    finish: str = "stop"
    status: int = 200


@dataclass
class ChatServer:
    """Answers with `say(messages)`; remembers what it was asked, and how many requests it held at once."""

    say: Callable[[Messages], Reply | str]
    seen: list[dict[str, Any]] = field(default_factory=list)
    at_once: int = 0

    def __enter__(self) -> Self:
        server = self
        lock = threading.Lock()
        held = 0

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                self._send(200, {"object": "list", "data": [{"id": "fake", "object": "model"}]})

            def do_POST(self) -> None:
                nonlocal held
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with lock:
                    held += 1
                    server.at_once = max(server.at_once, held)
                    server.seen.append(body)
                said = server.say(body["messages"])
                with lock:
                    held -= 1
                reply = Reply(said) if isinstance(said, str) else said
                if reply.status != 200:
                    self._send(reply.status, {"error": {"message": "out of order", "type": "server_error"}})
                elif body.get("stream"):
                    self._stream(reply)
                else:
                    message = {"role": "assistant", "content": reply.text}
                    choice = {"index": 0, "finish_reason": reply.finish, "message": message}
                    self._send(200, {**_head("chat.completion"), "choices": [choice], "usage": _USAGE})

            def _stream(self, reply: Reply) -> None:
                head = _head("chat.completion.chunk")
                delta = {"role": "assistant", "content": reply.text}
                events = [
                    {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
                    {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reply.finish}]},
                    {**head, "choices": [], "usage": _USAGE},
                ]
                text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
                self._write(200, "text/event-stream", text.encode())

            def _send(self, status: int, value: object) -> None:
                self._write(status, "application/json", json.dumps(value).encode())

            def _write(self, status: int, kind: str, data: bytes) -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._http = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


_USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


def _head(kind: str) -> dict[str, Any]:
    return {"id": "reply", "object": kind, "created": 1, "model": "fake"}
