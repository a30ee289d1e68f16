"""Fixtures that several files use."""

import pytest
from nano_play import TOKENIZER, agent

from nested_rl.nano.folder import save_model
from nested_rl.renderers.nano import CHAT_TEMPLATE


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("agent")
    save_model(path, agent(), TOKENIZER, "float32", chat_template=CHAT_TEMPLATE)
    return path
