"""The SDK's clients, opened on first use. Everything here blocks and is called in a thread, never on the event loop."""

from __future__ import annotations

import json
import logging
import re
import threading
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from nested_rl import redact
from nested_rl.errors import MissingExtra, NestedRLError, SettingsError, TrainerError, UnknownName
from nested_rl.trainers.tinker_errors import KEY, NO_KEY, api_key, explained, plainly, status_of

log = redact.logger(__name__)

_PATH: Final = re.compile(r"(tinker://[^\s?#]+)\?version=(\d+)")


def sdk() -> Any:
    """The tinker package; raises MissingExtra."""
    try:
        import tinker
    except ImportError as error:
        raise MissingExtra("TinkerTrainer", "tinker") from error
    return tinker


class Service:
    """One session with Tinker or a server that speaks its API."""

    def __init__(self, model: str, *, base_url: str | None, key_env: str, project_id: str | None) -> None:
        self.model, self.base_url = model, base_url
        self.sdk = sdk()
        self._key_env = key_env
        self._key()
        self._told = key_env or (KEY if base_url is None else "")
        self._project = project_id
        self._client: Any = None
        self._models: list[str] = []
        self._supported: dict[str, int | None] = {}
        self._lock = threading.Lock()

    def context_tokens(self) -> int | None:
        """What the server, or the model's folder, says the model reads; None if neither does.

        This is the first request of all: it finds out whether the key is good, the account in credit and the model known.
        """
        missing = f"there is no Tinker API at {self.base_url or 'the hosted service'}; the client adds /api/v1 to base_url itself"
        with self._lock, plainly("asking what the server can do", key=self._told, missing=missing):
            if not self._supported:
                self._supported = self._ask()
        if self.model not in self._supported:
            raise UnknownName("model (on this Tinker server)", self.model, self._supported)
        return self._supported[self.model] or _folder_context(self.model)

    def _ask(self) -> dict[str, int | None]:
        """The server's models, and how much they read where it says so."""
        check = getattr(self._opened(), "_check_accessible", None)
        if check is not None:  # the SDK's other calls wait for an hour when the account has no credit
            check()
        rest = self._rest()
        told = rest.get_server_capabilities().result().supported_models
        return {m.model_name: m.max_context_length for m in told if m.model_name and m.trainable is not False}

    def start(self, *, rank: int, seed: int) -> Any:
        """A training client with a fresh adapter."""
        with plainly(f"starting to train {self.model}", key=self._told):
            client = self._opened().create_lora_training_client(base_model=self.model, rank=rank, seed=seed).result()
        return self._mine(client)

    def resume(self, ref: str) -> tuple[Any, int]:
        """A training client as it was saved, optimiser and all, and its version. Raises TrainerError."""
        path, version = parsed(ref)
        try:
            client = self._opened().create_training_client_from_state_with_optimizer(path).result()
        except NestedRLError:
            raise
        except Exception as error:
            if status_of(error) in (400, 404):
                raise TrainerError(
                    f"{ref}: the server has no such checkpoint; it may have reached the end of its lifetime (ttl_days)"
                ) from error
            raise explained(error, f"loading {ref}", key=self._told) from error
        return self._mine(client), version

    def snapshot(self, client: Any) -> Any:
        """A sampler with the weights of now, which stay as they are."""
        with plainly("making a sampler", key=self._told):
            return client.save_weights_and_get_sampling_client(kind="snapshot").result()

    def base_sampler(self) -> Any:
        """A sampler of the weights that training started from."""
        with plainly(f"making a sampler of {self.model}", key=self._told):
            return self._opened().create_sampling_client(base_model=self.model).result()

    def delete(self, ref: str) -> None:
        """Delete a checkpoint; one that is gone already is none to worry about."""
        path, _ = parsed(ref)
        try:
            self._rest().delete_checkpoint_from_tinker_path(path).result()
        except NestedRLError:
            raise
        except Exception as error:
            if status_of(error) != 404:
                raise explained(error, f"deleting {ref}", key=self._told) from error

    def external_urls(self, client: Any, name: str, *, ttl_s: int) -> dict[str, str]:
        """Signed addresses of the adapter's files, by file name."""
        with plainly("exporting the adapter", key=self._told):
            saved = client.save_weights_external(name, ttl_seconds=ttl_s).result()
            rest = self._rest()
            return dict(rest.get_external_weights_urls(saved.path).result().urls)

    def usage(self, starting_on: str, ending_before: str) -> tuple[list[Any], set[str]]:
        """Billing events of a window, and the sessions of this trainer."""
        with plainly("reading the bill (the key needs the billing role)", key=self._told):
            admin = self.sdk.AdminClient(base_url=self.base_url, api_key=self._key())
            events = admin.get_billing_usage(starting_on, ending_before).result().data
        return list(events), {model.partition(":train:")[0] for model in self._models}

    def close(self, *, well: bool) -> None:
        """End the session. A server that cannot end one is left to notice that nobody is there any more."""
        with self._lock:
            client, self._client = self._client, None
        if client is None:
            return
        try:
            client.close("success" if well else "errored").result()
        except Exception as error:  # noqa: BLE001  what was trained and saved is safe; there is nothing left to lose
            level = logging.DEBUG if status_of(error) == 404 else logging.WARNING
            log.log(level, "the Tinker session was not ended properly: %s", error)

    def _opened(self) -> Any:
        if self._client is None:
            self._client = self.sdk.ServiceClient(
                project_id=self._project, base_url=self.base_url, api_key=self._key(), display_name="nested_rl"
            )
        return self._client

    def _rest(self) -> Any:
        return self.sdk.RestClient(base_url=self.base_url, api_key=self._key())

    def _key(self) -> str | None:
        """The key for one more client: what the environment says is looked at each time, as the SDK does."""
        key = api_key(self._key_env, base_url=self.base_url)
        if key not in (None, NO_KEY):
            redact.know(str(key))
        return key

    def _mine(self, client: Any) -> Any:
        self._models.append(str(client.model_id))
        return client


def checked_url(base_url: str | None) -> str | None:
    """The address of a server; raises SettingsError for one that is none, or that holds a password."""
    if base_url is None:
        return None
    url = urlsplit(base_url)
    if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
        raise SettingsError("TinkerTrainer: base_url must look like http://HOST:PORT, without a query")
    if url.username or url.password:
        raise SettingsError("TinkerTrainer: base_url must not hold a name or password; name a variable with key_env")
    return base_url.rstrip("/")


def named(path: str, version: int) -> str:
    """The reference of a checkpoint: where it is on the server, and its version.

    >>> named("tinker://run/weights/00003-1f", 3)
    'tinker://run/weights/00003-1f?version=3'
    """
    return f"{path}?version={version}"


def parsed(ref: str) -> tuple[str, int]:
    """What `named` put together; raises TrainerError."""
    found = _PATH.fullmatch(ref)
    if found is None:
        raise TrainerError(f"{ref!r} is no checkpoint of this trainer: tinker://RUN/weights/NAME?version=N is expected")
    return found[1], int(found[2])


def _folder_context(model: str) -> int | None:
    config = Path(model) / "config.json"
    if not config.is_file():
        return None
    size = json.loads(config.read_text("utf-8")).get("max_position_embeddings")
    return int(size) if isinstance(size, int) else None
