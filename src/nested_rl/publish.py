"""A trained agent for others: its adapter as a PEFT folder with a model card, and the way to the Hugging Face Hub.

The card says what was measured and nothing else: base, steps, the evaluations of the run with their intervals, what it cost,
and with which version of the package. Nothing is uploaded that was not looked at first: `prepare` makes a folder, `upload`
sends it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

from attrs import frozen

from nested_rl import redact, retention
from nested_rl.errors import MissingExtra, NestedRLError, RunDirError, SettingsError
from nested_rl.experiment import version_of
from nested_rl.model_card import NANO, card, trainer_of
from nested_rl.rundir import RunDir, write_atomic
from nested_rl.types import JSON

RECORD = "adapters/prepared.json"
"""In the run: which folders were prepared from which version, and the digests of the cards that were put there."""
CONFIG, WEIGHTS, CARD = "adapter_config.json", "adapter_model.safetensors", "README.md"
TINKER = "nested_rl.trainers.tinker.TinkerTrainer"


@frozen(kw_only=True)
class Prepared:
    """A folder that is ready to be sent: adapter and card of one version of a run."""

    path: Path
    version: int
    base: str
    renewed: bool = False
    """Whether the card was made anew, since the run's records have changed."""

    @property
    def files(self) -> dict[str, int]:
        """What is in it, with the sizes in bytes."""
        return {str(p.relative_to(self.path)): p.stat().st_size for p in sorted(self.path.rglob("*")) if p.is_file()}


async def ready(run: RunDir, out: Path | None = None, *, which: str = "best") -> Prepared:
    """What is in `out` (RUN/adapters/vVERSION by default) already, else what `prepare` puts there.

    So what is uploaded is what was looked at. Its card is made anew when the run has been evaluated since, say. Raises SettingsError when
    the folder holds something else, or a card with words of yours that the run's records no longer agree with.
    """
    refs = retention.refs(run)
    version = version_of(run, which, refs)
    place = out or run.path / "adapters" / f"v{version:05d}"
    if not place.exists():
        return await prepare(run, place, which=str(version))
    made = _record(run).get(_name(run, place))
    if made is None or any(not (place / name).is_file() for name in (CONFIG, WEIGHTS)):
        raise SettingsError(f"{place} exists and is no prepared adapter of this run; delete it or choose another place")
    if (made["version"], made["ref"]) != (version, refs[version]):
        raise SettingsError(
            f"{place} holds version {made['version']}, not version {version} as it is now; delete it or choose another place"
        )
    base = str(json.loads((place / CONFIG).read_text("utf-8")).get("base_model_name_or_path"))
    return Prepared(path=place, version=version, base=base, renewed=_renew(run, place, version, base))


def _renew(run: RunDir, place: Path, version: int, base: str) -> bool:
    """Bring the card up to date, if it is not. One that somebody has written in is kept as long as the records agree with what was there first."""
    made, path = _record(run)[_name(run, place)], place / CARD
    text = redact.text(card(run, version, base))
    there = path.read_text("utf-8") if path.is_file() else None
    if there == text:
        return False
    if there is None or _digest(there) in made["cards"]:
        _remember(run, place, {**made, "cards": [*made["cards"], _digest(text)]})  # both are ours, if it ends here
        write_atomic(path, text.encode(), sync=True)
        _remember(run, place, {**made, "cards": [_digest(text)]})
        return True
    if made["cards"] != [_digest(text)]:
        raise SettingsError(
            f"{path} has words of yours in it, and the run's records (evaluations, cost) have changed since it was made: put your words "
            "aside, delete it, and run this again to have it made anew"
        )
    return False


async def prepare(run: RunDir, out: Path, *, which: str = "best") -> Prepared:
    """Write adapter and card of a version (`best`, a step, or "" for the last) to the folder `out`, all or nothing.

    Raises SettingsError when `out` exists or the run trained no adapter. An adapter on Tinker is downloaded.
    """
    if await asyncio.to_thread(out.exists):
        raise SettingsError(f"{out} exists already; delete it or choose another place")
    refs = retention.refs(run)
    version = version_of(run, which, refs)
    draft = out.with_name(f".{out.name}.{secrets.token_hex(6)}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        await _adapter(run, refs[version], draft)
        base = _named_base(draft / CONFIG)
        text = redact.text(card(run, version, base))
        (draft / CARD).write_text(text, encoding="utf-8")
        _remember(run, out, {"version": version, "ref": refs[version], "cards": [_digest(text)]})
        draft.rename(out)
    except OSError as error:
        raise RunDirError(f"{out}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Prepared(path=out, version=version, base=base)


def upload(prepared: Prepared, repo: str, *, public: bool = False) -> str:
    """Send a prepared folder to `repo` (OWNER/NAME) on the Hugging Face Hub; the address of what it became.

    The token is the Hub client's own business (HF_TOKEN, or a login). Raises MissingExtra, or NestedRLError with the Hub's words.
    """
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise MissingExtra("publish --yes", "hub") from error
    hub = HfApi()
    try:
        hub.create_repo(repo, private=not public, exist_ok=True)
        told = f"Version {prepared.version}, made by nested_rl"
        return str(hub.upload_folder(repo_id=repo, folder_path=str(prepared.path), commit_message=told))
    except Exception as error:
        raise NestedRLError(redact.text(f"the Hub did not take {repo}: {type(error).__name__}: {error}")) from error


# ---------------------------------------------------------------- what was prepared


def _record(run: RunDir) -> dict[str, dict[str, JSON]]:
    path = run.path / RECORD
    found: dict[str, dict[str, JSON]] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return found


def _remember(run: RunDir, place: Path, made: dict[str, JSON]) -> None:
    """Before the folder is there: without its record nobody would know what it holds."""
    record = _record(run) | {_name(run, place): made}
    write_atomic(run.path / RECORD, (json.dumps(record, indent=1) + "\n").encode(), sync=True)


def _name(run: RunDir, place: Path) -> str:
    """From the run, so that a run may be moved."""
    return os.path.relpath(place.resolve(), run.path.resolve())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# ---------------------------------------------------------------- the adapter


async def _adapter(run: RunDir, ref: str, draft: Path) -> None:
    settings: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in trainer_of(run).items()}
    name = settings.pop("name", NANO)
    local = run.path / "checkpoints" / ref / "adapter"
    if name == TINKER:
        from nested_rl.trainers.tinker import TinkerTrainer

        tinker = TinkerTrainer(**settings)
        try:
            await tinker.export_adapter(draft, ref=ref)
        finally:
            await tinker.close()
    elif local.is_dir():
        await asyncio.to_thread(_copy, local, draft)
    else:
        raise SettingsError(
            f"{run.path} trained no adapter: all weights are in its checkpoints; NanoTrainer(lora_rank=8) trains one"
        )


def _copy(adapter: Path, draft: Path) -> None:
    draft.mkdir()
    for file in (CONFIG, WEIGHTS):
        shutil.copyfile(adapter / file, draft / file)


def _named_base(config: Path) -> str:
    """The base's name. A folder of this computer becomes its last part: where it lay is nobody's business."""
    settings = json.loads(config.read_text("utf-8"))
    base = str(settings.get("base_model_name_or_path") or "unknown")
    if Path(base).is_absolute():
        settings["base_model_name_or_path"] = base = Path(base).name
        config.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    return base
