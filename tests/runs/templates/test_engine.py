"""Compiled templates are kept, and never stand in for a template that has changed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from resilience.errors import TemplateError
from resilience.runs.templates.script import TemplateLibrary, render_template, variables_of


@pytest.fixture
def library(tmp_path: Path) -> TemplateLibrary:
    folder, cache = tmp_path / "slurm_templates", tmp_path / "cache"
    folder.mkdir()
    cache.mkdir()
    (folder / "mine.sbatch.j2").write_text("#!/bin/bash\necho {{ lr }}\n")
    return TemplateLibrary((("project", folder),), cache)


def test_a_compiled_template_is_kept_and_gives_the_same_text(library: TemplateLibrary) -> None:
    first = render_template(library, "mine.sbatch.j2", {"lr": "it's"})
    assert library.cache is not None
    (kept,) = library.cache.iterdir()
    before = kept.stat().st_mtime_ns

    assert render_template(library, "mine.sbatch.j2", {"lr": "it's"}) == first
    assert render_template(TemplateLibrary(library.folders), "mine.sbatch.j2", {"lr": "it's"}) == first
    assert kept.stat().st_mtime_ns == before, "compiled once"


def test_values_are_quoted_by_a_kept_template_as_by_a_fresh_one(library: TemplateLibrary) -> None:
    render_template(library, "mine.sbatch.j2", {"lr": "plain"})
    assert "'$(id)'" in render_template(library, "mine.sbatch.j2", {"lr": "$(id)"})


def test_a_template_that_was_edited_is_compiled_anew(library: TemplateLibrary) -> None:
    render_template(library, "mine.sbatch.j2", {"lr": "1"})
    (library.folders[0][1] / "mine.sbatch.j2").write_text("#!/bin/bash\ntrain {{ lr }}\n")
    assert "train 1" in render_template(library, "mine.sbatch.j2", {"lr": "1"})


def test_an_undefined_variable_is_named_from_the_cache_too(library: TemplateLibrary) -> None:
    render_template(library, "mine.sbatch.j2", {"lr": "1"})
    with pytest.raises(TemplateError, match="'lr' is not given"):
        render_template(library, "mine.sbatch.j2", {})


def test_damaged_leftovers_in_the_cache_are_compiled_over(library: TemplateLibrary) -> None:
    text = render_template(library, "mine.sbatch.j2", {"lr": "1"})
    assert library.cache is not None
    for path in library.cache.iterdir():
        path.write_bytes(b"\0garbage")
    assert render_template(library, "mine.sbatch.j2", {"lr": "1"}) == text


def test_the_variables_that_a_template_asks_for(library: TemplateLibrary) -> None:
    assert "lr" in variables_of(library, "mine.sbatch.j2")


def test_a_cache_on_a_full_disk_costs_time_and_no_submit(library: TemplateLibrary, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root (sudo make test)")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    try:
        with pytest.raises(OSError, match="No space left"):
            (disk / "ballast").write_bytes(b"x" * 65536)
        full = TemplateLibrary(library.folders, disk)
        assert "echo 1" in render_template(full, "mine.sbatch.j2", {"lr": "1"})
    finally:
        subprocess.run(["umount", disk], check=True)
