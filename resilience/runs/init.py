"""`resil init`: writes a commented resil.toml and the cron directory, without prompts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from resilience.errors import UsageError
from resilience.messages import cut
from resilience.quantities import parse_slurm_time_s, quote_toml
from resilience.runs.project import run_name_from
from resilience.runs.submit_plan import read_own_script
from resilience.runs.templates.directives import parse_directives
from resilience.runs.templates.launches import Launch, training_of
from resilience.settings.load import FILE_NAME
from resilience.submission import ArrayExpression, expected_form, serial_array, split_signal
from resilience.system.files import make_directory, shipped_directory, write_atomic

_TAKEN_ELSEWHERE = frozenset({"array", "job-name", "signal"})
"""Of the directives below, those that become `name`, `array` and `signal_lead_s`."""

_NOT_SETTINGS = frozenset(
    {"array", "dependency", "comment", "signal", "job-name", "output", "error", "open-mode"}
    | {"parsable", "test-only", "wait", "wrap", "begin", "hold"}
)
"""Directives that resil writes itself, or that belong to a single submit."""
_OPTION = re.compile(r"[a-z][a-z0-9-]*")
_PROGRAM = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Initialized:
    """The files written and kept, and notes about what was guessed or left out."""

    written: tuple[Path, ...]
    kept: tuple[Path, ...]
    notes: tuple[str, ...]


def init(*, directory: Path, source: Path | None, force: bool) -> Initialized:
    """Write resil.toml and cron/ into a directory. Existing files are kept; `force` overwrites resil.toml.

    Raise UsageError if a source is given for a resil.toml that is kept, or if the source is not a batch script.
    """
    target = directory / FILE_NAME
    is_kept = os.path.lexists(target) and not force
    if is_kept and source is not None:
        raise UsageError(f"{target} already exists", hint="show it: resil config show; overwrite it: --force")
    text, notes = compose_settings(directory.name, read_own_script(source) if source is not None else "")
    make_directory(directory, mode=0o755)
    if not is_kept:
        write_atomic(target, text, mode=0o644)
    written, kept = ([], [target]) if is_kept else ([target], [])
    shipped = shipped_directory("cron")
    for path in sorted(shipped.rglob("*")):
        destination = directory / "cron" / path.relative_to(shipped)
        if path.is_dir():
            make_directory(destination, mode=0o755)
        elif destination.exists():
            kept.append(destination)
        else:
            make_directory(destination.parent, mode=0o755)
            content = path.read_bytes()
            write_atomic(destination, content, mode=0o755 if is_program(path.name, content) else 0o644)
            written.append(destination)
    return Initialized(tuple(written), tuple(kept), notes)


def is_program(name: str, content: bytes) -> bool:
    """Return whether a shipped file is an executable: with a `#!` line, and a name that run-parts(8) accepts. Pure.

    The mode does not count: installers of wheels may change it. A batch script, which sbatch reads, is not an
    executable.
    """
    return content.startswith(b"#!") and _PROGRAM.fullmatch(name) is not None


def compose_settings(name: str, script: str) -> tuple[str, tuple[str, ...]]:
    """Return the text of a commented resil.toml, and notes about directives that were left out. Pure."""
    options = dict(parse_directives(script).options)
    notes: list[str] = []
    launch = training_of(script)
    if script:
        left = sorted(key for key in options if key in _NOT_SETTINGS - _TAKEN_ELSEWHERE)
        if left:
            notes.append(f"left out, because resil or each submit sets them: {', '.join(f'--{key}' for key in left)}")
        notes += _launch_notes(launch, options)
    run = run_name_from((options.get("job-name") or name).strip())
    lead = _lead(options.get("signal") or "")
    sbatch = []
    for key, value in options.items():
        if key not in _NOT_SETTINGS:
            refusal = _refusal(key, value)
            if refusal:
                notes.append(f"{key!r} was left out: {refusal}")
            else:
                sbatch.append(f"{key} = {'true' if value is None else quote_toml(value)}")
    return _TEMPLATE.format(
        run=quote_toml(run),
        command=quote_toml((launch.command if launch is not None else "") or _COMMAND_EXAMPLE),
        template=quote_toml(launch.template if launch is not None else "python"),
        array=quote_toml(_array(options.get("array") or "")),
        lead=quote_toml(lead),
        per_node=f"gpus_per_node = {launch.per_node}" if launch and launch.per_node else "# gpus_per_node = 8",
        sbatch="\n".join(sbatch) if sbatch else _SBATCH_EXAMPLE,
    ), tuple(notes)


def _launch_notes(launch: Launch | None, options: Mapping[str, str | None]) -> list[str]:
    """Return notes about the command and the template that were guessed from a script."""
    if launch is None:
        return ["no line of the script starts Python or a launcher: set command, template and setup"]
    line = cut(" ".join(launch.line.split()), 100)
    notes = [f"template {launch.template} was taken from: {line}"]
    if not launch.command:
        notes.append("command is still the example: set it to the command of the script, and its modules as setup")
    elif "$" in launch.command:
        notes.append("command uses shell variables: set them in setup, with the modules of the script")
    else:
        notes.append("check the command, and put the modules of the script into setup")
    if launch.in_all and not {"ntasks", "ntasks-per-node"} & set(options):
        notes.append(
            f"left out of the launch: {launch.in_all}; set the processes per node: gpus_per_node in [template]"
        )
    if launch.left_out:
        notes.append(f"left out of the launch: {cut(launch.left_out, 80)}; set {launch.template}_args in [template]")
    if launch.wrapper:
        notes.append(f"left out of the launch: {cut(launch.wrapper, 60)}; activate its environment in setup")
    nodes = options.get("nodes") or "1"
    if launch.template == "python" and nodes.partition("-")[0].strip() != "1":
        notes.append(f"{nodes} nodes and one process: the other nodes would be idle; set template or nodes")
    return notes


def _array(directive: str) -> str:
    """Return a script's array in the form of [submit], where a bare number is the number of jobs."""
    try:
        expression = ArrayExpression.parse(directive)
        text = "1" if expression.count == 1 else directive.strip()
        serial_array(text)
    except UsageError:
        return "10"
    return text


def _lead(signal: str) -> str:
    try:
        return f"{split_signal(signal)[1]}s" if "@" in signal else "5m"
    except UsageError:
        return "5m"


def _refusal(key: str, value: str | None) -> str:
    """Return why a directive cannot become a line of [sbatch]; empty if it can."""
    if _OPTION.fullmatch(key) is None:
        return "it is not an option of sbatch"
    if any(not character.isprintable() for character in value or ""):
        return "its value contains a control character"
    if value is not None and (form := expected_form(key, value)):
        return f"{value!r} is not {form}"
    if key == "time":
        try:
            parse_slurm_time_s(value or "")
        except UsageError as error:
            return error.message
    return ""


_COMMAND_EXAMPLE = "python train.py"

_SBATCH_EXAMPLE = """\
# partition = "gpu"
# account = "project-123"
# nodes = 4
# gpus-per-node = 8
# cpus-per-task = 16
# exclusive = true
time = "20:00:00\""""

_TEMPLATE = """\
# Settings of resil. A line commented out shows the default, or an example.
# Every setting: resil config show; check this file: resil config check

[run]
name = {run}
# The training, as you would type it in a shell. It resumes from its last checkpoint by itself, and calls the guard once
# per step (from resilience.guard import TrainingGuard).
command = {command}
# How it is launched: python, srun, torchrun, accelerate, deepspeed, container. See: resil templates
template = {template}
# Shell lines before the launch.
# setup = ["module load cuda", "source .venv/bin/activate"]
# Where the run keeps its state: must be on a file system that all nodes share.
# state_dir = ".resil"
# Colleagues of this Unix group may stop the run by its switch files.
# group = "my-group"

[submit]
# As `resil submit --array`: 10 means ten jobs, one after another.
array = {array}
# This long before the time limit, the batch shell requests the run to save and stop.
signal_lead_s = {lead}

[act]
# After three attempts in a row that failed without a new checkpoint, hold the queued jobs and tell, instead of burning
# them: `resil breaker`. Without this, it is only told.
enabled = true
# failures = 3
# Jobs that stay queued behind the running one.
# keep_queued = 2

[nodes]
# Check the nodes of a job before the launch: `resil nodes check`.
# preflight = true
# mounts = ["/scratch"]
# Projects, and people, that know of each other's bad nodes: `resil nodes`.
# evidence = "~/nodes"

[guard]
# When the training saves and stops by itself.
# host_memory_percent = 95
# first_save_s = "2m"
# signals = ["USR1", "TERM"]

[checkpoints]
# Where the training saves; `resil ckpt list` shows them, `resil watch ckpt` watches them.
# path = "checkpoints"
# latest = 2
# For a training that names them itself: the pattern, or the file in which it names the newest.
# pattern = "checkpoint-{{step}}"
# tracker = "latest_checkpointed_iteration.txt"

[watch]
# The checks of `resil watch --all`. Each has a table of its own: [watch.ckpt], [watch.fs], [watch.inodes] ...
# checks = ["ckpt", "fs", "inodes", "job", "log", "nodes", "ranks"]

[alert]
# Where to send a notification when a watchdog finds a problem; see also: resil alert test
# channels = ["email"]
# escalation = ["1h: list"]
# quiet_hours = "22:00-07:00"

# [channel.email]
# to = ["you@example.org"]
# host = "smtp.example.org"
# Secrets are files of mode 0600, never settings.
# password_file = "~/.config/resil/smtp-password"

[cron]
# The driver that runs the jobs in cron/ after `resil cron install`: the first of these that works here, unless one is
# named: scrontab, crontab, systemd, slurm (a small job that queues its successor), foreground.
# backend = "auto"
# Options of sbatch for the scheduler's own job (backend slurm), and for cron/slurm/*. One CPU each, and no GPU.
# sbatch = {{ partition = "cpu", account = "project-123" }}
# Batch shells of trainings restart the scheduler when it is dead.
# revive = true
# A dead man's switch on another system: it notifies you when resil itself no longer can.
# ping_url_file = "~/.config/resil/ping-url"
# digest_at = "08:00"

[sbatch]
# Any long option of sbatch.
{sbatch}

[environment]
# Exported before the launch. No secrets here: scripts can be read by others.
# NCCL_DEBUG = "WARN"

[template]
# Variables of the template; `resil templates NAME` lists them.
{per_node}
"""
