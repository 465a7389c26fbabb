"""What `resil watch` does about a training that hangs: evidence into the run directory, then what `on_hang` says."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from resilience import layout
from resilience.base.processes import environment_of, parent_of
from resilience.errors import NoSuchJob, ProbeError, ResilError, SchedulerUnavailable
from resilience.finding import Finding, Report, Verdict
from resilience.job import JobId
from resilience.messages import cut
from resilience.quantities import format_duration
from resilience.runs.run_jobs import scheduler_of
from resilience.runs.submissions import read_intents
from resilience.system.files import read_regular
from resilience.system.stuck import ChildProbe, StuckMemory, probe_in_child
from resilience.watch.checks._log.reading import CONFIRMED, NO_PROGRESS, RANK_GONE, REQUEUE, RESTART_STEP, SAVE, TELL

if TYPE_CHECKING:
    from resilience.ranks.hangs import Hang
    from resilience.runs.project import Project
    from resilience.runs.run_directory import RunDirectory
    from resilience.watch.watchdogs import Watchdog

MOST_RUNS = 8
"""Runs whose evidence is collected in one tick, at the same time."""
ACT_S = 30.0
STEPS_S = 15.0
_TEXTS = {
    SAVE: "it was asked to save",
    RESTART_STEP: "its launch was ended, so that the next job goes on",
    REQUEUE: "its job was requeued",
}


def attend_hangs(project: Project, watchdogs: Sequence[Watchdog], reports: Sequence[Report]) -> list[Report]:
    """Return the reports; findings about trainings that hang begin with evidence, and with what was done. Never raises.

    In a child for each run: it reads a file system that may be what hangs.
    """
    deeds = {one.name: str(one.settings.on_hang) for one in watchdogs if hasattr(one.settings, "on_hang")}
    probes: dict[str, ChildProbe] = {}
    for report in reports:
        for finding in report.findings if report.check in deeds else ():
            if _is_hang(finding) and finding.run not in probes and len(probes) < MOST_RUNS:
                work = partial(_attend, project, finding.run, finding.summary, _deed(finding, deeds[report.check]))
                place = f"hang of {finding.run} in {project.loaded.state_dir}"
                probes[finding.run] = ChildProbe(place, work, _deadline_s())
    if not probes:
        return list(reports)
    said: dict[str, tuple[str, ...]] = {}
    for run, answer in probe_in_child(probes, StuckMemory.of(project.system), project.system.clock):
        error = answer.error
        said[run] = tuple(answer.value) if error is None else (f"no evidence was collected: {error.message}",)

    def with_evidence(finding: Finding) -> Finding:
        return replace(finding, evidence=(*said[finding.run], *finding.evidence)) if _is_hang(finding) else finding

    return [
        replace(one, findings=tuple(with_evidence(f) if f.run in said else f for f in one.findings))
        if one.check in deeds
        else one
        for one in reports
    ]


def _deadline_s() -> float:
    from resilience.ranks.hangs import EVIDENCE_S

    return EVIDENCE_S + ACT_S


def _is_hang(finding: Finding) -> bool:
    is_sure = finding.verdict in (Verdict.WARNING, Verdict.CRITICAL)
    return is_sure and bool(finding.run) and finding.fault in (NO_PROGRESS, RANK_GONE)


def _deed(finding: Finding, on_hang: str) -> str:
    return on_hang if finding.verdict is Verdict.CRITICAL and CONFIRMED in finding.looked else TELL


def _attend(project: Project, run: str, why: str, on_hang: str) -> list[str]:
    """Collect the evidence of a run's hang, act if that is due, and return lines about both."""
    from resilience.ranks.hangs import COOL_DOWN_S, record_hang

    directory = project.existing(run)
    try:
        hang = record_hang(project, directory, why)
    except NoSuchJob:
        return []  # without a guard there is only the log
    if hang is None:
        return [f"no new evidence: that of another hang is less than {format_duration(COOL_DOWN_S)} old"]
    did = act_upon_hang(project, directory, hang, on_hang)
    return [*([did] if did else []), *hang.message]


def act_upon_hang(project: Project, directory: RunDirectory, hang: Hang, on_hang: str) -> str:
    """Do what `on_hang` says about a hang that is confirmed, once, and return what was done, or would be.

    Not before its evidence is written, nor within COOL_DOWN_S after another hang, nor if a rank has moved meanwhile, or
    does something again, or saves, evaluates or starts. Raise StateDirectoryError if the run directory cannot be read.
    """
    from resilience.ranks.collect import running_beats
    from resilience.ranks.hangs import COOL_DOWN_S, is_recent
    from resilience.ranks.verdict import judge

    path, now = hang.page.with_suffix(".acted"), project.system.clock.now()
    if known := read_regular(path):
        with suppress(ValueError, KeyError, TypeError):
            return str(json.loads(known[0])["did"])
        return ""
    if on_hang == TELL or not hang.page.exists():
        return ""
    if not project.loaded.settings.act.enabled:
        return f"{_TEXTS[on_hang].replace(' was ', ' would be ')} if [act] were enabled"
    if is_recent(hang.page.parent.glob("*.acted"), now):
        return f"not acted upon: another hang was, less than {format_duration(COOL_DOWN_S)} ago"
    beats = [beat for beat in running_beats(directory, now) if beat.attempt == hang.attempt]
    ranks = [one for beat in beats for one in beat.ranks]
    if min((one.step for one in ranks), default=-1) != hang.step or {one.phase for one in ranks} - {"", "train"}:
        return "not acted upon: it goes on"
    found = judge(beats)
    if not found.is_witnessed:
        return "not acted upon: its ranks no longer show why it hangs"
    record: dict[str, Any] = {"time": now, "on_hang": on_hang, "by": project.system.host.user, "why": found.why,
                              "rank": next(iter(found.ranks), None), "host": next(iter(found.hosts), ""),
                              "did": _TEXTS[on_hang]}  # fmt: skip
    try:
        with open(path, "x", encoding="utf-8", opener=partial(os.open, mode=directory.file_mode)) as file:
            file.write(json.dumps(record) + "\n")
    except FileExistsError:  # another watchdog was faster
        return ""
    try:
        _ACTS[on_hang](project, directory, hang, f"it hangs at step {hang.step}: {cut(found.why, 200)}")
    except SchedulerUnavailable as error:
        path.unlink(missing_ok=True)
        return f"{on_hang} failed: {error.message}; the next tick tries again"
    except (ResilError, OSError) as error:
        path.write_text(json.dumps(record | {"did": f"{on_hang} failed: {error}"}) + "\n", encoding="utf-8")
        return f"{on_hang} failed: {error}"
    return str(record["did"])


def _save(project: Project, directory: RunDirectory, hang: Hang, why: str) -> None:
    from resilience.runs.switches import set_switch
    from resilience.switch import Scope

    set_switch(project, directory, layout.SAVE_SWITCH, why=why, scope=Scope.JOB)


def _requeue(project: Project, directory: RunDirectory, hang: Hang, why: str) -> None:
    project.scheduler(scheduler_of(read_intents(directory))).requeue(JobId.parse(hang.job))


_OVER = re.compile(r"Invalid job id specified|already completing or completed")
"""What scancel says of a step that has ended since squeue named it."""


def _restart_step(project: Project, directory: RunDirectory, hang: Hang, why: str) -> None:
    """End the steps of the job: only SIGKILL ends a process that is stopped or holds the GIL. The batch shell records
    the end, and the next job goes on."""
    if scheduler_of(read_intents(directory)) != "slurm":
        here = project.system.host.name.partition(".")[0]
        ours = [pid for host, pid in hang.pids if host.partition(".")[0] == here and _is_of_run(pid, directory)]
        if not ours:
            raise ProbeError(f"no process on {here} is known to be a rank of {hang.run}")
        for pid in ours:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        return
    run = project.system.runner.run
    listed = run(["squeue", "--noheader", "--steps", f"--jobs={hang.job}", "--format=%i"], timeout_s=STEPS_S)
    steps = re.findall(r"^\s*(\d[\d_]*\.\d+)\s*$", listed.stdout, re.MULTILINE)
    if listed.returncode or not steps:
        raise SchedulerUnavailable(f"squeue names no step of job {hang.job}: {listed.stderr.strip()[:200]}")
    cancelled = 0
    for step in steps:
        done = run(["scancel", step], timeout_s=STEPS_S)
        if done.returncode and not _OVER.search(done.stderr):
            raise ProbeError(f"scancel {step}: {done.stderr.strip()[:200]}")
        cancelled += done.returncode == 0
    if not cancelled:
        raise ProbeError(f"scancel {' '.join(steps)}: these steps have ended")


def _is_of_run(pid: int, directory: RunDirectory) -> bool:
    """Return whether a process, or what started it, has the environment of the run.

    Heartbeats are files that others may write, and pids are used again: kill(2) of 0 or -1 ends far more.
    """
    wanted = os.path.realpath(directory.path)
    while pid > 1:
        given = environment_of(pid).get(b"RESIL_RUN_DIR")
        if given is not None:
            return os.path.realpath(os.fsdecode(given)) == wanted
        pid = parent_of(pid)
    return False


_ACTS: Mapping[str, Callable[[Project, RunDirectory, Hang, str], None]] = {
    SAVE: _save,
    RESTART_STEP: _restart_step,
    REQUEUE: _requeue,
}
