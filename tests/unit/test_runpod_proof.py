"""Host keys are believed from who knows the pod's nonce, and from nobody else."""

import pytest

from nested_rl.compute.runpod_proof import believed, nonce, proof
from nested_rl.errors import MachineLost

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMPiNvI4nlv/j7Rsr0ntqRvxbWGu9J+JNHgM9BWI+0eR"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
MINE = nonce(b"secret", "nrl-run-0-abc")


def greeting(key, proof, software="OpenSSH_9.2p1 Debian-2+deb12u10"):
    return f"SSH-2.0-{software} nested-rl={key.split()[1]}:{proof}\r\n".encode()


def test_the_pod_itself_is_believed():
    assert believed(greeting(KEY, proof(MINE, KEY)), MINE, where="h:22") == KEY
    assert believed(greeting(KEY, proof(MINE, KEY), "OpenSSH_8.9"), MINE, where="h:22") == KEY


@pytest.mark.parametrize(
    "said",
    [
        greeting(OTHER, proof(MINE, KEY)),  # somebody in between puts a key of their own there
        greeting(OTHER, proof("", OTHER)),  # without the nonce
        greeting(KEY, proof(nonce(b"secret", "nrl-run-1-abc"), KEY)),  # another pod of ours at this address
        greeting(KEY, proof(nonce(b"other", "nrl-run-0-abc"), KEY)),  # another's
        greeting(KEY, proof(MINE, KEY)[:-1]),
        b"SSH-2.0-OpenSSH_9.2p1\r\n",
        b"HTTP/1.1 400 Bad Request\r\n",
        b"",
        b"\xff\xfe",
    ],
)
def test_nobody_else_is(said):
    with pytest.raises(MachineLost, match="h:22"):
        believed(said, MINE, where="h:22")


def test_a_nonce_is_the_same_for_the_next_controller_and_tells_nothing_of_the_others():
    assert nonce(b"secret", "a") == nonce(b"secret", "a") != nonce(b"secret", "b")
    assert len(MINE) == 64
