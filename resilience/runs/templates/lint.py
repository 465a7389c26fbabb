"""Finds errors in a batch script and its options before the script is queued. Pure.

SLURM fails such jobs without a message, or days later.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from resilience.errors import ResilError
from resilience.messages import cut, nearest
from resilience.quantities import parse_slurm_time_s
from resilience.runs.templates.directives import Directives, option_of, parse_directives
from resilience.submission import SBATCH_OPTIONS, ArrayExpression, expected_form, split_signal

SIGNAL_SLACK_S = 60
"""SLURM checks time limits every 30 s, and may send the signal up to 60 s early (sbatch(1), --signal)."""


_CONTAINER_PLUGINS = ("container-", "no-container-")
"""The options of pyxis (https://github.com/NVIDIA/pyxis), which many sites have."""
MAX_NAME_BYTES = 1024
"""The longest name that slurmctld accepts (_test_strlen in job_mgr.c, 22.05)."""


class Severity(StrEnum):
    """REFUSE: the job cannot work. WARN: the option is probably a mistake."""

    REFUSE = "refuse"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class LintFinding:
    """One finding: the problem and a hint."""

    severity: Severity
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFacts:
    """Facts about the system. The defaults mean unknown, and cause no finding.

    Attributes:
        run: the run's name.
        run_dir_owner: name of the run that the run directory already belongs to.
        state_dir: where run directories are kept.
        state_dir_is_node_local: whether other nodes cannot see it.
        shut_out: the group of Unix that is to operate the run, and cannot, as its directory is private from before.
        max_array_size: MaxArraySize of the cluster; the largest index is one less.
        measured_save_s: how long the slowest save of this run took.
        stop_after_s: when the attempt is to end without a time limit ([guard] stop_after); 0: not at all.
        missing_directories: directories of output files that do not exist.
        signal_slack_s: how much earlier than its lead a signal may come; the embedded scheduler is exact.
        sbatch_environment: names of the `SBATCH_*` variables that are set.
        unknown_variables: message and hint for each key of [template] that the template does not know.
        has_one_process: whether the template starts one process, on the first node, which starts no others.
    """

    run: str = ""
    run_dir_owner: str = ""
    state_dir: str = ""
    state_dir_is_node_local: bool = False
    shut_out: str = ""
    max_array_size: int | None = None
    measured_save_s: float | None = None
    stop_after_s: float = 0.0
    missing_directories: tuple[str, ...] = ()
    signal_slack_s: int = SIGNAL_SLACK_S
    sbatch_environment: tuple[str, ...] = ()
    unknown_variables: tuple[tuple[str, str], ...] = ()
    has_one_process: bool = False


@dataclass(frozen=True, slots=True)
class _Case:
    script: str
    directives: Directives
    options: Mapping[str, str | None]
    """Directives and command line together; the command line wins, as with sbatch."""
    given: frozenset[str]
    """Names of the options on the command line."""
    facts: LintFacts

    def text(self, name: str) -> str:
        return self.options.get(name) or ""


def lint(script: str, options: Mapping[str, str | None], facts: LintFacts) -> tuple[LintFinding, ...]:
    """Return the findings for a batch script and its command line options, the worst first."""
    directives = parse_directives(script)
    case = _Case(script, directives, {**dict(directives.options), **options}, frozenset(options), facts)
    findings = [finding for rule in RULES for finding in rule(case)]
    return tuple(sorted(findings, key=lambda finding: finding.severity is Severity.WARN))


def _refuse(message: str, hint: str = "") -> LintFinding:
    return LintFinding(Severity.REFUSE, message, hint)


def _warn(message: str, hint: str = "") -> LintFinding:
    return LintFinding(Severity.WARN, message, hint)


def _form(case: _Case) -> Iterator[LintFinding]:
    if not case.script.startswith("#!"):
        yield _refuse("the script does not begin with #!, so sbatch refuses it", "make its first line #!/bin/bash")
    if case.directives.crlf:
        yield _refuse("the script has DOS line ends (CRLF), so sbatch refuses it", "sed -i 's/\\r$//' SCRIPT")
    for line in case.directives.late:
        yield _warn(f"{line!r} comes after the first command: sbatch ignores it", "move it to the top")
    for problem in case.directives.problems:
        yield _warn(f"sbatch may refuse the directive {problem}")


def _time(case: _Case) -> Iterator[LintFinding]:
    value = case.text("time")
    if not value:
        return
    try:
        parse_slurm_time_s(value)
    except ResilError as error:
        yield _refuse(f"--time: {error.message}", error.hint)


def _time_limit_s(case: _Case) -> int | None:
    try:
        return parse_slurm_time_s(case.text("time")) if case.text("time") else None
    except ResilError:
        return None


def _signal(case: _Case) -> Iterator[LintFinding]:
    value = case.text("signal")
    if not value:
        return
    flags, colon, _ = value.rpartition(":")
    try:
        name, lead_s = split_signal(value)
    except ResilError as error:
        yield _refuse(f"--signal: {error.message}", error.hint)
        return
    limit_s = _time_limit_s(case)
    if limit_s is not None and lead_s >= limit_s - case.facts.signal_slack_s:
        yield _refuse(
            f"--signal={value} with a time limit of {limit_s} s would be sent as soon as the job begins "
            f"{_early(case.facts.signal_slack_s)}, perhaps before the job can catch it",
            f"choose a lead well below {limit_s} s, or a longer --time",
        )
    stop_after_s = case.facts.stop_after_s
    if 0 < stop_after_s <= lead_s:
        yield _warn(
            f"stop_after of {stop_after_s:g} s is no longer than the lead of {lead_s} s, so the training is requested "
            "to stop as soon as it starts",
            f"set stop_after in [guard] well above {lead_s} s, or a shorter signal_lead_s in [submit]",
        )
    saving_s = case.facts.measured_save_s
    if saving_s is not None and lead_s < saving_s:
        yield _warn(
            f"--signal={value} leaves {lead_s} s, but a save of this run took {saving_s:.0f} s",
            f"choose a lead of at least {2 * saving_s:.0f} s",
        )
    if "B" not in flags.upper() and _traps(case.script, name):
        yield _warn(
            f"--signal={value} goes to srun's tasks only; the trap for {name} in the script will never run",
            f"write B:{value.removeprefix('R:')}",
        )
    if colon and "B" in flags.upper() and not _traps(case.script, name) and "exec " not in case.script:
        yield _warn(
            f"--signal={value} goes to the batch shell alone, which has no trap for {name} and would be killed by it",
            f"add a trap for {name} and wait for the training in the background, or use one of resil's templates",
        )


def _early(slack_s: int) -> str:
    return f"(it may come up to {slack_s} s early)" if slack_s else "(it comes exactly then)"


def _traps(script: str, signal: str) -> bool:
    bare = signal.removeprefix("SIG")
    lines = (line.split("#")[0] for line in script.splitlines())
    return any("trap " in line and (bare in line or '"$resil_signal"' in line) for line in lines)


def _array(case: _Case) -> Iterator[LintFinding]:
    if "array" not in case.options:
        return
    value = case.text("array")
    try:
        array = ArrayExpression.parse(value)
    except ResilError as error:
        yield _refuse(f"--array: {error.message}" if value else "--array is empty", error.hint or "write 1-10%1")
        return
    limit = case.facts.max_array_size
    if limit is not None and array.largest > limit - 1:
        yield _refuse(
            f"--array={value}: this cluster allows indices up to {limit - 1} (MaxArraySize={limit})",
            f"write for instance 1-{limit - 1}%1, and queue the next array behind it",
        )
    if value.strip() == "0":
        yield _warn("--array=0 is one task, with index 0", "for ten tasks one after another: --array 10")
    output = case.text("output")
    if array.count > 1 and output and not any(mark in output for mark in ("%j", "%J", "%a", "%A_")):
        yield _warn(f"all tasks of the array write to {output}", "put %A_%a (array and task) or %j (job) into --output")


def _dependency(case: _Case) -> Iterator[LintFinding]:
    value = case.text("dependency")
    for part in value.replace("?", ",").split(","):
        if part.strip().split("_")[0].isdigit():
            yield _warn(
                f"--dependency={value} has no type: SLURM reads it as afterany, so the job starts even after a failure",
                f"write afterany:{part.strip()}, or afterok:{part.strip()} to require success",
            )


def _names(case: _Case) -> Iterator[LintFinding]:
    """Only warn: a plugin of the site or a newer SLURM may have the option; sbatch accepts abbreviated names."""
    for name in case.options:
        is_known = any(known.startswith(name) for known in SBATCH_OPTIONS) or name.startswith(_CONTAINER_PLUGINS)
        if not is_known:
            near = nearest(name, sorted(SBATCH_OPTIONS), cutoff=0.6)
            yield _warn(f"sbatch has no option --{cut(name, 60)}, unless a plugin of this site adds it",
                        f"did you mean --{near}?" if near else "sbatch --help")  # fmt: skip


def _variables(case: _Case) -> Iterator[LintFinding]:
    """Only warn: `submit --template` may name another template for once."""
    for message, hint in case.facts.unknown_variables:
        yield _warn(f"[template] in resil.toml: {message}", hint)


def _values(case: _Case) -> Iterator[LintFinding]:
    for name, value in case.options.items():
        if value is not None and (form := expected_form(name, value)):
            yield _refuse(f"--{name}={cut(value, 60)} is not {form}", f"see --{name} in: man sbatch")


def _requeue(case: _Case) -> Iterator[LintFinding]:
    if "requeue" in case.options and case.text("open-mode") != "append":
        yield _warn("a requeue truncates the output file", "add --open-mode=append")


def _nodes(case: _Case) -> Iterator[LintFinding]:
    least = case.text("nodes").partition("-")[0].strip()
    if case.facts.has_one_process and least.isdecimal() and int(least[:9]) > 1:
        yield _refuse(
            f"the template python starts one process, on the first of {cut(least, 9)} nodes: the others would be idle",
            "resil submit --template torchrun (or srun: one process per GPU); a program that starts the other nodes by "
            'itself goes into a shell script: command = "bash start.sh"',
        )


def _name(case: _Case) -> Iterator[LintFinding]:
    value = case.text("job-name")
    if any(ord(character) < 32 or ord(character) == 127 for character in value):
        yield _refuse(
            f"--job-name {cut(value, 100)!r} contains a line break or another control character", "use one word"
        )
    elif len(value.encode()) > MAX_NAME_BYTES:
        yield _refuse(f"--job-name {cut(value, 40)!r} has {len(value.encode())} bytes: SLURM refuses more than "
                      f"{MAX_NAME_BYTES}", "choose a shorter name")  # fmt: skip


def _directories(case: _Case) -> Iterator[LintFinding]:
    for directory in case.facts.missing_directories:
        yield _refuse(f"the output directory {directory} does not exist: SLURM fails such a job without a message",
                      f"mkdir -p {shlex.quote(directory)}")  # fmt: skip
    if case.facts.state_dir_is_node_local:
        yield _warn(
            f"the state directory {case.facts.state_dir} is on a local disk of this machine: other nodes cannot see it",
            "set state_dir in resil.toml to a directory on the shared file system",
        )
    if case.facts.shut_out:
        yield _warn(
            f"run {case.facts.run} was first submitted without a group and stays private: group "
            f"{case.facts.shut_out} cannot stop it",
            "submit a new run for the group: --run NAME, in a state_dir that the group can enter",
        )
    owner = case.facts.run_dir_owner
    if owner and case.facts.run and owner != case.facts.run:
        yield _refuse(
            f"the run directory already belongs to the run {owner!r}, not to {case.facts.run!r}",
            "two runs in one directory would react to each other's switches: use another name or state_dir",
        )


def _environment(case: _Case) -> Iterator[LintFinding]:
    directives = set(dict(case.directives.options))
    for variable in case.facts.sbatch_environment:
        option = option_of(variable)
        if option is None or option in case.given:
            continue
        if option in directives:
            yield _warn(
                f"{variable} is set in your environment and wins over the script's own --{option}",
                f"unset {variable}, or give --{option} on the command line, which wins over both",
            )
        else:
            yield _warn(
                f"{variable} is set in your environment and adds --{option}",
                f"unset {variable} if that is not intended",
            )


RULES: tuple[Callable[[_Case], Iterator[LintFinding]], ...] = (
    _form,
    _time,
    _signal,
    _array,
    _dependency,
    _names,
    _values,
    _variables,
    _requeue,
    _nodes,
    _name,
    _directories,
    _environment,
)
"""Every rule; each yields its findings."""
