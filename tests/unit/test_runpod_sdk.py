"""What can be said of the official package's provider without the package; the rest is in tests/fleet."""

import importlib.util
import json

import pytest
from attrs import evolve

from nested_rl.compute import runpod_sdk
from nested_rl.compute.provider import Candidate, Order
from nested_rl.errors import MissingExtra

ORDER = Order(name="nrl-run-0-abc", candidate=Candidate(gpu="NVIDIA A40", gpus=2), image="image:tag", env={"A": "1"})


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="runpod-sdk"):
        runpod_sdk.RunpodSDK(key="k")


@pytest.mark.parametrize("text", ['"', "\\", "a\nb", "\t", "ünï — 🙂", "", "plain"])
def test_texts_are_quoted_for_a_query(text):
    quoted = runpod_sdk._quoted(text)
    assert json.loads(f'"{quoted}"') == text
    assert "\n" not in quoted


def test_an_order_names_every_cuda_version_from_the_least_on():
    asked = runpod_sdk._asked(ORDER)
    assert asked["allowed_cuda_versions"][:3] == ["12.8", "12.9", "13.0"]
    assert runpod_sdk._asked(evolve(ORDER, min_cuda="13.1"))["allowed_cuda_versions"][0] == "13.1"
    assert (asked["gpu_count"], asked["cloud_type"], asked["docker_args"]) == (2, "SECURE", None)


@pytest.mark.parametrize(
    ("desired", "runtime", "status"),
    [
        ("RUNNING", None, "starting"),
        ("RUNNING", {"ports": None}, "running"),
        ("CREATED", None, "starting"),
        ("EXITED", None, "exited"),
        ("TERMINATED", None, "terminated"),
        ("DEAD", None, "error"),
        ("SOMETHING NEW", {"ports": []}, "running"),
    ],
)
def test_a_pod_runs_once_it_has_a_runtime(desired, runtime, status):
    pod = runpod_sdk._pod({"id": "p", "name": None, "desiredStatus": desired, "runtime": runtime, "machine": None})
    assert (pod.status, pod.ssh, pod.usd_per_hour, pod.uptime_s) == (status, None, 0.0, None)


def test_its_address_is_the_public_port_of_ssh():
    ports = [
        {"ip": "10.0.0.1", "isIpPublic": False, "privatePort": 22, "publicPort": 22, "type": "tcp"},
        {"ip": "1.2.3.4", "isIpPublic": True, "privatePort": 8888, "publicPort": 1, "type": "http"},
        {"ip": "1.2.3.4", "isIpPublic": True, "privatePort": 22, "publicPort": 40022, "type": "tcp"},
    ]
    pod = runpod_sdk._pod({"id": "p", "desiredStatus": "RUNNING", "runtime": {"ports": ports}, "costPerHr": 0.32})
    assert (pod.ssh, pod.usd_per_hour) == (("1.2.3.4", 40022), 0.32)
