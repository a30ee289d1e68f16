"""A real Tinker-API server for the tests: one process for the whole session, with the nano agent as its base model."""

from __future__ import annotations

import gc
import json
import os
import socket
import subprocess
import time
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from nested_rl.nano.folder import load_model, save_model, weights_path

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("NESTED_RL_TINKER_SERVER", ROOT / ".venvs" / "tinker-server" / "bin" / "python"))
BACKEND = {
    "max_lora_adapters": 16,  # its time grows with them
    "max_lora_rank": 8,
    "train_micro_batch_size": 8,
    "sample_max_num_sequences": 32,
}
UP_WITHIN_S = 180


def pytest_collection_modifyitems(items):
    """The SDK leaves connections to the garbage collector, which may come in the middle of any test."""
    for item in items:
        if "tests/tinker" in item.path.as_posix():
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(scope="session")
def agent(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The nano agent's folder, in float32: the server computes in the type of the folder's weights."""
    shipped, folder = weights_path("nano-agent"), tmp_path_factory.mktemp("models") / "nano-agent"
    model, tokenizer = load_model(shipped)
    template = (shipped / "chat_template.jinja").read_text("utf-8")
    save_model(folder, model, tokenizer, "float32", chat_template=template)
    return str(folder)


@pytest.fixture(scope="session")
def server(agent: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that trains `agent`."""
    pytest.importorskip("tinker", reason="needs the tinker package: make test-tinker")
    if not PYTHON.is_file():
        pytest.skip(f"needs a Tinker-API server in {PYTHON.parents[1]}: make test-tinker")
    folder, port = tmp_path_factory.mktemp("server"), _free_port()
    argv = [
        *(str(PYTHON), str(Path(__file__).with_name("serve.py")), "--port", str(port)),
        *("--base-model", agent, "--backend", "jax", "--backend-config", json.dumps(BACKEND)),
        *("--checkpoints-base", str(folder / "checkpoints"), "--database-url", f"sqlite:///{folder}/tinker.db"),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_until_up(f"http://127.0.0.1:{port}", process, folder / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, 15)  # the engine is a child of its own
        process.wait(30)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()  # the SDK leaves connections to the garbage collector, which pytest would count as an error


def _wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end_s = time.monotonic() + UP_WITHIN_S
    while time.monotonic() < end_s:
        try:
            with urllib.request.urlopen(f"{url}/api/v1/healthz", timeout=1):
                return
        except OSError:
            try:
                process.wait(0.3)
                break
            except subprocess.TimeoutExpired:
                continue
    raise RuntimeError(f"the Tinker server did not come up:\n{log.read_text('utf-8', 'replace')[-3000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
