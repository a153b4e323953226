"""What the documentation site adds to these files: a page per network and per loss, and the documents of the root.

`mkdocs.yml` names this file. Pages are made when the site is built, from the registries and from the sections of networks.md
and losses.md, so that nothing is written twice.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from papm import losses, methods, models

ROOT = Path(__file__).resolve().parents[1]
CODE = "https://github.com/papm/papm/blob/main"
DOCUMENTS = {  # of the root, and their pages
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of a folder where the navigation says `...FOLDER`."""
    config.nav = _filled(config.nav)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    made = {page: (ROOT / name).read_text("utf-8") for name, page in DOCUMENTS.items()}
    made |= {f"networks/{name}.md": _network(name) for name in models.names()}
    made |= {f"losses/{name}.md": _loss(name) for name in losses.names()}
    made |= {f"notebooks/{p.stem}.md": _notebook(p) for p in (ROOT / "docs/notebooks").glob("*.ipynb")}
    for uri, text in made.items():
        files.append(File.generated(config, uri, content=_linked(text, uri)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to files outside this folder lead to the pages made from them, or to the repository."""
    text = markdown if page.file.generated_by else _linked(markdown, page.file.src_uri)
    text = re.sub(r"(\[\d+\]) (?=\[\d+\])", r"\1, ", text)  # two notes of a table are no reference
    return re.sub(r"(\]\((?:\.\./)*notebooks/\w+)\.ipynb\)", r"\1.md)", text)


def _filled(nav: Any) -> Any:
    if isinstance(nav, dict):
        return {title: _filled(items) for title, items in nav.items()}
    if not isinstance(nav, list):
        return nav
    found: list[Any] = []
    for item in nav:
        folder = item[3:] if isinstance(item, str) and item.startswith("...") else None
        found += [_filled(item)] if folder is None else [f"{folder}/{name}.md" for name in _names(folder)]
    return found


def _names(folder: str) -> list[str]:
    if folder == "networks":
        return list(models.names())
    if folder == "losses":
        return list(losses.names())
    return sorted(p.stem for p in (ROOT / "docs" / folder).glob("*.md") if p.stem != "README")


def _notebook(path: Path) -> str:
    """The cells of a notebook, one below the other, and where to take it from."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    text = ["".join(c["source"]) if c["cell_type"] == "markdown" else _code("".join(c["source"])) for c in cells]
    return "\n\n".join([*text, f"[Download this notebook]({path.name})."]) + "\n"


def _code(source: str) -> str:
    return f"```python\n{source}\n```"


def _network(name: str) -> str:
    about = models.info(name)
    kind = "a density map" if about.kind == "density" else "scored points"
    lines = [f"# {name}", "", f"{about.summary}.", "", f"Gives {kind} at stride {about.stride}."]
    lines += _options(dict(about.options), f"network.NAME=value` of `papm train --backbone {name}")
    method = "al-papm" if about.kind == "density" else "p2p-papm"
    lines += ["", "## Recipe", "", f"With `--method {method}`:", "", *_table(methods.recipe(method, name), "setting")]
    return "\n".join([*lines, "", *_section("networks.md", name)]) + "\n"


def _loss(name: str) -> str:
    about = methods.METHODS.get(name).summary if name in methods.METHODS else "a loss without a method of its own"
    lines = [f"# {name}", "", f"{about[0].upper()}{about[1:]}.", ""]
    lines += ["```python", "import papm", "", f'loss = papm.losses.create("{name}", stride=8)', "```"]
    lines += _options(losses.options(name), f"loss.NAME=value` of `papm train --method {name}")
    return "\n".join([*lines, "", *_section("losses.md", name)]) + "\n"


def _options(options: dict[str, Any], where: str) -> list[str]:
    return ["", "## Options", "", f"`{where}`:", "", *_table(options, "option")] if options else []


def _table(values: Any, heading: str) -> list[str]:
    cells = [f"| `{key}` | `{_plain(value)}` |" for key, value in values.items()]
    return [f"| {heading} | value |", "|---|---|", *cells]


def _plain(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text.replace("|", "\\|")


def _section(document: str, name: str) -> list[str]:
    """The section of a document whose heading names this, with a link to it."""
    text = (ROOT / "docs" / document).read_text("utf-8")
    for heading, body in re.findall(r"^#{2,3} (.+)\n((?:(?!^#{2,3} ).*\n?)*)", text, flags=re.M):
        if name in re.split(r"[\s,`]+", heading.lower()):
            return ["## Details", "", _rebased(body.strip(), document), "", f"From [{document[:-3]}](../{document})."]
    return [f"See [{document[:-3]}](../{document})."]


def _rebased(text: str, document: str) -> str:
    """Links of a document in this folder, seen from a sub-folder."""

    def seen(match: re.Match[str]) -> str:
        target = match[1]
        if target.startswith(("http", "../../")):
            return match[0]
        return f"](../{document}{target})" if target.startswith("#") else f"](../{target})"

    return re.sub(r"\]\(([^)\s]+)\)", seen, text)


def _linked(text: str, uri: str) -> str:
    """Links as they are on the site: files of the root have pages or lead to the repository."""
    depth = uri.count("/")
    above, own = "../" * (depth + 1), "../" * depth

    def seen(match: re.Match[str]) -> str:
        target = match[1]
        if uri in DOCUMENTS.values():  # written for the root
            target = target.removeprefix("docs/") if target.startswith("docs/") else above + target
            if target.startswith((above + "#", above + "http")):
                return match[0]
        elif not target.startswith(above):
            return match[0]
        inside, _, anchor = target.removeprefix(above).partition("#")
        if not target.startswith(above):
            return f"]({target})"
        if inside in DOCUMENTS:
            return f"]({own}{DOCUMENTS[inside]}{'#' + anchor if anchor else ''})"
        return f"]({CODE}/{inside})"

    return re.sub(r"\]\(([^)\s]+)\)", seen, text)
