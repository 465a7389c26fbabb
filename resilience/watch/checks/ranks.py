"""`resil watch ranks`: ranks that make the others wait, and runs that have become slower than they were.

Reads the heartbeats of the guards; nothing is asked of the trainings. The readings of ten days, one an hour, are the
past of a run: they survive its attempts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.errors import NoSuchJob, SettingsError, StateDirectoryError
from resilience.finding import Figure, Finding, Verdict
from resilience.hostlist import expand, fold
from resilience.nodes.evidence import Evidence, EvidenceFolder, Source
from resilience.ranks.collect import running_beats
from resilience.ranks.stragglers import Limits, Past, Straggler, describe, judge, judge_drift, newest_attempt
from resilience.runs.context import Context
from resilience.runs.run_jobs import scheduler_of
from resilience.runs.submissions import read_intents
from resilience.watch.reading import Memory, Target, Timed

if TYPE_CHECKING:
    from resilience.runs.run_directory import RunDirectory

NO_RUN = "runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksSettings:
    """From which factor on a rank or a run is slow.

    Attributes:
        runs: the runs to watch. Default: all of the state directory.
        degraded: a rank that computes so many times as long as the median rank, or a run whose steps take so many times
            as long as before, is a WARNING.
        failed: from this factor on it is CRITICAL: a rank or a run that takes so many times as long.
    """

    runs: tuple[str, ...] = ()
    degraded: float = 1.1
    failed: float = 3.0

    @property
    def limits(self) -> Limits:
        """Return the two factors."""
        return Limits(self.degraded, self.failed)


@dataclass(frozen=True, slots=True)
class RanksReading:
    """The ranks of one run.

    Attributes:
        ranks: how many there are.
        step_s: seconds per step of the median rank; 0: unknown.
        hosts: its nodes, folded.
        stragglers: those that make the others wait.
        nothing: why nothing can be said about them.
        is_missing: whether there is no such run.
    """

    ranks: int = 0
    step_s: float = 0.0
    hosts: str = ""
    stragglers: tuple[Straggler, ...] = ()
    nothing: str = ""
    is_missing: bool = False


class RanksCheck:
    """The watchdog of slow ranks."""

    summary = "ranks that make the others wait, and runs slower than they were"
    Settings = RanksSettings
    Reading = RanksReading
    memory = Memory(count=240, spacing_s=3600.0)
    argument = "runs"
    example = "resil watch ranks gpt"

    def targets(self, settings: RanksSettings, context: Context) -> Sequence[Target]:
        """Return one target: all runs."""
        if not 1 < settings.degraded <= settings.failed < 1000:
            raise SettingsError(
                f"degraded = {settings.degraded:g} must be more than 1, and failed = {settings.failed:g} not less",
                hint="degraded = 1.1, failed = 3",
            )
        return [Target("ranks of the runs")]

    def probe(
        self, target: Target, settings: RanksSettings, context: Context, before: Mapping[str, Timed[RanksReading]]
    ) -> Mapping[str, RanksReading]:
        """Read the heartbeats of the runs that train, and keep the hosts that make others wait as evidence."""
        found = {}
        for directory in context.runs():
            if settings.runs and directory.run not in settings.runs:
                continue
            if not directory.is_finished():
                found[directory.run] = _read(context, directory, settings)
            elif settings.runs:
                found[directory.run] = RanksReading(nothing="it is finished")
        why = f"there is no such run in {context.state_dir}"
        missing = {run: RanksReading(nothing=why, is_missing=True) for run in settings.runs if run not in found}
        return found | missing or {NO_RUN: RanksReading(nothing="no run trains")}

    def judge(
        self, subject: str, readings: Sequence[Timed[RanksReading]], settings: RanksSettings, now: float
    ) -> Sequence[Finding]:
        """Return a finding for stragglers and one for a run slower than it was, or one that all is well. Pure."""
        seen = readings[-1].reading
        if seen.is_missing:
            advice = "see them all: resil status"
            return [
                Finding(
                    subject=subject, verdict=Verdict.UNKNOWN, fault="missing", summary=seen.nothing, advice=advice,
                    looked=(seen.nothing,),
                )
            ]  # fmt: skip
        figures = (Figure(label="step", value=round(seen.step_s, 4), unit="s"),) if seen.step_s else ()
        looked = (seen.nothing or f"{seen.ranks} ranks on {seen.hosts}",)
        faults = []
        if seen.stragglers:
            worst = max(one.factor for one in seen.stragglers)
            faults.append((worst, "straggler", describe(seen.stragglers)))
        past = [
            Past(one.time, one.reading.step_s, one.reading.ranks, tuple(expand(one.reading.hosts)))
            for one in readings
            if one.reading.step_s
        ]
        if seen.step_s and (drift := judge_drift(past, settings.limits, [one.host for one in seen.stragglers])):
            faults.append((drift.factor, "slower", drift.why))
        if not faults:
            well = f"{seen.step_s:.3g} s per step, no rank makes the others wait"
            text = seen.nothing or well
            return [
                Finding(subject=subject, verdict=Verdict.OK, summary=text, run=subject, figures=figures, looked=looked)
            ]
        return [
            Finding(
                subject=subject,
                verdict=Verdict.CRITICAL if factor >= settings.failed else Verdict.WARNING,
                fault=fault,
                summary=text,
                advice=f"see them: resil ranks {subject}; test the nodes: resil nodes check {subject}",
                run=subject,
                figures=figures,
                looked=looked,
            )
            for factor, fault, text in faults
        ]


def _read(context: Context, directory: RunDirectory, settings: RanksSettings) -> RanksReading:
    try:
        nodes = newest_attempt(running_beats(directory, context.system.clock.now()))
    except NoSuchJob:
        return RanksReading(nothing="no heartbeat: it does not train now, or has no guard")
    pace = judge(nodes, settings.limits)
    _keep(context, directory, pace.stragglers, nodes[0].attempt, nodes[0].job_id)
    return RanksReading(
        ranks=len(pace.ranks),
        step_s=pace.step_s or 0.0,
        hosts=fold(sorted({one.host for one in nodes})),
        stragglers=pace.stragglers,
        nothing=pace.nothing,
    )


def _keep(
    context: Context, directory: RunDirectory, stragglers: Sequence[Straggler], attempt: int, job_id: str
) -> None:
    """Write evidence about the nodes of stragglers, once for each attempt; nothing where there is one host anyway."""
    if not stragglers or scheduler_of(read_intents(directory)) in ("", "local"):
        return
    now = context.system.clock.now()
    evidence = [
        Evidence(
            node=one.host,
            time=now,
            source=Source.SLOW,
            why=one.why,
            about=f"{directory.path} {attempt} ranks",
            run=directory.run,
            job=job_id,
            by=context.system.host.user,
        )
        for one in stragglers
    ]
    with suppress(OSError, StateDirectoryError):  # it is told in any case
        EvidenceFolder(Path(context.evidence), context.group).add(evidence, now)


CHECK = RanksCheck()
