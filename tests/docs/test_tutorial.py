"""The tutorial, typed as it stands on the embedded scheduler, ends with every watchdog OK."""

from __future__ import annotations

import sys

from tests.end_to_end import conftest
from tests.end_to_end.conftest import Shell
from tests.lab.tutorial import Typist

shell = conftest.shell
"""A project with the embedded scheduler."""


def test_the_tutorial_typed_as_it_stands_ends_with_every_watchdog_ok(shell: Shell) -> None:
    project = shell.directory.parent / "tiny"
    project.mkdir()
    python = project.parent / "bin"
    python.mkdir()
    (python / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (python / "python").chmod(0o755)
    shell.environment["PATH"] = f"{python}:{shell.environment['PATH']}"
    shell.directory = project

    def write(name: str, text: str) -> None:
        (project / name).write_text(text)

    last = Typist(lambda words: shell.resil(*words), write, project).type_all()
    assert any(line.startswith("JOB OK - tiny: finished") or "finished" in line for line in last), last
    assert any(line.startswith("LOG OK - ") for line in last), last
