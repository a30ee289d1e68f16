"""A process is known by its start, not only by its number."""

import os
import subprocess
import sys

from nested_rl import process


def test_this_process_lives_and_a_dead_one_does_not():
    assert process.alive(process.identity())
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    told = process.identity(child.pid)
    assert process.alive(told)
    child.communicate(b"\n")
    assert not process.alive(told)


def test_another_process_under_the_same_number_is_not_the_one_that_was_told():
    namespace, pid, started = process.identity().split("-")
    assert int(pid) == os.getpid()
    assert not process.alive(f"{namespace}-{pid}-{int(started) + 1}")


def test_what_cannot_be_known_counts_as_alive():
    namespace, pid, started = process.identity().split("-")
    assert process.alive(f"{int(namespace) + 1}-{pid}-{started}")
    assert process.alive("nonsense")
