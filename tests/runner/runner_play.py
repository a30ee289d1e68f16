"""A machine with the stand-in programs, a small base, and orders for them."""

import json
import sys
from pathlib import Path

import tomli_w
from stand_in_rl import safetensors

from nested_rl.inner.prime_rl.launch import Terms, Watch
from nested_rl.inner.prime_rl.order import Order, Package

HERE = Path(__file__).parent
CARD = "0, NVIDIA RTX A5000, 24564, {used}, {ecc}, 570.00"
SHAPES = {
    "model.embed_tokens.weight": [8, 4],
    "model.layers.0.self_attn.q_proj.weight": [6, 4],
    "model.norm.weight": [4],
}
TOML = {
    "max_steps": 3,
    "orchestrator": {"train": {"source": [{"env": {"taskset": {"id": "job"}, "agent": {"max_turns": 1}}}]}},
}
QUICK = Watch(poll_s=0.05, beat_s=0.0, patience_s=20, spare_bytes=0, silence_s=60, stop_s=20)


def make_programs(folder):
    """`rl`, its Python and a driver with one GPU, in a folder for the PATH."""
    folder.mkdir()
    for name, script in (("rl", "stand_in_rl.py"), ("python", "stand_in_python.py")):
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {HERE / script} "$@"\n')
    (folder / "python3").write_text(
        f'#!/bin/sh\nexec {sys.executable} -S "$@"\n'
    )  # and not one that takes long to start
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\nexec cat {folder}/gpus\n")
    for name in ("rl", "python", "python3", "nvidia-smi"):
        (folder / name).chmod(0o755)
    (folder / "gpus").write_text(card() + "\n")
    return folder


def card(used=3, ecc=0):
    """What nvidia-smi says."""
    return CARD.format(used=used, ecc=ecc)


def make_base(folder, tensors=None, *, tied=True):
    """A base with the shapes above."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
    (folder / "tokenizer.json").write_text("the base's")
    (folder / "chat_template.jinja").write_text("the base's")
    (folder / "secret.txt").write_text("not part of a model")
    tensors = tensors or {name: ("BF16", shape) for name, shape in SHAPES.items()}
    (folder / "model.safetensors").write_bytes(safetensors(tensors, 1.0))
    return folder


def make_order(base, *, kind="full", steps=3, limits=None, **stand_in):
    """An order whose TOML tells the stand-in what to do."""
    config = {**TOML, "max_steps": steps, "stand_in": {"kind": kind, "base": str(base), **stand_in}}
    env = Package(taskset="job", dialect="plain", files={"job/__init__.py": "", "pyproject.toml": ""})
    how = {"deadline_s": 60.0, "start_s": 60.0, "stall_s": 60.0, **(limits or {})}
    return Order(
        config=tomli_w.dumps(config), env=env, base="tiny", base_path=str(base), kind=kind, steps=steps,
        digest="d" * 64, gpus="0,0", **how,
    )  # fmt: skip


def terms(**watch):
    """Quick, as whoever runs the tests, on the network as it is."""
    from attrs import evolve

    return Terms(user="", isolate=False, gate=False, watch=evolve(QUICK, **watch))
