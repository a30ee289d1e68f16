"""Which key TinkerTrainer sends where, and what it says of a refusal."""

from __future__ import annotations

import pytest
from tinker_double import Sdk, Status
from tinker_play import group, trainer

from nested_rl.errors import MissingExtra, NestedRLError, SettingsError, TrainerError

# ---------------------------------------------------------------- keys


async def test_a_missing_key_is_told_before_anything_is_asked(
    sdk: Sdk, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.delenv("TINKER_API_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SettingsError, match="set the environment variable TINKER_API_KEY"):
        await trainer().policy()
    monkeypatch.setenv("TINKER_API_KEY", "sk-other")
    with pytest.raises(SettingsError, match="begin with tml-") as told:
        await trainer().policy()
    assert "sk-other" not in str(told.value)
    assert sdk.calls == []


async def test_the_key_of_the_hosted_service_goes_to_no_other_server(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    await trainer().policy()
    await trainer(base_url="http://gpu:8000").policy()
    monkeypatch.setenv("LAB_KEY", "tml-lab")
    await trainer(base_url="http://gpu:8000", key_env="LAB_KEY").policy()
    assert sdk.keys == ["tml-secret", "tml-no-key", "tml-lab"]


@pytest.mark.parametrize("key_env", ["", "LAB_KEY", "TINKER_API_KEY"])
async def test_a_command_for_the_hosted_service_is_not_run_for_another_server(
    sdk: Sdk, monkeypatch: pytest.MonkeyPatch, key_env: str
) -> None:
    monkeypatch.setenv("LAB_KEY", "tml-lab")
    monkeypatch.setenv("TINKER_CREDENTIAL_CMD", "print-the-secret")
    with pytest.raises(SettingsError, match=r"http://gpu:8000 asks for it.*env -u TINKER_CREDENTIAL_CMD"):
        await trainer(base_url="http://gpu:8000", key_env=key_env).policy()
    assert sdk.keys == []
    monkeypatch.delenv("TINKER_API_KEY")
    await trainer().policy()  # the hosted service's own
    assert sdk.keys == [None]


async def test_a_command_that_is_set_later_is_noticed_before_the_next_client_is_made(
    sdk: Sdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trainer(base_url="http://gpu:8000")
    await made.policy()
    monkeypatch.setenv("TINKER_CREDENTIAL_CMD", "print-the-secret")
    for act in (made.forget("tinker://run/weights/1?version=1"), made.billed("a", "b")):
        with pytest.raises(SettingsError, match="TINKER_CREDENTIAL_CMD"):
            await act


async def test_no_variable_leads_the_hosted_key_elsewhere(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", "http://gpu:8000")
    with pytest.raises(SettingsError, match=r"TINKER_BASE_URL.*base_url=…, key_env=…"):
        await trainer().policy()
    assert sdk.keys == []
    await trainer(base_url="http://lab:8000").policy()
    assert sdk.keys == ["tml-no-key"]


def test_no_address_with_a_password_is_taken() -> None:
    with pytest.raises(SettingsError, match="password"):
        trainer(base_url="http://me:secret@gpu:8000")
    with pytest.raises(SettingsError, match="http://HOST:PORT"):
        trainer(base_url="gpu:8000")


async def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tinker", None)
    with pytest.raises(MissingExtra, match=r"nested-rl\[tinker\]"):
        await trainer().policy()


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (Status(401, "bad key"), SettingsError, "set TINKER_API_KEY to a valid one"),
        (Status(402, "no billing"), TrainerError, "top it up and run again to resume"),
        (Status(403, "not yours"), SettingsError, "organisation or project"),
        (Status(429, "slow down"), TrainerError, "run fewer episodes at once"),
        (Status(503, "down"), TrainerError, "run again to resume"),
        (TimeoutError("no answer"), TrainerError, "cannot be reached"),
        (ValueError("Error retrieving result: pay with status 402 for x"), TrainerError, "top it up"),
        (AssertionError("sample_sequence_ids"), TrainerError, "AssertionError: sample_sequence_ids"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, Exception) else "",
)
async def test_what_the_sdk_raises_says_what_to_do_and_is_not_tried_again(sdk: Sdk, error, kind, told) -> None:
    sdk.refused = error
    with pytest.raises(kind, match=told):
        await trainer().policy()
    assert sdk.calls == [("check",)]


def handled_badly(status: int) -> Exception:
    """What comes out where the SDK trips over its own handling of a refusal."""
    try:
        try:
            raise Status(status, "pay first")
        except Status:
            raise AttributeError("no attribute '_last_logged'")  # noqa: B904  without a cause, as there
    except AttributeError as error:
        return error


@pytest.mark.parametrize(
    ("where", "error", "told"),
    [
        ({}, handled_badly(402), r"top it up and run again to resume \(402: pay first\)"),
        ({}, Status(404, "Not Found"), "there is no Tinker API at the hosted service"),
        ({"base_url": "http://gpu:8000"}, Status(404, "Not Found"), r"no Tinker API at http://gpu:8000; .* /api/v1"),
        ({"base_url": "http://gpu:8000"}, Status(401, "who"), r"the server wants a key; .*name that with key_env="),
        ({"base_url": "http://gpu:8000", "key_env": "LAB"}, Status(401, "who"), "set LAB to a valid one"),
    ],
    ids=["402 in context", "404", "404 elsewhere", "401 without a key", "401 with a key"],
)
async def test_the_first_refusal_says_what_of_the_settings_is_wrong(
    sdk: Sdk, monkeypatch: pytest.MonkeyPatch, where, error, told
) -> None:
    monkeypatch.setenv("LAB", "tml-lab")
    sdk.refused = error
    with pytest.raises(NestedRLError, match=told) as caught:
        await trainer(**where).policy()
    assert "lifetime" not in str(caught.value)
    assert "AttributeError" not in str(caught.value)


async def test_a_refusal_in_the_middle_does_not_name_the_wrong_key(sdk: Sdk) -> None:
    made = trainer(base_url="http://gpu:8000", ratio_cap=None)
    sdk.fails = Status(401, "no longer")
    with pytest.raises(SettingsError, match="with base_url the variable that key_env names"):
        await made.update([group([1.0, 0.0])])
