"""Secrets are found by value and by shape, wherever they stand; everything else stays exactly as it is."""

import html
import json
import logging
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nested_rl
from nested_rl import redact
from nested_rl.redact import MARK

CANARY = 'ca"na/ry+4711 <é>&'
"""A key with everything in it that some notation writes in another way."""


@pytest.fixture(autouse=True)
def canary(monkeypatch):
    monkeypatch.setattr(redact, "_told", set())
    monkeypatch.setenv("SOME_API_KEY", CANARY)


@pytest.mark.parametrize(
    "name",
    ["OPENAI_API_KEY", "HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "my_secret", "APIKEY", "GITHUB_PAT"],
)  # fmt: skip
def test_values_of_variables_that_are_named_like_keys_are_secrets(monkeypatch, name):
    monkeypatch.setenv(name, "value-4711-canary")
    assert redact.text("x value-4711-canary y") == f"x {MARK} y"
    assert redact.holds("value-4711-canary")


@pytest.mark.parametrize("name", ["PATH", "TOKENIZERS_PARALLELISM", "MONKEY", "KEYBOARD", "SSH_AUTH_SOCK", "LANG"])
def test_other_variables_are_not(monkeypatch, name):
    monkeypatch.setenv(name, "value-4711-canary")
    assert redact.text("x value-4711-canary y") == "x value-4711-canary y"


@pytest.mark.parametrize("value", ["", "1", "short-1", "training", "assistant"])
def test_short_values_and_words_would_strike_out_ordinary_text(monkeypatch, value):
    monkeypatch.setenv("OTHER_TOKEN", value)
    assert redact.text(f"a {value} b 1") == f"a {value} b 1"


def test_the_password_of_a_proxy_is_a_secret_also_without_its_url(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://me:pass-4711-word@proxy:3128")
    assert redact.text("wrong password pass-4711-word") == f"wrong password {MARK}"


def test_what_a_part_knows_is_a_secret():
    assert redact.text("under-a-name-of-its-own-1") == "under-a-name-of-its-own-1"
    redact.know("under-a-name-of-its-own-1")
    assert redact.text("under-a-name-of-its-own-1") == MARK


@pytest.mark.parametrize(
    "spell", [str, quote, lambda s: json.dumps(s)[1:-1], html.escape, lambda s: html.escape(json.dumps(s)[1:-1])]
)
def test_a_value_is_found_however_it_is_spelt(spell):
    spelt = spell(CANARY) if spell is not quote else quote(CANARY, safe="")
    assert redact.text(f"<{spelt}>") == f"<{MARK}>"


def test_of_two_secrets_one_inside_the_other_nothing_is_left(monkeypatch):
    monkeypatch.setenv("A_TOKEN", "abcdefgh-1")
    monkeypatch.setenv("B_TOKEN", "abcdefgh-1-and-more")
    assert redact.text("abcdefgh-1-and-more abcdefgh-1") == f"{MARK} {MARK}"


SHAPES = [
    "sk-proj-abcdefgh0123456789",
    "sk-ant-api03-abcdefgh0123456789",
    "sk-or-v1-0123456789abcdef0123456789abcdef",
    "hf_AbCdEfGhIjKlMnOpQrSt",
    "tml-abcdefgh0123456789",
    "rpa_ABCDEFGHIJ0123456789",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "github_pat_11ABCDEFG0123456789abcdef",
    "glpat-abcdefghij0123456789",
    "AKIAIOSFODNN7EXAMPLE",
    "AIzaSyA-0123456789abcdefghijklmnopqrstu",
    "xoxb-1234567890-abcdefghij",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----",
]


@pytest.mark.parametrize("key", SHAPES)
@pytest.mark.parametrize("around", ["{}", "key={}.", '{{"x":"{}"}}', "({})\n", "a {} b {} c"])
def test_keys_of_well_known_services_are_found_by_their_shape(key, around):
    clean = redact.text(around.format(key, key))
    assert key not in clean
    assert MARK in clean


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("GET http://me:pw@host:80/x?y=1", f"GET http://{MARK}@host:80/x?y=1"),
        ("https://host/v1?api_key=abc&n=3", f"https://host/v1?api_key={MARK}&n=3"),
        ("https://host/v1?n=3&token=abc'", f"https://host/v1?n=3&token={MARK}'"),
        ("Authorization: Bearer abc.def", f"Authorization: {MARK}"),
        ("{'authorization': 'Basic dXNlcjpwdw=='}", f"{{'authorization': '{MARK}'}}"),
        ("sent bearer abcdefghijklmnop0", f"sent bearer {MARK}"),
    ],
)
def test_urls_and_headers_keep_what_is_not_secret(said, left):
    assert redact.text(said) == left


@pytest.mark.parametrize(
    "said",
    [
        "risk-adjusted-0123456789abcdef",
        "sk-learn and hf_models",
        "the bearer of this",
        "a basic understanding of authorization: none",
        "me@host.example and http://host/@user",
        "token=1 key=2",
        "data:image/png;base64,AKIA/AIza+eyJ/sk",
        "monkey = make('calc_chain', rng, n)",
    ],
)
def test_what_only_resembles_a_secret_stays(said):
    assert redact.text(said) == said


def test_data_is_cleaned_in_texts_names_and_fields_and_numbers_stay():
    row = {
        "ids": [1, 2],
        "logprobs": (-0.5, -1),
        "n": 4711,
        "error": f"401: {CANARY}",
        CANARY: [None, {"deep": CANARY}],
    }
    clean = redact.data(row)
    assert clean == {
        "ids": [1, 2],
        "logprobs": (-0.5, -1),
        "n": 4711,
        "error": f"401: {MARK}",
        MARK: [None, {"deep": MARK}],
    }
    assert clean["ids"] is row["ids"]


def test_a_text_under_the_name_of_a_secret_is_one():
    said = {"api_key": "x", "X-Api-Key": "y", "Authorization": "z", "token": "t", "password": "p", "client_secret": "c"}
    assert set(redact.data(said).values()) == {MARK}
    kept = {
        "key": "calc-1",
        "key_env": "MY_KEY",
        "tokens": "3",
        "eos_token": "<stop>",
        "api_key": "",
        "secret": 3,
        "max_tokens": 4,
    }
    assert redact.data(kept) is kept


def test_what_holds_no_secret_is_given_back_as_it_is():
    row = {"a": [{"b": "text"}, [1, "x"]], "c": None}
    assert redact.data(row) is row


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from([*SHAPES, CANARY]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["api_key", "x", CANARY]), inner),
    max_leaves=20,
)


@given(JSON)
def test_cleaning_twice_is_cleaning_once_and_leaves_no_secret(value):
    once = redact.data(value)
    assert redact.data(once) == once
    written = json.dumps(once)
    assert not any(json.dumps(secret)[1:-1] in written for secret in (CANARY, *SHAPES))


@given(st.text(alphabet="abk-_:/@=.? \"'sf01", max_size=60))
def test_cleaning_a_text_twice_is_cleaning_it_once(said):
    once = redact.text(said)
    assert redact.text(once) == once


@pytest.mark.parametrize(
    "piece", ["://a:", "bearer ", "authorization : ", "-----BEGIN PRIVATE KEY-----", "eyJaaaaaaaa.", "sk-", "?token="]
)
def test_no_text_takes_for_ever(piece):
    for filler in ("a", " ", "-", "."):
        redact.text((piece + filler * 50) * 4000)


# ---------------------------------------------------------------- logs


@pytest.fixture
def log(request):
    found = redact.logger(f"nested_rl.test.{request.node.name}")
    yield found
    found.removeFilter(redact.FILTER)


def test_a_log_record_is_clean_before_any_handler_gets_it(log, caplog):
    log.warning("key %s of %d", CANARY, 3)
    log.warning("plain " + CANARY)  # noqa: G003  what careless code does
    log.warning("%(key)s", {"key": CANARY})
    log.warning("nothing %s", "here")
    assert [record.getMessage() for record in caplog.records] == [
        f"key {MARK} of 3",
        f"plain {MARK}",
        MARK,
        "nothing here",
    ]
    assert caplog.records[-1].args == ("here",)


def test_so_is_its_traceback_with_causes_and_notes(log, caplog):
    try:
        try:
            raise ValueError(f"the first {CANARY}")
        except ValueError as first:
            first.add_note(f"note {CANARY}")
            raise RuntimeError("second") from first
    except RuntimeError:
        log.exception("failed", stack_info=True)
    (record,) = caplog.records
    shown = logging.Formatter().format(record)
    assert CANARY not in shown
    assert f"the first {MARK}" in shown
    assert f"note {MARK}" in shown
    assert "RuntimeError: second" in shown


def test_a_traceback_without_secrets_is_left_to_whoever_formats_it(log, caplog):
    try:
        raise ValueError("plain")
    except ValueError:
        log.exception("failed")
    assert caplog.records[0].exc_info[0] is ValueError


def test_wrong_arguments_are_loggings_own_business(log, caplog, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    log.removeHandler(caplog.handler)
    record = logging.LogRecord("n", logging.WARNING, "f", 1, "%s %s", ("one",), None)
    assert redact.FILTER.filter(record)


def test_every_logger_of_the_package_cleans_its_records():
    """A module that asks logging for its logger would go around the filter. What runs on a machine has no secrets."""
    root = Path(nested_rl.__file__).parent
    files = {path.relative_to(root): path.read_text("utf-8") for path in root.rglob("*.py")}
    machine = {"template", "runner"}
    assert [str(p) for p, code in files.items() if "getLogger(__name__)" in code and not machine & set(p.parts)] == []
