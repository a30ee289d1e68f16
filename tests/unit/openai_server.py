"""An OpenAI-compatible server for tests: real HTTP on this computer, with answers that the test writes."""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

STALL = "stall"
TRICKLE = "trickle"
DROP = "drop"


def answer(content="", calls=(), *, finish="stop", prompt_tokens=100, completion_tokens=20, **usage):
    """A whole answer. A call is (name, arguments as an object or as text), or a raw object."""
    raw = [call if isinstance(call, dict) else made_call(f"id{i}", *call) for i, call in enumerate(calls)]
    message = {"role": "assistant", "content": content or None, "tool_calls": raw}
    counted = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, **usage}
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": counted}


def made_call(id, name, arguments=None):  # noqa: A002
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}


def fault(status, message, headers=(), **more):
    """A refusal."""
    return status, {"error": {"message": message, **more}}, dict(headers)


class Server:
    """Gives its answers one after the other, the last one for ever. `seen` has the bodies, `keys` what came as a key."""

    def __init__(self, *answers, models=("small", "large")):
        self.answers, self.models = list(answers), list(models)
        self.seen, self.keys = [], []
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = False
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self):
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._over.set()  # whoever stalls lets go
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def _next(self, body, key):
        with self._lock:
            self.seen.append(body)
            self.keys.append(key)
            given = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return given(body) if callable(given) else given

    def _handler(server):  # noqa: N805, C901 - one class, six short methods
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self._send(200, {"data": [{"id": name} for name in server.models]}, {})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                given = server._next(body, self.headers.get("authorization"))
                if self.path != "/v1/chat/completions":
                    self._send(404, {"error": "no such path"}, {})
                elif given in (STALL, TRICKLE):
                    self._hang(given)
                elif given == DROP:
                    self.close_connection = True
                else:
                    self._send(*(given if isinstance(given, tuple) else (200, given, {})))

            def _send(self, status, body, headers):
                data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in {"content-length": str(len(data)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # a client need not read to the end
                    self.wfile.write(data)

            def _hang(self, how):
                """Half an answer, then nothing, or one byte now and then."""
                self.send_response(200)
                self.send_header("content-length", "100000")
                self.end_headers()
                self.close_connection = True
                try:
                    self.wfile.write(b'{"choices": ')
                    while not server._over.wait(0.02):
                        if how == TRICKLE:
                            self.wfile.write(b" ")
                except OSError:  # the client has gone, as it should
                    pass

            def log_message(self, *_):
                pass

        return Handler
