"""The sbatch templates in sight: which there are, where each comes from, what it says about itself."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from resilience.errors import TemplateError

SUFFIX = ".sbatch.j2"
DOCUMENTATION = "# resil:"
"""Lines that begin so are a template's documentation. They are shown to people and left out of the script."""
BASE = "base"
"""What the others extend; not offered as a template of its own."""


@dataclass(frozen=True, slots=True)
class TemplateInfo:
    """One template file.

    Attributes:
        name: the file's name without `.sbatch.j2`.
        path: where it lies.
        origin: label of the folder it was found in: `project`, `user`, `shipped`.
        summary: first line of its documentation, or empty.
        documentation: all lines of it.
        shadowed: whether another of the same name wins.
    """

    name: str
    path: Path
    origin: str
    summary: str
    documentation: tuple[str, ...]
    shadowed: bool = False


@dataclass(frozen=True)
class TemplateLibrary:
    """Templates from several folders; those of an earlier folder win.

    Attributes:
        folders: label and path of each, for instance `("project", Path("slurm_templates"))`. Missing ones are empty.
        cache: where compiled templates are kept, which is three quarters of rendering; None for nowhere. What lies
            there is run as code: nobody else may write in it.
    """

    folders: Sequence[tuple[str, Path]]
    cache: Path | None = None

    def list(self) -> tuple[TemplateInfo, ...]:
        """Every template that can be rendered, sorted by name; of equal names the one that wins comes first.

        Raise TemplateError if one cannot be read.
        """
        found: dict[str, list[TemplateInfo]] = {}
        for origin, folder in self.folders:
            for path in sorted(folder.glob(f"*{SUFFIX}")):
                name = path.name.removesuffix(SUFFIX)
                if not name.startswith("_") and name != BASE:
                    same = found.setdefault(name, [])
                    documentation = read_documentation(_read(path))
                    summary = documentation[0] if documentation else ""
                    same.append(TemplateInfo(name, path, origin, summary, documentation, shadowed=bool(same)))
        return tuple(info for name in sorted(found) for info in found[name])

    def names(self) -> tuple[str, ...]:
        """The names of the templates, each once."""
        return tuple(dict.fromkeys(info.name for info in self.list()))

    def find(self, name: str) -> Path:
        """Given a name, with or without `.sbatch.j2`, return the file. Raise TemplateError with the nearest name."""
        bare = name.removesuffix(SUFFIX)
        path = self.locate(bare + SUFFIX)
        if path is not None and "/" not in bare:
            return path
        names = self.names()
        near = get_close_matches(bare, names, n=1)
        mean = f"did you mean {near[0]}? " if near else ""
        raise TemplateError(
            f"there is no template {bare!r}", hint=f"{mean}there are: {', '.join(names) or 'none at all'}"
        )

    def source(self, name: str) -> str:
        """The text of a template as its author wrote it. Raise TemplateError if there is none or it is unreadable."""
        return _read(self.find(name))

    def locate(self, file_name: str) -> Path | None:
        """Where a file that a template extends or includes lies; `shipped/python.sbatch.j2` names the folder as well.

        Return None if there is none. Only files that lie in the folders themselves are found.
        """
        wanted, _, bare = file_name.rpartition("/")
        if not bare or bare in (".", ".."):
            return None
        for origin, folder in self.folders:
            if wanted in ("", origin) and (folder / bare).is_file():
                return folder / bare
        return None

    def read(self, path: Path) -> str:
        """The text of one of the files found. Raise TemplateError if it cannot be read."""
        return _read(path)


def read_documentation(source: str) -> tuple[str, ...]:
    """Given a template's text, return its `# resil:` lines without the mark. For instance, `("One process.",)`."""
    lines = (line for line in source.splitlines() if line.startswith(DOCUMENTATION))
    return tuple(line.removeprefix(DOCUMENTATION).strip() for line in lines)


def _read(path: Path) -> str:
    try:
        # Whoever may write a template runs code as whoever submits it.
        if path.stat().st_mode & stat.S_IWOTH:
            raise TemplateError(f"{path} can be written by everybody", hint=f"chmod o-w {path}")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TemplateError(f"cannot read the template {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TemplateError(f"the template {path} is not UTF-8 text: {error.reason}") from error
