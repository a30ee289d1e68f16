"""Machines as a run file describes them."""

import pytest

from nested_rl import cli, parts
from nested_rl.compute.provider import Candidate
from nested_rl.errors import SettingsError
from nested_rl.types import Need


def test_hosts_are_tables_or_addresses():
    host = {"address": "me@gpu2.lab:2222", "host_key": "ssh-ed25519 AAAA", "offer": {"gpus": 2, "gpu_memory_gib": 24}}
    compute = parts.build("compute", {"name": "ssh", "hosts": ["me@gpu1.lab", {**host, "usd_per_hour": 0.6}]})
    assert compute.max_machines == 2
    assert compute.offers()[1] == Need(gpus=2, gpu_memory_gib=24)
    assert compute.usd_per_hour == 0.6


def test_rented_kinds_and_terms_are_tables(tmp_path):
    told = {"gpus": ["NVIDIA A40", {"gpu": "NVIDIA X9", "gpus": 2, "gpu_memory_gib": 96}], "terms": {"ttl_s": 3600}}
    compute = parts.build("compute", {"name": "runpod", "folder": str(tmp_path), **told})
    assert compute.candidates[2] == Candidate(gpu="NVIDIA X9", gpus=2, gpu_memory_gib=96)
    assert compute.terms.ttl_s == 3600


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"name": "ssh", "hosts": [{"adress": "a"}]}, "unknown key .in Host. 'adress'; did you mean 'address'"),
        ({"name": "ssh", "hosts": [{"host_key": "a"}]}, r"ssh: hosts\[0\]: address: missing"),
        ({"name": "ssh", "hosts": [5]}, r"hosts\[0\]: expected text or a list or a table .Host., got 5"),
        ({"name": "ssh", "hosts": [{"address": "a", "offer": {"gpu": 1}}]}, "did you mean 'gpus'"),
        ({"name": "runpod", "gpus": [{"gpu": "x", "cloud": "blue"}]}, "cloud: expected one of"),
        ({"name": "runpod", "gpus": ["NVIDIA A40"], "terms": {"tl_s": 1}}, "did you mean 'ttl_s'"),
        ({"name": "runpod", "gpus": ["NVIDIA A40"], "max_machines": "two"}, "max_machines: expected a whole number"),
    ],
)
def test_what_is_wrong_is_one_sentence(table, words):
    with pytest.raises(SettingsError, match=words):
        parts.build("compute", table)


def test_a_run_file_with_a_wrong_host_ends_with_2(tmp_path, capsys):
    (tmp_path / "run.toml").write_text('[compute]\nname = "ssh"\nhosts = [{adress = "a"}]\n')
    assert cli.main(["run", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out")]) == 2
    assert "did you mean 'address'" in capsys.readouterr().err
