"""Links of the package on an index, all made from one address that the owner fills in.

The README's links and images are relative to the repository, and lead nowhere where an index
shows it. With an address they become whole; without one their words stay and the links go.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?!https?:|#)(?P<path>[^)\s]+)\)")
PAPER = "https://arxiv.org/abs/2601.13572"


class LinksHook(MetadataHookInterface):
    """Fills in ``readme`` and ``urls``."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        repository = self.config["repository"].rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_whole_links(text, repository),
        }
        metadata["urls"] = urls(repository)


def urls(repository: str) -> dict[str, str]:
    """The project's addresses; without a repository the paper's alone."""
    if not repository:
        return {"Paper": PAPER}
    return {
        "Repository": repository,
        "Documentation": f"{repository}/tree/main/docs",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Issues": f"{repository}/issues",
        "Paper": PAPER,
    }


def with_whole_links(text: str, repository: str) -> str:
    """The text with every relative link led to the repository, or taken out without one."""

    def whole(link: re.Match[str]) -> str:
        image, words, path = link["image"], link["text"], link["path"]
        if not repository:
            return f"*{words}*" if image else words
        kind = "raw" if image else "blob"
        return f"{image}[{words}]({repository}/{kind}/main/{path})"

    return LINK.sub(whole, text)
