"""`resil init`: a commented resil.toml and the cron folder, without asking anything."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from resilience.actions.project import Project
from resilience.actions.submit_script import read_own_script
from resilience.errors import UsageError
from resilience.quantities import quote_toml
from resilience.rendering.directives import parse_directives
from resilience.settings.load import FILE_NAME
from resilience.system.files import make_folder, write_atomic
from resilience.system.shipped import shipped_folder

_NOT_SETTINGS = frozenset({"array", "dependency", "comment", "signal", "job-name", "output", "error", "open-mode"})
"""Directives that resil writes itself, or that belong to one submit."""


@dataclass(frozen=True, slots=True)
class Initialized:
    """What was written, and what of the script could not be taken over."""

    written: tuple[Path, ...]
    kept: tuple[Path, ...]
    notes: tuple[str, ...]


def init(project: Project, *, folder: Path, source: Path | None, force: bool) -> Initialized:
    """Write resil.toml and cron/ into a folder. What is there already is kept, unless forced.

    Raise UsageError if there is a resil.toml and `force` is not given, or the source is no batch script.
    """
    target = folder / FILE_NAME
    if target.exists() and not force:
        raise UsageError(f"{target} exists already", hint="look at it: resil config show; write a new one: --force")
    text, notes = compose_settings(folder.name, read_own_script(source) if source is not None else "")
    make_folder(folder, mode=0o755)
    write_atomic(target, text, mode=0o644)
    written, kept = [target], []
    shipped = shipped_folder("cron")
    for path in sorted(shipped.rglob("*")):
        destination = folder / "cron" / path.relative_to(shipped)
        if path.is_dir():
            make_folder(destination, mode=0o755)
        elif destination.exists():
            kept.append(destination)
        else:
            make_folder(destination.parent, mode=0o755)
            write_atomic(destination, path.read_bytes(), mode=0o755 if path.stat().st_mode & 0o100 else 0o644)
            written.append(destination)
    return Initialized(tuple(written), tuple(kept), notes)


def compose_settings(name: str, script: str) -> tuple[str, tuple[str, ...]]:
    """The text of a commented resil.toml, and notes about directives that were left out. Pure."""
    options: dict[str, str | None] = {}
    notes: list[str] = []
    if script:
        options = dict(parse_directives(script).options)
        notes = [f"--{key} is left to resil or to each submit" for key in sorted(options) if key in _NOT_SETTINGS]
    run = options.get("job-name") or name
    lead = _lead(options.get("signal") or "")
    array = options.get("array") or "10"
    sbatch = [
        f"{key} = {'true' if value is None else quote_toml(value)}"
        for key, value in options.items()
        if key not in _NOT_SETTINGS
    ]
    return _TEMPLATE.format(
        run=quote_toml(run.strip()),
        array=quote_toml(array),
        lead=quote_toml(lead),
        sbatch="\n".join(sbatch) if sbatch else _SBATCH_EXAMPLE,
    ), tuple(notes)


def _lead(signal: str) -> str:
    _, _, lead = signal.partition("@")
    return f"{lead}s" if lead.isdigit() else "5m"


_SBATCH_EXAMPLE = """\
# partition = "gpu"
# account = "project-123"
# nodes = 4
# gpus-per-node = 8
# cpus-per-task = 16
# exclusive = true
time = "20:00:00\""""

_TEMPLATE = """\
# Settings of resil. What is commented out shows the default, or an example.
# Every setting: docs/reference/settings.md; check this file: resil config check

[run]
name = {run}
# The training, as you would type it in a shell. It must resume from its last checkpoint by itself.
command = "python train.py"
# How it is launched: python, srun, torchrun, accelerate, deepspeed, container. See: resil templates
template = "python"
# Shell lines before the launch.
# setup = ["module load cuda", "source .venv/bin/activate"]
# Where the run keeps its state: must be on a file system that all nodes share.
# state_dir = ".resil"
# Colleagues of this Unix group may stop the run by its switch files.
# group = "my-group"

[submit]
# Ten jobs, one after another.
array = {array}
# This long before the time limit, the batch shell tells the run to save and stop.
signal_lead_s = {lead}

[sbatch]
# Any long option of sbatch.
{sbatch}

[environment]
# Exported before the launch. No secrets here: scripts can be read by others.
# NCCL_DEBUG = "WARN"

[template]
# Variables of the template; `resil templates NAME` lists them.
# gpus_per_node = 8
"""
