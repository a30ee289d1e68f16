"""Fixtures that several files use."""

import pytest
from nano_play import TOKENIZER, agent

from nested_rl import cli
from nested_rl.nano.folder import save_model
from nested_rl.renderers.nano import CHAT_TEMPLATE


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
