"""Judges a directory of checkpoints: sound, in time, as fast as before. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from resilience.checkpoints.names import parse_committed
from resilience.finding import Figure, Finding, Verdict
from resilience.messages import plural, quoted
from resilience.quantities import format_bytes, format_duration
from resilience.switch import describe_age
from resilience.watch.checks._ckpt.reading import CkptReading, CkptSettings, Save
from resilience.watch.checks._filesystem.measure import interval_s as measured_interval_s

LEAST_LIMIT_S = 600.0
"""No checkpoint is missed sooner than this, however often they come."""
UNKNOWN_LIMIT_S = 86400.0
"""How long a run without a known interval may train without a checkpoint."""
LEAST_SLOWER_S = 60.0
LEAST_SAVES = 3
"""So many earlier saves show how long one takes."""
BY_RESIL = "resil"
BAD_S = 7 * 86400.0
"""A checkpoint that was set aside longer ago, or by a person, is no news."""


def judge(subject: str, reading: CkptReading, settings: CkptSettings, now: float) -> list[Finding]:
    """Return the findings about one directory of checkpoints: one for each fault, else one that says what is there."""
    looked = reading.looked or (f"looked at {reading.path or '[checkpoints] path'}",)
    if reading.nothing:
        return [_Judged(subject, replace(reading, looked=looked), settings, now).nothing()]
    if reading.unseen:
        unknown, run = Verdict.UNKNOWN, reading.run
        return [
            Finding(subject=subject, verdict=unknown, fault="probe", summary=reading.unseen, run=run, looked=looked)
        ]
    judged = _Judged(subject, reading, settings, now)
    return list(judged.faults()) or [judged.sound()]


def interval_s(reading: CkptReading, settings: CkptSettings) -> tuple[float | None, str]:
    """Return how often a checkpoint is expected, and how that is known; None if it is not."""
    if settings.interval_s is not None:
        return settings.interval_s, "the settings"
    if reading.every_s:
        return reading.every_s, "[guard] every"
    learned_s = measured_interval_s([save.at for save in reading.saves])
    return learned_s, "" if learned_s is None else "the earlier checkpoints"


class _Judged:
    """One reading with what all its findings share."""

    def __init__(self, subject: str, reading: CkptReading, settings: CkptSettings, now: float) -> None:
        self.subject, self.reading, self.settings, self.now = subject, reading, settings, now
        self.every_s, source = interval_s(reading, settings)
        self.limit_s = max(LEAST_LIMIT_S, settings.factor * self.every_s) if self.every_s else UNKNOWN_LIMIT_S
        every = (
            f"one every {format_duration(self.every_s)}, from {source}" if self.every_s else "no interval is known yet"
        )
        state = f"no new one is expected: {reading.over}" if reading.over else reading.unasked or "the run trains"
        self.looked = (*reading.looked, every, state)

    def faults(self) -> Iterator[Finding]:
        """Yield a finding for each fault, the gravest first."""
        yield from self._content()
        if not self.reading.over or (self.reading.is_foreign and self.settings.interval_s is not None):
            yield from self._time()
        yield from self._leftovers()

    def nothing(self) -> Finding:
        """Return the finding about a directory without checkpoints: a warning if a run has trained for too long."""
        reading = self.reading
        late_s = self.now - reading.began
        if not reading.began or late_s <= self.limit_s or reading.unasked:
            return Finding(subject=self.subject, verdict=Verdict.OK, summary=reading.nothing, looked=reading.looked)
        summary = f"{reading.nothing}, and {reading.run} has trained for {format_duration(late_s)}"
        advice = "does the training save there? what a framework has saved needs a seal: resil ckpt adopt --new"
        return self._finding(Verdict.WARNING, "overdue", summary, advice)

    def sound(self) -> Finding:
        """Return the finding without a fault."""
        reading = self.reading
        if reading.newest is None:
            return self._finding(Verdict.OK, "", f"no checkpoint yet{self._over()}")
        read = "verified" if reading.verified == reading.newest else "sizes and structure hold"
        older = "" if reading.verified in (reading.newest, None) else f"; step {reading.verified.step} verified"
        summary = f"{self._name(reading.newest)}, {read}{older}; {plural(reading.count, 'checkpoint')}{self._over()}"
        return self._finding(Verdict.OK, "", summary)

    # ---- what is there ------------------------------------------------------------------------------------------

    def _content(self) -> Iterator[Finding]:
        reading, newest = self.reading, self.reading.newest
        if newest is None:
            if reading.bad:
                summary = f"no checkpoint is left: {plural(len(reading.bad), 'checkpoint')} set aside in .bad/"
                yield self._finding(Verdict.CRITICAL, "none", summary, self._restore(reading.bad[-1].name))
        elif reading.fault:
            fault = "incomplete" if reading.is_incomplete else "damaged"
            good = reading.verified
            older = f"the newest verified one is {good.name}" if good else "no other one is known to be sound"
            summary = f"{self._name(newest)}, is {fault}: {reading.fault}; {older}"
            advice = f"a resume falls back by itself; to set it aside now: resil ckpt quarantine {quoted(newest.name)}"
            if parse_committed(newest.name) is None:  # its framework may load it nevertheless
                advice = "resume from the one that is good: resil ckpt latest"
            yield self._finding(Verdict.CRITICAL, fault, summary, advice)
        elif reading.unknown:
            summary = f"{self._name(newest)}, could not be verified: {reading.unknown}"
            yield self._finding(Verdict.UNKNOWN, "unknown", summary, f"resil ckpt verify {quoted(newest.name)}")

    def _time(self) -> Iterator[Finding]:
        reading = self.reading
        late_s = self.now - max(reading.saved_at, reading.began)
        if late_s > self.limit_s and max(reading.saved_at, reading.began):
            verdict = Verdict.CRITICAL if late_s > 2 * self.limit_s else Verdict.WARNING
            all_of = "" if reading.saved_at >= reading.began else ", all of this attempt"
            every = f"; one is expected every {format_duration(self.every_s)}" if self.every_s else ""
            last = self._name(reading.newest) if reading.newest is not None else "none was ever saved"
            summary = f"no new checkpoint for {format_duration(late_s)}{all_of}{every}; {last}"
            advice = "does the training save, and does it make progress? resil watch log"
            if reading.unasked:
                verdict, summary, advice = Verdict.UNKNOWN, f"{summary}; {reading.unasked}", "resil status; squeue --me"
            elif reading.newest is not None and parse_committed(reading.newest.name) is None:
                advice += "; is what the framework saved sealed? resil ckpt adopt --new"
            yield self._finding(verdict, "overdue", summary, advice)
        elif reading.newest is not None and not reading.fault and not reading.unknown:
            yield from self._unverified(reading.newest)
        yield from self._slow()
        yield from self._parts()

    def _unverified(self, newest: Save) -> Iterator[Finding]:
        verified = self.reading.verified
        since = max(verified.at if verified is not None else 0.0, self.reading.began)
        age_s = self.now - since
        if verified == newest or age_s <= 2 * self.limit_s or not since:
            return
        why = f": {self.reading.unread}" if self.reading.unread else ""
        summary = f"no checkpoint of the last {format_duration(age_s)} was read again and found equal{why}"
        advice = f"resil ckpt verify --deep {quoted(newest.name)}; or raise verify_s in [watch.ckpt]"
        yield self._finding(Verdict.WARNING, "unverified", summary, advice)

    def _slow(self) -> Iterator[Finding]:
        *earlier, last = self.reading.saves or (None,)
        before = [save.took_s for save in earlier if save is not None and save.took_s]
        if last is None or not last.took_s or len(before) < LEAST_SAVES:
            return
        usual_s = median(before)
        if last.took_s > max(self.settings.slow_factor * usual_s, usual_s + LEAST_SLOWER_S):
            size = f" ({format_bytes(last.size_bytes)})" if last.size_bytes else ""
            took, usual = format_duration(last.took_s), format_duration(usual_s)
            summary = f"the save of step {last.step} took {took}{size}; the earlier ones took {usual}"
            advice = "is the file system overloaded or nearly full? resil watch fs"
            yield self._finding(Verdict.WARNING, "slow", summary, advice)

    def _parts(self) -> Iterator[Finding]:
        longest_s = max((save.took_s or 0.0 for save in self.reading.saves), default=0.0)
        limit_s = max(self.settings.part_s, 3 * longest_s)
        for part in self.reading.parts:
            still_s = self.now - part.changed_at
            if still_s > limit_s:
                still, size = format_duration(still_s), format_bytes(part.size_bytes)
                what = f"nothing was written to {part.name} for {still}, at {size}"
                summary = f"the save of step {part.step} stands still: {what}"
                advice = "is a rank hung, or its file system? resil watch log, resil watch fs"
                yield self._finding(Verdict.WARNING, "part", summary, advice)
                return  # one incident: the oldest

    def _leftovers(self) -> Iterator[Finding]:
        reading = self.reading
        if reading.prune_failure:
            more = f"; {plural(reading.trash, 'name')} in .trash/" if reading.trash else ""
            advice = "to see why: resil ckpt prune; until it succeeds, old checkpoints fill the disk"
            summary = f"the last prune failed: {reading.prune_failure}{more}"
            yield self._finding(Verdict.WARNING, "prune", summary, advice)
        recent = [one for one in reading.bad if one.who == BY_RESIL and self.now - one.at < BAD_S]
        if recent and reading.newest is not None:
            one = max(recent, key=lambda one: one.at)
            more = f" (and {len(recent) - 1} more)" if len(recent) > 1 else ""
            summary = f"{one.name} was set aside{describe_age(self.now - one.at) or ' just now'}{more}: {one.why}"
            yield self._finding(Verdict.WARNING, "bad", summary, self._restore(one.name))

    # ---- words --------------------------------------------------------------------------------------------------

    def _finding(self, verdict: Verdict, fault: str, summary: str, advice: str = "") -> Finding:
        return Finding(
            subject=self.subject, verdict=verdict, fault=fault, summary=summary, advice=advice, run=self.reading.run,
            figures=self._figures(), looked=self.looked,
        )  # fmt: skip

    def _figures(self) -> tuple[Figure, ...]:
        reading, figures = self.reading, []
        if reading.newest is not None:
            warn, crit = (None, None) if reading.over else (self.limit_s, 2 * self.limit_s)
            figures.append(Figure("age", max(0.0, self.now - reading.saved_at), "s", warn, crit))
            if reading.newest.took_s is not None:
                figures.append(Figure("took", reading.newest.took_s, "s"))
        return (*figures, Figure("checkpoints", float(reading.count)), Figure("bad", float(len(reading.bad))))

    def _name(self, save: Save) -> str:
        return f"{save.name}, saved{describe_age(self.now - save.at) or ' just now'}"

    def _over(self) -> str:
        state = self.reading.over or self.reading.unasked
        return f"; {state}" if state else ""

    def _restore(self, name: str) -> str:
        return f"why: resil ckpt show {quoted(name)}; if it is sound after all: resil ckpt restore {quoted(name)}"
