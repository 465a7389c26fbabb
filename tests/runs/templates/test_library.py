"""Which templates there are, and which of two wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.errors import TemplateError
from resilience.runs.templates.script import TemplateLibrary
from tests.runs.templates.batch import SHIPPED


@pytest.fixture
def library(tmp_path: Path) -> TemplateLibrary:
    for origin in ("project", "user"):
        (tmp_path / origin).mkdir()
    return TemplateLibrary((("project", tmp_path / "project"), ("user", tmp_path / "user"), ("gone", tmp_path / "no")))


def put(library: TemplateLibrary, origin: str, name: str, text: str = "#!/bin/sh\n") -> Path:
    path = dict(library.folders)[origin] / name
    path.write_text(text)
    return path


def test_the_shipped_ones_are_those_of_the_launchers() -> None:
    assert SHIPPED.names() == ("accelerate", "container", "deepspeed", "python", "srun", "torchrun")


def test_an_earlier_folder_wins_and_the_other_is_marked(library: TemplateLibrary) -> None:
    put(library, "project", "a.sbatch.j2", "# resil: Mine.\n# resil:\n# resil: More of it.\n")
    put(library, "user", "a.sbatch.j2")
    put(library, "user", "b.sbatch.j2")
    assert [(info.name, info.origin, info.shadowed) for info in library.list()] == [
        ("a", "project", False),
        ("a", "user", True),
        ("b", "user", False),
    ]
    first = library.list()[0]
    assert first.summary == "Mine."
    assert first.documentation == ("Mine.", "", "More of it.")
    assert library.source("a").startswith("# resil: Mine.")
    assert library.source("a.sbatch.j2") == library.source("a")


def test_helpers_and_the_base_are_not_offered(library: TemplateLibrary) -> None:
    for name in ("_helper.sbatch.j2", "base.sbatch.j2", "notes.txt"):
        put(library, "user", name)
    assert library.names() == ()


@pytest.mark.parametrize("name", ["../project/a", "/etc/passwd", "user/../a", ".."])
def test_a_name_does_not_lead_out_of_the_folders(library: TemplateLibrary, name: str) -> None:
    put(library, "project", "a.sbatch.j2")
    with pytest.raises(TemplateError, match="there is no template"):
        library.source(name)


def test_a_template_that_everybody_may_write_is_refused(library: TemplateLibrary) -> None:
    put(library, "user", "a.sbatch.j2").chmod(0o666)
    with pytest.raises(TemplateError, match="can be written by everybody"):
        library.source("a")


def test_a_template_that_is_no_text_is_said_to_be_none(library: TemplateLibrary) -> None:
    (dict(library.folders)["user"] / "a.sbatch.j2").write_bytes(b"\xff\xfe")
    with pytest.raises(TemplateError, match="is not UTF-8 text"):
        library.source("a")
