"""Links of the documentation to files of the repository beside it lead to pages of the site that show these files."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")
KINDS = {".py": "python", ".toml": "toml", ".json": "json", ".sh": "bash", ".jsonl": "json"}

_shown: dict[Path, str] = {}
"""Files and folders outside docs/ that a page links to, and the page of the site that shows each."""


def on_files(files: Files, config: Any) -> Files:
    """Make a page of everything outside that is linked to, from wherever."""
    _shown.clear()
    todo = [Path(str(file.abs_src_path)) for file in files.documentation_pages()]
    while todo:
        page = todo.pop()
        for target in _targets(page):
            if not _published(target) and target not in _shown and target.exists():
                _shown[target] = f"code/{target.relative_to(ROOT).as_posix().replace('.md', '')}.md"
                todo += [target] if target.suffix == ".md" else []
    for target, where in _shown.items():
        files.append(File.generated(config, where, content=_page(target)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:  # noqa: ARG001
    """Point the links at these pages."""
    uri = page.file.src_uri
    source = next((target for target, where in _shown.items() if where == uri), DOCS / uri)
    folder = source if source.is_dir() else source.parent

    def pointed(link: re.Match[str]) -> str:
        target = (folder / link[1]).resolve()
        if target in _shown:
            there = _shown[target]
        elif target.is_relative_to(DOCS):
            there = "index.md" if target == DOCS else target.relative_to(DOCS).as_posix()
        else:
            return link[0]
        return f"]({posixpath.relpath(there, posixpath.dirname(uri) or '.')}{link[2] or ''})"

    return LINK.sub(pointed, markdown)


def _published(target: Path) -> bool:
    """Whether the site has it anyway: pages, pictures and other files of docs/, but no folders and no programs."""
    return target == DOCS or (target.is_relative_to(DOCS) and target.is_file() and target.suffix != ".py")


def _targets(page: Path) -> list[Path]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [(page.parent / link[1]).resolve() for link in LINK.finditer(text)]


def _page(target: Path) -> str:
    if target.suffix == ".md":
        return target.read_text(encoding="utf-8")
    title = f"# {target.relative_to(ROOT).as_posix()}\n"
    if target.is_file():
        return f"{title}\n{_block(target)}"
    inside = sorted(p for p in target.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    if len(inside) > 30 or target.name == "src":  # a list will do
        return title + "\n" + "\n".join(f"* `{p.relative_to(target).as_posix()}`" for p in inside) + "\n"
    return title + "".join(
        f"\n## {p.relative_to(target).as_posix()}\n\n{_block(p)}"
        for p in inside
        if p.suffix in {*KINDS, ".md", ".txt", ""}
    )


def _block(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return "Not a text.\n"
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`{3,}", text)), default=2))
    return f"{fence}{KINDS.get(path.suffix, 'text')}\n{text.rstrip()}\n{fence}\n"
