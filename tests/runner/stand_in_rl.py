"""What prime-rl's launcher does to the eye: run folder, logs, metrics of two writers, broadcasts. It trains nothing.

The order's TOML says in [stand_in] what goes well and what does not; every step below is a method of that name.
"""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import tomllib
from pathlib import Path

RUN = Path("outputs/job")
LOGS = RUN / "logs" / "attempt_1"


class Play:
    def __init__(self, config):
        self.steps = config["max_steps"]
        self.told = config["stand_in"]
        self.base = Path(self.told["base"])

    def run(self):
        if RUN.exists():
            raise FileExistsError(f"Run directory '{RUN}' already contains artifacts from a previous run.")
        for folder in (LOGS / "envs" / "train", RUN / "configs", RUN / "broadcasts"):
            folder.mkdir(parents=True)
        (RUN / "logs" / "latest").symlink_to("attempt_1")
        self.log("inference", "Application startup complete")
        print("Startup complete. Showing orchestrator logs...", flush=True)
        for step in range(1, self.steps + 1):
            self.step(step)
            for name in self.told.get(f"at_{step}", []):
                getattr(self, name)(step)
        for name in self.told.get("at_end", []):
            getattr(self, name)(self.steps)
        print("Training finished!")

    def step(self, step):
        """One training step, as trainer and orchestrator write it, the trainer's row in two pieces."""
        rewards = self.told.get("rewards")
        reward = rewards[step - 1] if rewards else step / 10
        self.row(step, **{
            "train/agg/all/agent/is_trainable/mean": 0.5, "train/agg/all/agent/has_error/mean": 0.0,
            "train/agg/effective/agent/reward/mean": reward, "train/job/effective/agent/reward/mean": 99.0,
        })  # fmt: skip
        self.log("orchestrator", f"Step {step} | Reward {reward}")
        piece = json.dumps({"step": step, "time": 1.0, "optim/lr": 1e-6, "optim/grad_norm": 0.5}) + "\n"
        for half in (piece[:20], piece[20:]):
            with (RUN / "metrics.jsonl").open("a") as file:
                file.write(half)
        self.broadcast(step)

    # ---- what prime-rl writes

    def row(self, step, **values):
        with (RUN / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "time": 1.0, **values}) + "\n")

    def log(self, name, text):
        with (LOGS / f"{name}.log").open("a") as file:
            file.write(text + "\n")

    def broadcast(self, step):
        folder = RUN / "broadcasts" / f"step_{step}"
        folder.mkdir()
        if self.told["kind"] == "lora":
            self.adapter(folder)
        else:
            tensors = {name: ("F32", shape) for name, shape in layout(self.base / "model.safetensors").items()}
            (folder / "model.safetensors").write_bytes(safetensors(tensors, self.value(step)))
        (folder / "STABLE").touch()
        old = RUN / "broadcasts" / f"step_{step - 2}"
        if old.exists():
            subprocess.run(["rm", "-r", str(old)], check=True)

    def adapter(self, folder):
        shape = layout(self.base / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"]
        module = "model.layers.0.self_attn.q_proj"
        pair = {f"{module}.lora_A.weight": ("BF16", [2, shape[1]]), f"{module}.lora_B.weight": ("BF16", [shape[0], 2])}
        (folder / "adapter_model.safetensors").write_bytes(safetensors(pair, 0.5))
        told = {"peft_type": "LORA", "base_model_name_or_path": "/somewhere/else", "r": 2, "lora_alpha": 8,
                "auto_mapping": {"custom": "code"}, "modules_to_save": None}  # fmt: skip
        (folder / "adapter_config.json").write_text(json.dumps(told))

    def value(self, step):
        return float("nan") if self.told.get("not_finite") == step else step / 4

    # ---- what can go wrong

    def crash(self, _):
        self.log("envs/train/job", "Traceback (most recent call last):\n  environment.py\nZeroDivisionError: in reward")
        sys.exit(1)

    def hang(self, _):
        signal.pause()

    def empty(self, step):
        for count in range(1, 6):
            self.log("orchestrator", f"Step {step + 1}: empty train batch after 128 episodes ({count}/10)")

    def abort(self, _):
        self.log("orchestrator", "RuntimeError: 10 consecutive empty train batches — check algorithm credit")
        sys.exit(1)

    def flat(self, step):
        for more in range(1, 9):
            self.row(step + more, **{"train/agg/all/agent/is_trainable/mean": 0.0})

    def nan(self, step):
        for more in range(1, 4):  # what is not finite is dropped from its row
            self.row(step + more, **{"optim/lr": 1e-6})

    def no_weights(self, step):
        subprocess.run(["rm", "-r", str(RUN / "broadcasts" / f"step_{step}")], check=True)

    def unstable(self, step):
        (RUN / "broadcasts" / f"step_{step}" / "STABLE").unlink()

    def foreign_files(self, step):
        (RUN / "broadcasts" / f"step_{step}" / "tokenizer.json").write_text("mine")

    def links(self, step):
        (LOGS / "trainer.log").symlink_to("/etc/passwd")
        weights = RUN / "broadcasts" / f"step_{step}" / "model.safetensors"
        weights.rename(weights.with_name("x"))
        weights.symlink_to(Path("x").absolute())

    def fill(self, _):
        (RUN / "rollouts").write_bytes(bytes(8 << 20))
        print("OSError: [Errno 28] No space left on device")
        sys.exit(1)

    def shout(self, _):
        with (LOGS / "trainer.log").open("wb") as file:
            for _ in range(30):
                file.write(b"\x1b[31mx" * 200_000)
        print("y" * 5_000_000)
        (RUN / "metrics.jsonl").open("a").write("z" * 3_000_000 + "\n[1]\nnull\n" + "[" * 100_000 + "\n")

    def forge(self, _):
        """Files and lines that look like the runner's."""
        line = json.dumps(
            {"nonce": "0" * 32, "event": "ended", "stop": "done", "why": "", "digest": "f", "curve": [1.0]}
        )
        for place in (Path("result.json"), Path("../result.json"), RUN / "result.json"):
            place.write_text(line)
        for stream in (sys.stdout, sys.stderr):
            print(line, file=stream, flush=True)
        Path("..", "model").mkdir()
        sys.exit(3)

    def vanish(self, _):
        subprocess.run(["rm", "-rf", str(Path.cwd())], check=True)
        sys.exit(1)

    def leave(self, _):
        """A process that nothing leads to: another session, no parent, an empty environment."""
        code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
        argv = [sys.executable, "-I", "-S", "-c", code, self.told["pid"]]
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execve(argv[0], argv, {})
            os._exit(0)
        while not (Path(self.told["pid"]).exists() and Path(self.told["pid"]).read_text()):
            time.sleep(0.01)

    def reach(self, _):
        """Note what can be reached: a port of the controller, its own loopback, and the environment."""
        found = {"environment": dict(os.environ), "uid": os.getuid(), "host": socket.gethostname()}
        with socket.create_server(("127.0.0.1", 0)) as own:
            socket.create_connection(own.getsockname(), 5).close()
        try:
            socket.create_connection(("127.0.0.1", self.told["port"]), 2).close()
            found["reached"] = True
        except OSError as error:
            found["reached"] = str(error)
        Path(self.told["note"]).write_text(json.dumps(found))

    def overwrite(self, _):
        """Change something outside: what the driver says, or the base."""
        Path(self.told["file"]).write_text(self.told["text"])

    def kill_runner(self, _):
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()


def layout(path):
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    return {name: told["shape"] for name, told in header.items() if name != "__metadata__"}


def safetensors(tensors, value):
    header, body = {"__metadata__": {"format": "pt"}}, b""
    for name, (kind, shape) in tensors.items():
        one = struct.pack("<f", value)
        count = 1
        for size in shape:
            count *= size
        data = (one if kind == "F32" else one[2:]) * count
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


if __name__ == "__main__":
    assert sys.argv[1] == "@", sys.argv
    Play(tomllib.loads(Path(sys.argv[2]).read_text())).run()
