"""The training of a drill: starts the user's command in a run of its own, lets a drill break it, and measures."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from resilience import layout
from resilience.attempts.ledger import LedgerRow
from resilience.drills.isolation import LOCAL_TEMPO, SLURM_TEMPO
from resilience.drills.readings import Readings, answer, is_finished
from resilience.drills.stage import NotInTime, Stage
from resilience.drills.watchdogs import Watchdogs
from resilience.drills.words import Facts, Seen
from resilience.errors import ResilError, StateDirectoryError
from resilience.inject.injecting import Running
from resilience.messages import cut
from resilience.quantities import format_duration
from resilience.runs import switches
from resilience.runs.attempts import AttemptEnd
from resilience.runs.submit_plan import SubmitRequest
from resilience.switch import Scope

ValueT = TypeVar("ValueT")
JOBS = 5
"""Jobs that a drill queues, one after another: the one that is broken, and those that fail while the fault lasts."""
STEPS = 3
"""So many steps show that a training trains."""
CAUSE = 120
"""Characters of the reason why an attempt ended."""
SLOWER = 3.0
"""The next attempt may take so many times as long to start as the first one did."""
HELD = ("JobHeldUser", "JobHeldAdmin")
ENDED_S = 3.0
TRAIN_LONGER = "let it train for longer, with more steps: resil drill --command 'COMMAND'"
FINISHED = "the training reached its last step before the end of the drill"
LOOK = "see the whole log with --keep; the training must run for a minute, tell a guard its steps, and save when asked"
NO_GUARD = "create the guard before the slow parts of the start, and call guard.step(); for a slow one: --limit 2h"
GUARD_S, GUARD_SHARE = 60.0, 6
"""Without the report of a guard so long after the launch, and after this part of the limit, the drill gives up."""
IGNORED_STEPS, IGNORED_S = 20, 15.0
"""So many steps, and so much time, without a save show that a training does not save when it is told to."""
SAVE_S, SLOW_SAVE = 600.0, 20.0
"""A save that was asked for is waited for so long, or so many steps."""


class CouldNotLook(ResilError):
    """The drill cannot be made here, or its training did not come far enough: UNKNOWN, neither PASS nor FAIL."""


class DidWrong(ResilError):
    """The training failed already at what the drill needs before its fault: FAIL."""


class Training:
    """A training that is to be broken.

    Attributes:
        seen: what was measured so far.
        step_s: the typical duration of a step.
        is_blind: whether the scheduler does not answer, so that nobody knows whether the jobs have ended.
    """

    def __init__(
        self,
        stage: Stage,
        facts: Facts,
        scratch: Path,
        *,
        limit_s: float,
        say: Callable[[str], None],
    ) -> None:
        self.stage, self.facts, self.scratch, self.say = stage, facts, scratch, say
        self.tempo = LOCAL_TEMPO if stage.is_local else SLURM_TEMPO
        self.seen = Seen()
        self.step_s = 0.0
        self.readings = Readings(stage, facts, scratch)
        self.name = self.readings.name
        self._clock = stage.project.system.clock
        self._deadline = self._clock.monotonic() + limit_s
        self._limit_s = limit_s
        self._since = self._at = self._start_s = 0.0
        self._struck: LedgerRow | None = None
        self._jobs: tuple[tuple[str, str], ...] = ()
        self._watch: Watchdogs | None = None
        self._told: dict[str, float] = {}
        self._running: Running | None = None
        self.is_blind = self._is_store_needed = False

    # ---- what is done with it ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Queue it, and wait until it trains. Raise CouldNotLook."""
        minutes = max(5, round((self._limit_s + 300) / 60))
        limit = self.facts.walltime_s
        if limit is not None:
            minutes = min(minutes, max(1, round(limit / 60)))
        spares = self.stage.project.loaded.settings.nodes.spares
        queued = {"chain": JOBS} if spares else {"array": str(JOBS)}
        request = SubmitRequest(run=self.name, time=str(minutes), **queued)
        began = self._clock.monotonic()
        job = self.stage.submit(request)
        self.say(f"queued {JOBS} jobs, one after another: {job}")
        self.until(self._trains, "the first steps that a guard reports")
        self._start_s = self._clock.monotonic() - began
        self.step_s = self._measured_step_s()
        self.say(f"it trains: step {self.readings.step()}, {format_duration(self.step_s)} per step")

    def save(self) -> int:
        """Ask for a save, and return its step once it is durable. Raise CouldNotLook."""
        before, asked = self.readings.durable() or 0, self.readings.step()
        known, self._told = len(self.readings.saves()), {}
        self.ask_for_save()

        def is_saved() -> bool:
            if (self.readings.durable() or 0) > max(before, asked - 1):
                return True
            self._check_answer(known)
            return False

        self.until(is_saved, "the save that the drill asked for", max(SAVE_S, SLOW_SAVE * self.step_s))
        durable = self.readings.durable() or 0
        store = self.readings.store
        is_elsewhere = self._is_store_needed or not self.readings.wrote_output()
        if store is not None and self.facts.is_own_store and not self.readings.checkpoints() and is_elsewhere:
            raise CouldNotLook(
                f"step {durable} was saved, and not in {store.path}, where the drill wants it: the training saves in a "
                "place of its own",
                hint="save with Store.from_env()" + ("" if self._is_store_needed else ", or below $RESIL_DRILL_DIR"),
            )
        self.say(f"saved at step {durable}")
        return durable

    def strike(self, act: Callable[[], str]) -> None:
        """Inject the fault; `act` does it and returns what it did, in words. Everything is measured from here."""
        rows = self.readings.rows()
        if not rows or rows[-1].failure is not None:
            raise CouldNotLook(f"the training ended before the fault: {self.readings.last_words()}", hint=TRAIN_LONGER)
        self._struck = rows[-1]
        self._jobs = self.readings.queue()
        ranks = len(self.stage.ranks(self.name))
        self.seen = replace(self.seen, step=self.readings.step(), durable=self.readings.durable(), ranks=ranks)
        self._since = self._at = self._clock.now()
        done = act()
        if self._running is not None and self._running.injection.until is not None:
            self._at = self._clock.now()  # what lasts takes a second to begin: a process that undoes it starts before
        self.seen = replace(self.seen, done=done)
        self.say(f"fault: {done}")

    def watch(self, environ: Mapping[str, str] | None = None, deadline_s: float = 0.0) -> None:
        """Run the watchdogs from now on as cron does, only more often, instead of those that run already."""
        self.stop_watching()
        count = 1 + round(self._limit_s / self.tempo.watch_s)  # then it ends by itself, also if the drill was killed
        system = self.stage.project.system
        own = {**system.environ, **(environ or {})}
        self._watch = Watchdogs(self.scratch, system.cwd, own, self.tempo.watch_s, count, deadline_s)

    def stop_watching(self) -> None:
        """End the watchdogs."""
        if self._watch is not None:
            self._watch.end()
            self._watch = None

    # ---- how it is broken --------------------------------------------------------------------------------------------

    def need_store(self) -> None:
        """Raise CouldNotLook unless the training saves with a Store whose directory resil knows."""
        self._is_store_needed = True
        if self.readings.store is None:
            raise CouldNotLook("[checkpoints] path is not set: resil does not know the checkpoints")
        if not self.facts.is_own_store:
            raise CouldNotLook("the framework names the checkpoints: this drill needs those of a Store")

    def more_steps(self) -> None:
        """Wait for a few steps, so that something is lost. Raise CouldNotLook."""
        begin = self.readings.step()
        self.until(lambda: self.readings.step() >= begin + STEPS, "a few more steps")

    def last_rank(self) -> int:
        """Return the number of the last rank: the others wait for it."""
        return max(self.stage.ranks(self.name), default=0)

    def inject(self, name: str, length_s: float | None = None, **options: object) -> str:
        """Inject a fault as `resil inject` does; `restore` takes it back. Return a sentence. Raise CouldNotLook."""
        try:
            self._running = self.stage.inject(self.name, name, options, length_s)
        except ResilError as error:
            if self.readings.rows() and self.see(lambda: self.readings.rows()[-1].failure is not None, ENDED_S):
                raise CouldNotLook(
                    f"the training ended before the fault: {self.readings.last_words()}", hint=TRAIN_LONGER
                ) from None
            raise CouldNotLook(f"the fault is not possible here: {error.message}", hint=error.hint) from None
        return self._running.injection.does

    def restore(self) -> None:
        """Take the fault back, if it is still on."""
        running, self._running = self._running, None
        if running is not None and running.injection.until is not None:
            self.say(f"undone: {running.undo().undoes}")

    def ask_for_save(self) -> None:
        """Ask for a save, without waiting."""
        directory = self.readings.directory
        switches.set_switch(self.stage.project, directory, layout.SAVE_SWITCH, why="a drill", scope=Scope.JOB)

    # ---- waiting -----------------------------------------------------------------------------------------------------

    def until(self, found: Callable[[], ValueT], what: str, limit_s: float | None = None) -> ValueT:
        """Wait for something that must come. Raise CouldNotLook, with the end of the log, if it does not in time."""
        left_s = max(0.0, self._deadline - self._clock.monotonic())
        state = {"over": False}

        def look() -> ValueT | bool:
            try:
                value = found()
            except StateDirectoryError:  # a file that is being replaced
                return False
            state["over"] = not value and not self.is_blind and self.readings.all_ended()
            return value or state["over"]

        try:
            value = self.stage.until(look, left_s if limit_s is None else min(limit_s, left_s), what)
        except NotInTime as error:
            raise CouldNotLook(f"{error.message}: {self.readings.last_words()}", hint=LOOK) from None
        if state["over"]:
            raise CouldNotLook(f"all jobs ended before {what}: {self.readings.last_words()}", hint=LOOK)
        return value  # type: ignore[return-value]

    def see(self, found: Callable[[], object], limit_s: float) -> bool:
        """Wait for something that the drill is about; return False if it does not come in `limit_s`.

        Raise CouldNotLook if the time of the whole drill was over before.
        """
        left_s = self._deadline - self._clock.monotonic()
        try:
            self.until(found, "", limit_s)
        except CouldNotLook:
            if limit_s > left_s and self._clock.monotonic() >= self._deadline:
                raise CouldNotLook(
                    f"the drill was not over after {format_duration(self._limit_s)}",
                    hint="give it more time: --limit 2h; or queue its jobs where they start sooner",
                ) from None
            return False
        return True

    def see_end(self, limit_s: float) -> bool:
        """Wait for the end of the attempt that was struck, and measure it."""
        if not self.see(lambda: self.struck().failure is not None and self.struck().end is not None, limit_s):
            return False
        row = self.struck()
        is_found = row.end is AttemptEnd.LOST  # by the next attempt, just now
        ended = self._clock.now() if is_found or row.end_time is None else row.end_time
        self.seen = replace(
            self.seen,
            stopped_s=max(0.0, ended - self._at),
            end=_end_of(row),
            cause="" if row.failure is None else cut(row.failure.reason, CAUSE),
            last_step=row.last_step,
            saved_at=row.durable_step if (row.durable_step or 0) > (self.seen.durable or 0) else None,
        )
        self.say(f"the attempt ended after {self.seen.stopped_s:.0f} s: {self.seen.cause or self.seen.end}")
        return True

    def see_resume(self, limit_s: float) -> bool:
        """Wait until the next attempt trains, and measure it."""
        number = self.struck().attempt

        def next_one() -> LedgerRow | None:
            later = [row for row in self.readings.rows() if row.attempt > number and row.first_step is not None]
            trains = [row for row in later if (row.last_step or 0) > (row.first_step or 0)]
            return trains[0] if trains else None

        if not self.see(next_one, max(limit_s, SLOWER * self._start_s)):
            waiting = [job for job in self.stage.jobs() if job.state.is_waiting and job.reason not in HELD]
            if waiting and not any(job.state.may_have_processes for job in self.stage.jobs()):
                raise CouldNotLook(f"the next job waits in the queue: {waiting[0].id} {waiting[0].reason}")
            if any(is_finished(row) for row in self.readings.rows() if row.attempt >= number):
                raise CouldNotLook(FINISHED, hint=TRAIN_LONGER)
            return False
        row = next_one()
        assert row is not None
        self.seen = replace(
            self.seen,
            resumed_s=max(0.0, self._clock.now() - self._at),
            resumed_at=row.first_step,
            set_aside=tuple(self.readings.set_aside()),
            lost_bytes=self.readings.lost_bytes(),
        )
        self.say(f"attempt {row.attempt} goes on at step {row.first_step}")
        return True

    def see_told(self, limit_s: float, *checks: str) -> bool:
        """Wait for the first message of one of these watchdogs (none: of any), and measure it."""

        def told() -> bool:
            self._measure_told(checks)
            return self.seen.told_s is not None

        return self.see(told, limit_s)

    def see_steps(self, limit_s: float) -> bool:
        """Wait for a few more steps, and record and return whether there were any."""
        begin = self.readings.step()
        went_on = self.see(lambda: self.readings.step() >= begin + STEPS or is_finished(self.struck()), limit_s)
        if went_on and self.readings.step() < begin + STEPS:
            raise CouldNotLook(FINISHED, hint=TRAIN_LONGER)
        self.seen = replace(self.seen, went_on=went_on)
        return went_on

    def finish(self) -> Seen:
        """Return what was measured, with what watchdogs have told meanwhile."""
        if self._at:
            self._measure_told(())
            self.seen = replace(self.seen, left_alone=self.readings.queue() == self._jobs)
        return self.seen

    def close(self) -> list[str]:
        """Undo the fault, end the watchdogs and all jobs. Return a sentence for each thing that is left."""
        left = []
        try:
            self.restore()
        except (ResilError, OSError) as error:
            left.append(f"the fault could not be undone: {error}")
        self.stop_watching()
        return left + self.stage.close()

    # ---- measuring ---------------------------------------------------------------------------------------------------

    def struck(self) -> LedgerRow:
        """Return the attempt that the fault has struck."""
        assert self._struck is not None
        number = self._struck.attempt
        return next(row for row in self.readings.rows() if row.attempt == number)

    def _trains(self) -> bool:
        rows = self.readings.rows()
        if rows and (rows[0].first_step or 0) > 0:
            self._end_without_save()
            raise CouldNotLook(
                f"the training began at step {rows[0].first_step}, although a drill has no checkpoints: it loaded "
                "those of the real run, and was ended before a save",
                hint="load and save with Store.from_env(), or below $RESIL_DRILL_DIR if that is set",
            )
        for row in rows:
            if row.failure is not None and f"end of {row.attempt}" not in self._told:
                self._told[f"end of {row.attempt}"] = 0.0
                self.say(f"attempt {row.attempt} ended before it trained: {cut(row.failure.reason, CAUSE)}")
        if not rows or rows[-1].failure is not None:
            return False
        self._check_guard(rows[-1])
        return (rows[-1].last_step or 0) >= (rows[-1].first_step or 0) + STEPS

    def _check_guard(self, row: LedgerRow) -> None:
        """Raise CouldNotLook if no guard has reported a while after the launch."""
        if row.launch_time is None or row.first_step is not None or self.stage.ranks(self.name):
            return
        waited_s = self._since_first(f"launch of {row.attempt}")
        if waited_s > max(GUARD_S, self._limit_s / GUARD_SHARE):
            waited = format_duration(waited_s)
            raise CouldNotLook(
                f"no guard has reported in the {waited} since the launch: {self.readings.last_words()}", hint=NO_GUARD
            )

    def _since_first(self, what: str) -> float:
        """Return how long ago this was asked for the first time."""
        now = self._clock.monotonic()
        return now - self._told.setdefault(what, now)

    def _check_answer(self, known: int) -> None:
        """Raise DidWrong if the training does not save although it was told to, CouldNotLook if its save failed.

        `known`: how many decisions and saves there were before.
        """
        told, error = answer(self.readings.saves()[known:])
        if error:
            raise CouldNotLook(f"a save failed before the fault: {error}", hint="make room; see the log with --keep")
        if told is None:
            return
        waited_s = self._since_first(f"told at {told}")
        if waited_s > IGNORED_S and self.readings.step() >= told + IGNORED_STEPS:
            raise DidWrong(
                f"the training was told to save at step {told}, and is at step {self.readings.step()} without a save",
                hint="save when decision.save says so, inside `with guard.saving(): ...`",
            )

    def _end_without_save(self) -> None:
        """End the training by SIGKILL: a guard saves when a job is cancelled. No queued job starts afterwards."""
        with suppress(ResilError):
            waiting = [job.id.whole for job in self.stage.jobs() if job.state.is_waiting]
            if waiting:
                self.stage.project.scheduler().cancel(waiting, pending_only=True)
        with suppress(CouldNotLook):
            self.inject("kill", step=True)

    def _measured_step_s(self) -> float:
        begin, began = self.readings.step(), self._clock.monotonic()
        with suppress(CouldNotLook):
            self.until(lambda: self.readings.step() > begin + STEPS, "more steps")
        done = self.readings.step() - begin
        return (self._clock.monotonic() - began) / done if done else 0.0

    def _measure_told(self, checks: tuple[str, ...]) -> None:
        if self.seen.told_s is not None:
            return
        found = [one for one in self.readings.incidents(self._since) if not checks or one.check in checks]
        if found:
            first = min(found, key=lambda one: one.first_told or 0.0)
            told_s = max(0.0, (first.first_told or 0.0) - self._at)
            self.seen = replace(self.seen, told_s=told_s, told=f"{first.check}: {first.summary}")
            self.say(f"told after {told_s:.0f} s: {self.seen.told}")


def _end_of(row: LedgerRow) -> str:
    if row.signal is not None:
        return f"killed by {signal.Signals(row.signal).name}" if row.signal in set(signal.Signals) else "killed"
    return "" if row.end is None else row.end.value
