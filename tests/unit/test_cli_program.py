"""The command line as its own process."""

import subprocess
import sys


def program(*argv, **options):
    return subprocess.run(
        [sys.executable, "-m", "nested_rl", *argv], check=False, text=True, capture_output=True, **options
    )


def test_the_command_line_loads_nothing_heavy():
    code = (
        "import sys, nested_rl.cli; print([m for m in ('numpy', 'matplotlib', 'httpx', 'jinja2') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    assert found.stdout.strip() == "[]"


def test_it_runs_as_a_module_too():
    found = program("tasks", "show", "no_such_family")
    assert found.returncode == 2
    assert found.stderr.startswith("nested-rl: unknown family")


def test_a_reader_who_goes_away_gets_no_traceback():
    process = subprocess.Popen(
        [sys.executable, "-m", "nested_rl", "tasks"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    assert process.wait(60) in (0, 1)
