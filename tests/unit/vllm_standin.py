"""A program in vLLM's place: the same options, the same paths, and every way to fail. `vllm_standin.py LOG FAULT` and vLLM's options.

It repeats a prompt that is asked greedily; of sampled ones it repeats about half. LOG gets a line of JSON for its start and for every
completion.
"""

import hashlib
import itertools
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LOG, FAULT, *OPTIONS = sys.argv[1:]
NEVER = threading.Event()


def option(name):
    """The words after an option, up to the next one."""
    words = OPTIONS[OPTIONS.index(name) + 1 :] if name in OPTIONS else []
    return words[: next((i for i, word in enumerate(words) if word.startswith("--")), len(words))]


NAMES = [*option("--served-model-name"), *(module.partition("=")[0] for module in option("--lora-modules"))]
MODEL = option("--model")[0]
KEY = os.environ["VLLM_API_KEY"]
numbers = itertools.count(1)
lock = threading.Lock()


def note(**fields):
    with Path(LOG).open("a") as file:
        file.write(json.dumps(fields) + "\n")


def choice(body, i):
    prompt, seed = body["messages"][0]["content"], body.get("seed")
    lucky = seed is None or hashlib.sha256(f"{seed}/{i}".encode()).digest()[0] % 2
    cut = FAULT == "cut" and prompt.endswith("3")
    said = {"index": i, "message": {"role": "assistant", "content": prompt if lucky else "no"}}
    if body.get("logprobs"):
        effect = {"base": 0.0, "adapter": 0.2, "control": 2.0}[body["model"]]
        effect *= {"deaf": 0.0, "weak": float(body["model"] == "control")}.get(FAULT, 1.0)
        rows = [{"token": token, "logprob": -1.0 - effect * i} for i, token in enumerate("ab")]
        said["logprobs"] = {"content": [{"token": "a", "top_logprobs": rows}]}
    return {**said, "finish_reason": "length" if cut else "stop"}


def completion(body):
    """Status and answer."""
    with lock:
        number = next(numbers)
        note(body=body)
    if body["model"] not in NAMES:
        return 404, {"error": {"message": f"The model `{body['model']}` does not exist."}}
    first = number == 1  # the one that is asked before the score begins
    if FAULT == "error" and not first:
        return 500, {"error": {"message": "engine trouble"}}
    if FAULT == "flaky" and number % 3 == 0:
        return 503, {"error": {"message": "busy"}}
    if FAULT == "overflow" and body["model"] == "adapter" and body.get("logprobs"):
        return 500, {"error": {"message": "Out of range float values are not JSON compliant: nan"}}
    if FAULT == "stall" and not first:
        NEVER.wait()
    if FAULT == "die" and number == 4:
        print("out of memory", flush=True)
        os._exit(3)
    NEVER.wait(0.001 * (number * 7 % 5))  # answers do not come in the order of the questions
    choices = [choice(body, i) for i in range(body.get("n", 1))]
    if FAULT == "half" and not first:
        choices = choices[1:]
    return 200, {"choices": choices[::-1], "usage": {"completion_tokens": 3 * len(choices)}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/health":
            self.reply(503 if FAULT == "ill" else 200, {})
        elif self.known():
            self.reply(200, {"data": [{"id": name + ("-2" if FAULT == "names" else "")} for name in NAMES]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.known():
            self.reply(*completion(body))

    def known(self):
        if FAULT == "open" or self.headers.get("authorization") == f"Bearer {KEY}":
            return True
        self.reply(401, {"error": "Unauthorized"})
        return False

    def reply(self, status, said):
        data = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def main():
    files = {path.name: path.read_bytes()[:40].decode("latin1") for path in Path(MODEL).iterdir() if path.is_file()}
    note(pid=os.getpid(), argv=OPTIONS, environment=dict(os.environ), folder=str(Path.cwd()), files=files)
    if FAULT == "crash":
        sys.exit("no such device")
    if FAULT == "late":
        print("loading weights", flush=True)
        NEVER.wait()
    if FAULT == "foreign" and os.fork():  # the parent waits; what listens is nobody's child
        NEVER.wait()
    if FAULT == "foreign":
        os.setsid()
        if os.fork():
            os._exit(0)
    with ThreadingHTTPServer(("127.0.0.1", int(option("--port")[0])), Handler) as server:
        server.daemon_threads = True
        server.request_queue_size = 128
        server.serve_forever(poll_interval=0.01)


if __name__ == "__main__":
    main()
