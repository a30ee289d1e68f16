"""`publish`: the adapter of a run with its card, to look at; and to the Hugging Face Hub when asked twice."""
# ruff: noqa: T201  printing is what a command is for

from __future__ import annotations

from pathlib import Path

from nested_rl.errors import SettingsError


def publish(
    run: Path,
    /,
    *,
    which: str = "best",
    repo: str | None = None,
    out: Path | None = None,
    public: bool = False,
    yes: bool = False,
) -> None:
    """Prepare the trained adapter and its model card; with --repo and --yes also upload them.

    Without --yes nothing leaves this computer: look at the folder, then run the same command again with it.

    Args:
        run: Run directory.
        which: best, initial or a step number.
        repo: OWNER/NAME on the Hugging Face Hub.
        out: The folder to make; RUN/adapters/VERSION by default.
        public: Make the repository visible to everybody.
        yes: Upload.
    """
    from nested_rl import publish as publishing
    from nested_rl import sync
    from nested_rl.rundir import RunDir

    if yes and not repo:
        raise SettingsError("--yes uploads, and needs to know where to: add --repo OWNER/NAME")
    if repo is not None and (repo.count("/") != 1 or not all(repo.split("/"))):
        raise SettingsError(f"--repo is OWNER/NAME, not {repo!r}")
    prepared = sync.run(publishing.ready(RunDir.open(run), out, which=which))
    print(f"{prepared.path}: version {prepared.version} of the agent, an adapter for {prepared.base}")
    for name, size in prepared.files.items():
        print(f"  {name}  {size:,} bytes")
    if prepared.renewed:
        print("the card was made anew: what it tells of (evaluations, cost) has changed since it was written")
    if not yes:
        place = repo or "OWNER/NAME"
        print(f"nothing was uploaded; read {prepared.path / publishing.CARD}, then add --repo {place} --yes")
        return
    assert repo is not None
    print(publishing.upload(prepared, repo, public=public))
