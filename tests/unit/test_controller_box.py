"""The files of docs/guides/controller-box: units that systemd accepts, commands that exist, no key."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from nested_rl import cli

ROOT = Path(__file__).parents[2]
BOX = ROOT / "docs" / "guides" / "controller-box"
UNITS = ("nested-rl@.service", "nested-rl-reap.service", "nested-rl-reap.timer")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_accepts_the_units(tmp_path):
    for name in UNITS:
        text = (BOX / name).read_text(encoding="utf-8")
        # An instance, and a program that is there; all else as it stands.
        placed = tmp_path / name.replace("@.", "@pilot-7.")
        placed.write_text(text.replace("/srv/nested-rl/venv/bin/nested-rl", "/bin/true"), encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", *sorted(map(str, tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_the_units_run_exists(capsys):
    ran = [
        command.split()
        for name in UNITS
        for command in re.findall(
            r"^ExecStart=/srv/nested-rl/venv/bin/nested-rl (.+)$", (BOX / name).read_text(), re.MULTILINE
        )
    ]
    assert [words[0] for words in ran] == ["run", "machines"]
    for words in ran:
        names = [word for word in words if re.fullmatch(r"[a-z]+", word)]
        assert cli.main([*names, "--help"]) == 0
        said = capsys.readouterr().out
        assert all(word in said for word in words if word.startswith("--"))


def test_exit_codes_are_those_of_the_errors():
    from nested_rl.errors import BudgetExceeded, SettingsError

    unit = (BOX / UNITS[0]).read_text(encoding="utf-8")
    assert f"RestartPreventExitStatus={SettingsError.exit_code} {BudgetExceeded.exit_code}\n" in unit


def test_the_example_of_keys_has_none_and_systemd_can_read_it():
    lines = (BOX / "keys.env.example").read_text(encoding="utf-8").splitlines()
    assert all(re.fullmatch(r"#.*|[A-Z_]+=", line) for line in lines)
