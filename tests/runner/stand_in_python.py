"""The Python beside the stand-in: tells versions, and plays the gate as scratch/../gate-request.json and job.toml say."""

import json
import sys
import tomllib
from pathlib import Path

if "-c" in sys.argv:
    print(json.dumps({"prime-rl": "0.8.0", "verifiers": "0.3.1.dev62"}))
else:
    assert sys.argv[1:] == ["gate.py"], sys.argv
    request = json.loads(Path("gate-request.json").read_text())
    assert request["taskset"]["id"] == "job"
    rewards = tomllib.loads(Path("job.toml").read_text())["stand_in"].get("gate")
    if rewards is None:
        sys.exit("no module named vllm")
    Path("scratch/gate.json").write_text(json.dumps({"rewards": rewards}))
