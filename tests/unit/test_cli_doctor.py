"""`nested-rl doctor`: what it notices."""

import json

from nested_rl.cli import doctor


def test_doctor_notices_weights_that_were_changed(tmp_path, monkeypatch):
    import shutil

    from nested_rl.nano import folder

    shutil.copytree(folder.weights_path("nano-s").parent, tmp_path / "weights")
    monkeypatch.setattr(folder, "_WEIGHTS", tmp_path / "weights")
    weights = tmp_path / "weights" / "nano-s" / "model.safetensors"
    verdicts = {check.name: check for check in doctor._models()}
    assert verdicts["model nano-s"].verdict == verdicts["model nano-m"].verdict == "ok"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    verdicts = {check.name: check for check in doctor._models()}
    assert verdicts["model nano-s"].found == "not the weights that were recorded"
    assert verdicts["model nano-m"].verdict == "ok"
    weights.write_bytes(b"")
    assert next(iter(doctor._models())).verdict == "bad"


def test_doctor_finds_what_is_wrong(told, monkeypatch, tmp_path):
    code, out, _ = told("doctor", "--out", tmp_path, "--json")
    checks = {check["name"]: check for check in json.loads(out)}
    assert checks["python"]["verdict"] == "ok"
    assert checks["sandbox"]["found"] in ("namespaces", "seccomp", "limits")
    assert code == int(any(check["verdict"] == "bad" for check in checks.values()))
    monkeypatch.setattr(doctor, "ROOM_GIB", 1e9)
    monkeypatch.setattr(doctor, "CORE", ("attrs", "never-heard-of"))
    code, out, _ = told("doctor", "--out", tmp_path)
    assert code == 1
    assert "BAD   packages: missing: never-heard-of" in out
    assert "GiB free" in out


def test_doctor_says_when_runs_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    verdicts = {check.name: check for check in doctor._disk(tmp_path / "deep" / "runs")}
    assert verdicts["runs"].verdict == "bad"
    assert str(tmp_path) in verdicts["runs"].found


def test_doctor_tells_stacks_that_are_missing_and_versions_that_were_not_tried(monkeypatch):
    there = {"tinker": "0.40.1", "asyncssh": "2.21.0"}
    monkeypatch.setattr(doctor, "_version", there.get)
    checks = {check.name: check for check in doctor._extras()}
    assert {"extra ssh", "extra tinker", "extra prime-rl", "extra pandas"} <= set(checks)
    assert (checks["extra ssh"].verdict, checks["extra ssh"].found) == ("ok", "asyncssh 2.21.0")
    assert (checks["extra tinker"].verdict, checks["extra tinker"].found) == ("note", "tinker 0.40.1")
    assert "known to work: tinker<0.39,>=0.38; pip install 'nested-rl[tinker]'" in checks["extra tinker"].hint
    assert checks["extra pandas"].found == "not installed: pandas"


def test_doctor_tells_which_keys_are_set_and_never_what_they_are(told, monkeypatch, tmp_path):
    monkeypatch.setenv("RUNPOD_API_KEY", "rpa_canary")
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    _, out, _ = told("doctor", "--out", tmp_path)
    assert "ok    key RUNPOD_API_KEY: set (RunpodCompute)" in out
    assert "note  key TINKER_API_KEY: not set (TinkerTrainer)" in out
    assert "canary" not in out


def test_doctor_counts_gpus(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor._gpus().found == "none"
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA A40, 46068 MiB'\n")
    program.chmod(0o755)
    assert doctor._gpus().found == "NVIDIA A40, 46068 MiB"
    program.write_text("#!/bin/sh\nexit 9\n")
    assert doctor._gpus().verdict == "note"
