"""Hooks of MkDocs for the site that `make docs` builds (mkdocs.yml).

They let the site be built from the files as they are in the repository:

- Pages outside docs/ (READMEs, runbooks) become pages below `repository/`, and links to them are changed.
- Links to other files of the repository become plain text, because the site does not contain these files.
  A link to a file that does not exist fails the build, as `--strict` makes every warning an error.
- Mermaid diagrams become SVG pictures, so that the site needs no script from another host.
- A page that would load anything from another host fails the build.
"""

from __future__ import annotations

import base64
import html
import logging
import os
import re
from pathlib import Path
from typing import Any, Final

import mmdr
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = "docs/"
PREFIX: Final = "repository/"
PAGES_OUTSIDE: Final = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "charts/tidelog/README.md",
    "charts/tidelog/rules/README.md",
    "charts/tidelog/runbooks/*.md",
    "deploy/*/README.md",
    "deploy/helm/*/README.md",
    "services/tidelog/*/README.md",
    "tests/*/README.md",
)
LINK: Final = re.compile(r"(?<!!)\[(?P<text>[^\]\[]*(?:\[[^\]]*\][^\]\[]*)*)\]\((?P<target>[^)\s]+)\)")
CODE: Final = re.compile(r"^(`{3,}).*?^\1$|`[^`\n]+`(?!\])", re.MULTILINE | re.DOTALL)
EXTERNAL: Final = re.compile(
    r"""<(?:script|img|iframe|link(?=[^>]*\brel="?stylesheet))\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^"'\s>]+"""
)
log: Final = logging.getLogger("mkdocs.hooks.tidelog")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Sets the options that YAML cannot express: functions for diagrams and for GitHub's anchors."""
    fence = {"name": "mermaid", "class": "mermaid", "format": picture}
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": [fence]}
    config.mdx_configs["toc"] = {"permalink": True, "slugify": slugify(case="lower")}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages outside docs/."""
    for path in outside_pages():
        files.append(File.generated(config, PREFIX + path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Changes the links of a page to what they point to in the site."""
    source = page.file.src_uri
    path = source.removeprefix(PREFIX) if source.startswith(PREFIX) else DOCS + source
    kept: list[str] = []

    def keep(match: re.Match[str]) -> str:
        kept.append(match[0])
        return f"\0{len(kept) - 1}\0"

    changed = LINK.sub(lambda match: _link(match, path, source), CODE.sub(keep, markdown))
    return re.sub("\0(\\d+)\0", lambda match: kept[int(match[1])], changed)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Warns of a page that would load something from another host."""
    for found in EXTERNAL.findall(output):
        log.warning("%s loads from another host: %s", page.file.src_uri, found)
    return output


def outside_pages() -> list[str]:
    """Returns the paths of the pages outside docs/, relative to the repository."""
    return sorted(str(path.relative_to(ROOT)) for glob in PAGES_OUTSIDE for path in ROOT.glob(glob))


def picture(source: str, *_: Any, **__: Any) -> str:
    """Returns a Mermaid diagram as an image. Raises ValueError if the diagram has an error."""
    svg = mmdr.render(source).svg()
    data = base64.b64encode(svg.encode()).decode()
    return f'<p><img class="diagram" alt="{html.escape(source)}" src="data:image/svg+xml;base64,{data}"></p>'


def _link(match: re.Match[str], path: str, source: str) -> str:
    target, _, anchor = match["target"].partition("#")
    if not target or re.match(r"[a-z]+:", target):
        return match[0]
    wanted = os.path.normpath(os.path.join(os.path.dirname(path), target))  # noqa: PTH118, PTH120
    in_site = _site_path(wanted)
    if in_site is None:
        if not (ROOT / wanted).exists():
            log.warning("%s links to %s, which does not exist", path, target)
        return match["text"]
    relative = os.path.relpath(in_site, os.path.dirname(source))  # noqa: PTH120
    return f"[{match['text']}]({relative}{'#' + anchor if anchor else ''})"


def _site_path(path: str) -> str | None:
    """Returns where the site contains a file of the repository; None if it does not contain the file."""
    for candidate in (path, f"{path}/README.md"):
        if candidate.startswith(DOCS) and (ROOT / candidate).is_file():
            return candidate.removeprefix(DOCS)
        if candidate in outside_pages():
            return PREFIX + candidate
    return None
