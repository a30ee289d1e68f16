"""The fake of the API behind a real HTTP server, whose pods run their own start command: a real watchdog and a real sshd each."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from fake_runpod import FakePod, FakeRunpod
from processes import free_port, told_of, tree


class Server:
    """`fake` holds the ledger. Pods are process groups of their own, ended when the fake says so and at `close`; or only on paper."""

    def __init__(self, folder: Path, *, real: bool = True) -> None:
        self.folder = folder
        self.fake = FakeRunpod(time.time, boot=self._boot if real else None)
        self.fake.end = self._end
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.lock = threading.RLock()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()

    def home(self, pod: FakePod) -> Path:
        return self.folder / pod.name

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()
        for pod in self.fake.pods.values():
            self._end(pod)

    def _boot(self, pod: FakePod) -> None:
        port = free_port()
        self.home(pod).mkdir(parents=True)
        env = {
            **pod.body["env"],
            "PATH": os.environ["PATH"],
            "HOME": str(self.home(pod)),
            "NRL_HOME": str(self.home(pod)),
            "NRL_API": self.url,
            "NRL_SSH_PORT": str(port),
            "NRL_LOOK_S": "1",
            "NRL_JOB_USER": "",  # this computer gets no user
            "RUNPOD_POD_ID": pod.id,
            "RUNPOD_API_KEY": f"pod-key-{pod.id}",
        }
        process = subprocess.Popen(
            shlex.split(pod.body["args"]),
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.processes[pod.id] = process
        threading.Thread(target=self._read, args=(pod, process), daemon=True).start()
        self.fake.run(pod, ssh=("127.0.0.1", port))

    def _read(self, pod: FakePod, process: subprocess.Popen[str]) -> None:
        for line in process.stdout:
            pod.log["container"].append(line.rstrip("\n"))
        process.stdout.close()

    def _end(self, pod: FakePod) -> None:
        """Everything that runs there, as a container's end would: also sessions of sshd, and what has left them."""
        process = self.processes.pop(pod.id, None)
        if process is None:
            return
        there = {*tree(process.pid), *told_of(self.home(pod))}
        while there:  # what was started meanwhile goes too
            for pid in there:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            process.wait()
            there = set(told_of(self.home(pod)))

    def _handler(self):
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do(self) -> None:
                url = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                with server.lock:
                    status, told, data = server.fake.handle(
                        self.command, url.path, dict(parse_qsl(url.query)), headers, body
                    )
                if status is None:  # no answer ever comes: the line breaks
                    self.close_connection = True
                    return
                self.send_response(status)
                for name, value in {**told, "content-length": str(len(data))}.items():
                    self.send_header(name, value)
                with contextlib.suppress(ConnectionError):  # who asked may be dead by now
                    self.end_headers()
                    self.wfile.write(data)

            do_GET = do_POST = do_DELETE = do  # noqa: N815  the library's names

            def log_message(self, *args) -> None:
                """Nothing on the terminal."""

        return Handler
