"""For mkdocs: links to files of the repository outside docs/ lead to the repository."""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"\]\((?:\.\./)+((?:README|CONTRIBUTING|CHANGELOG|LICENSE|tests/)[^)]*)\)")


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """Called for each page, before its Markdown is read."""
    return _OUTSIDE.sub(lambda match: f"]({config.repo_url}/blob/main/{match[1]})", markdown)
