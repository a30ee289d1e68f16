"""Fixtures that several files use."""

import pytest
from nano_play import TOKENIZER, agent
from tinker_double import Sdk

from nested_rl import cli
from nested_rl.nano.folder import save_model
from nested_rl.renderers.nano import CHAT_TEMPLATE
from nested_rl.trainers import tinker_service


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("agent")
    save_model(path, agent(), TOKENIZER, "float32", chat_template=CHAT_TEMPLATE)
    return path


@pytest.fixture
def told(capsys):
    """Run a command: (exit code, stdout, stderr)."""

    def run(*argv):
        code = cli.main([str(word) for word in argv])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def sdk(monkeypatch):
    """The double that stands for the Tinker SDK, and an environment with the hosted service's key alone."""
    made = Sdk()
    monkeypatch.setattr(tinker_service, "sdk", lambda: made)
    monkeypatch.setenv("TINKER_API_KEY", "tml-secret")
    for name in ("TINKER_CREDENTIAL_CMD", "TINKER_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return made
