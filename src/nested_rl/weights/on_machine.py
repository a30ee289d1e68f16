"""The machine's side: find a base or download it, make it readable for jobs and writable for nobody, hash it. Standard library only.

One argument of JSON in, one line of JSON out. Downloads go to a store, and what is in a Hugging Face cache is linked there: a cache is
full of links, and often closed to the user that runs jobs.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pwd
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

IMAGE_FOLDERS = ("/opt/nested-rl/bases", "/workspace/bases", "/models")
IMAGE_BIN = "/app/.venv/bin"
PATTERNS = ("*.safetensors", "*.json", "*.txt", "*.jinja", "tokenizer.model")
"""What is taken of a base: weights as safetensors, tokenizer, template, configuration. Never code, never a pickle."""
_DOWNLOADED = "download"


def main() -> None:
    """Answer one question."""
    question = json.loads(sys.argv[1])
    print(json.dumps(answer(question)))  # noqa: T201  the answer


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Where the base is, with its files; or why it is nowhere."""
    base, revision = question["base"], question["revision"]
    try:
        path, found = _find(base, revision, list(filter(None, question["folders"])))
        files = _files(path, question["known"])
    except (OSError, LookupError) as error:
        return {"missing": str(error)}
    return {"path": str(path), "revision": found, "files": files}


def store() -> Path:
    """Where this machine keeps what it gets, if it is told no place: root's can be read by everybody."""
    if os.getuid() == 0:
        return Path(IMAGE_FOLDERS[0])
    return Path(pwd.getpwuid(os.getuid()).pw_dir, ".cache", "nested-rl", "bases")


def _find(base: str, revision: str, folders: list[str]) -> tuple[Path, str]:
    """Folder and revision ("" where it is not known)."""
    if base.startswith("/"):
        if not _is_base(Path(base)):
            raise LookupError(f"{base} is no folder with config.json and model*.safetensors")
        return Path(base), ""
    for folder in (*folders, *IMAGE_FOLDERS, str(store())):
        for name in (base, base.replace("/", "--"), base.rpartition("/")[2]):
            if _is_base(place := Path(folder, name)):
                return place, _written_revision(place)
    keep = Path(folders[0]) if folders else store()
    for commit, snapshot in _cached(base, revision):
        return _into(keep, base, commit, snapshot), commit
    with _alone(keep):  # whoever had to wait finds it there
        place = keep / base.replace("/", "--")
        return (place, _written_revision(place)) if _is_base(place) else _download(keep, base, revision)


@contextlib.contextmanager
def _alone(keep: Path) -> Iterator[None]:
    """One download at a time, of all processes of this machine that keep bases there."""
    keep.mkdir(parents=True, exist_ok=True)
    folder = os.open(keep, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _is_base(folder: Path) -> bool:
    try:
        return (folder / "config.json").is_file() and any(folder.glob("model*.safetensors"))
    except OSError:
        return False


def _cached(base: str, revision: str) -> Iterator[tuple[str, Path]]:
    """Snapshots in Hugging Face caches: the revision that is asked for, or what `main` was."""
    home = pwd.getpwuid(os.getuid()).pw_dir
    hubs = (os.environ.get("HF_HUB_CACHE"), f"{os.environ.get('HF_HOME', f'{home}/.cache/huggingface')}/hub")
    for hub in filter(None, hubs):
        repository = Path(hub, f"models--{base.replace('/', '--')}")
        commit = revision
        if not commit:
            with contextlib.suppress(OSError):
                commit = (repository / "refs" / "main").read_text("utf-8").strip()
        if re.fullmatch("[0-9a-f]{40}", commit) and _is_base(repository / "snapshots" / commit):
            yield commit, repository / "snapshots" / commit


def _download(keep: Path, base: str, revision: str) -> tuple[Path, str]:
    program = shutil.which("hf") or shutil.which("hf", path=IMAGE_BIN)
    if program is None:
        raise LookupError(
            "it is in no folder of bases and in no cache, and there is no program `hf` to download it with"
        )
    with _draft(keep) as draft:
        argv = [program, _DOWNLOADED, base, "--local-dir", str(draft)]
        for pattern in PATTERNS:
            argv += ["--include", pattern]
        if revision:
            argv += ["--revision", revision]
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode != 0 or not _is_base(draft):
            raise LookupError(
                f"`hf download` ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}"
            )
        commit = revision or _downloaded_revision(draft)
        return _into(keep, base, commit, draft), commit


def _downloaded_revision(folder: Path) -> str:
    """The commit that `hf` notes beside each file that it downloads."""
    for note in (folder / ".cache" / "huggingface" / "download").glob("*.metadata"):
        commit = note.read_text("utf-8").partition("\n")[0].strip()
        if re.fullmatch("[0-9a-f]{40}", commit):
            return commit
    return ""


def _into(keep: Path, base: str, commit: str, source: Path) -> Path:
    """A folder of plain, read-only files. They are linked where that can be, and copied where not."""
    target = keep / base.replace("/", "--")
    with _draft(keep) as draft:
        for path in sorted(_taken(source)):
            _link_or_copy(path.resolve(), draft / path.name)
            (draft / path.name).chmod(0o444)
        (draft / _REVISION).write_text(commit, "utf-8")
        draft.chmod(0o755)
        with contextlib.suppress(OSError):  # another was faster: then its files are there
            draft.rename(target)
    if not _is_base(target):
        raise LookupError(f"{target} cannot be written")
    return target


_REVISION = ".revision"


def _written_revision(folder: Path) -> str:
    with contextlib.suppress(OSError):
        return (folder / _REVISION).read_text("utf-8").strip()
    return ""


@contextlib.contextmanager
def _draft(keep: Path) -> Iterator[Path]:
    draft = keep / f".draft-{secrets.token_hex(8)}"
    draft.mkdir(parents=True)
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _taken(folder: Path) -> set[Path]:
    return {path for pattern in PATTERNS for path in folder.glob(pattern) if path.is_file()}


def _files(folder: Path, known: dict[str, list[str]]) -> dict[str, dict[str, str]]:
    """sha256 and stamp by name. A file with a known stamp has not changed: the change time is the kernel's to set."""
    found = {}
    for path in sorted(_taken(folder)):
        status = path.stat()
        stamp = f"{path.resolve()} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"
        stamped, sha256 = known.get(path.name, ("", ""))
        found[path.name] = {"stamp": stamp, "sha256": sha256 if stamped == stamp else _sha256(path)}
    return found


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()


if __name__ == "__main__":
    main()
