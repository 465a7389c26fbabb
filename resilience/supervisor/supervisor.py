"""Supervises one command: starts it, watches it, asks it to stop, and returns its exit code unchanged."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from resilience import layout
from resilience.base.processes import is_stopped, is_there
from resilience.errors import GuardError, ResilError, StateDirectoryError, UsageError
from resilience.guard.end_time import NO_LIMIT, find_end_time
from resilience.guard.rank_info import RankInfo, find_rank_info
from resilience.guard.settings import GuardSettings, read_settings
from resilience.quantities import parse_duration_s
from resilience.supervisor.asking import Request, parse_request
from resilience.supervisor.command import ENDING, CannotStart, Command, replace_process, say
from resilience.supervisor.memory import MemoryWatch, describe
from resilience.supervisor.records import Records, Role, look_interval_s, traces_directory
from resilience.supervisor.records_process import RecordsProcess
from resilience.supervisor.tee import Newest, Tee, streams

MARK = "RESIL_SUPERVISED"
"""`<jobid>.<pid>` of the supervisor above, in the environment of its command."""
TICK_S = 1.0
LEAD_S = 300.0
KILL_PATIENCE_S = 300.0
"""A command that was asked to stop by a kill switch gets SIGTERM after this time."""
CLAIM_S = 8.0
"""The command starts without an attempt if its number is not taken within this time."""
END_TIME_S = 300.0
"""How often rank 0 asks the scheduler for the end of the job; the others know the one at the start."""
KILL_WAIT_S = 30.0
"""Between SIGTERM and SIGKILL: SLURM's default (slurm.conf, KillWait)."""
END_S = 10.0
"""How long the end of the attempt may take to be written, and the breaker to hold jobs; the exit code comes then."""
_OF_A_JOB = (
    "RESIL_ATTEMPT", "RESIL_JOB_ID", "RESIL_END_TIME", "RESIL_STOP_AT", "RESIL_ERROR_FILE", "RESIL_RESTART_COUNT", MARK,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The command line of `resil run`.

    Attributes:
        command: program and arguments.
        run: name of the run; by default the job's, or that of the project.
        stop, save: signal name or path, by which the command is asked; by default it cannot be asked.
        lead: how long before the time limit it is asked to stop; by default RESIL_SIGNAL_LEAD_S, or 5 min.
    """

    command: tuple[str, ...]
    run: str | None = None
    stop: str | None = None
    save: str | None = None
    lead: str | None = None


def run_command(options: RunOptions) -> int:
    """Run a command and return its exit code; 126 or 127 if it cannot be started. Raise UsageError."""
    try:
        return _run(options)
    except CannotStart as error:
        say(str(error))
        return error.code


def _run(options: RunOptions) -> int:
    if not options.command or not options.command[0]:
        raise UsageError("there is no command to run", hint="resil run -- python train.py")
    stop, save = parse_request("--stop", options.stop), parse_request("--save", options.save)
    if options.lead is not None and stop is None:
        raise UsageError("--lead needs --stop", hint="how the command is asked to stop: --stop USR1, or --stop ./STOP")
    if options.run == "":
        raise UsageError("--run has an empty value", hint="is a shell variable unset?")
    lead_s = parse_duration_s(options.lead) if options.lead is not None else 0.0
    environ = own_environment(os.environ)
    if MARK in environ:
        replace_process(options.command, environ)
    command = Command()
    run, run_dir = _find_run(options, environ)
    named = {"RESIL_RUN": run, "RESIL_RUN_DIR": run_dir} if run_dir else {}
    place = find_rank_info(environ | named, os.uname().nodename)
    if not place.run_dir and stop is None:
        command.unblock()
        alone = command_environment(environ, place, 0)
        del alone[MARK]  # there is no supervisor
        replace_process(options.command, alone)
    lead_s = lead_s or place.lead_s or LEAD_S
    return Supervisor(options.command, environ, place, command, stop=stop, save=save, lead_s=lead_s).run()


def own_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what belongs to another job, or to a supervisor that has ended. Pure but for the
    check of a pid."""
    found = dict(environ)
    of_job, of_resil = environ.get("SLURM_JOB_ID"), environ.get("RESIL_JOB_ID")
    job_id, _, pid = environ.get(MARK, "").partition(".")
    is_marked = job_id == (of_job or "0") and (job_id != "0" or (pid.isdecimal() and is_there(int(pid))))
    if (of_job and of_resil and of_job != of_resil) or (MARK in environ and not is_marked):
        for name in _OF_A_JOB:
            found.pop(name, None)
    return found


def command_environment(environ: Mapping[str, str], place: RankInfo, attempt: int) -> dict[str, str]:
    """Return the environment of the command. A variable that is set stays as it is; an empty one counts as unset.

    `attempt`: its number, 0 for none.
    """
    found = dict(environ)
    found[MARK] = f"{place.job_id}.{os.getpid()}"
    defaults = {"PYTHONUNBUFFERED": "1"}
    if place.job_id.isdigit() and place.job_id != "0":
        # One port per job: several jobs of a user on a node would share the default one.
        defaults["NCCL_RAS_ADDR"] = f"localhost:{28100 + int(place.job_id) % 800}"
    if place.run_dir:
        found |= {"RESIL_RUN": place.run, "RESIL_RUN_DIR": place.run_dir}
        defaults |= {"RESIL_JOB_ID": place.job_id, "RESIL_RESTART_COUNT": str(place.restart)}
        if "TORCH_NCCL_DEBUG_INFO_TEMP_FILE" not in environ:  # the old name, which torch still reads
            defaults["TORCH_FR_DUMP_TEMP_FILE"] = f"{traces_directory(place)}/rank_"
        if not environ.get("TORCH_FR_BUFFER_SIZE") and not environ.get("TORCH_NCCL_TRACE_BUFFER_SIZE"):
            defaults |= dict.fromkeys(("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"), "2000")
    if attempt and place.run_dir:
        defaults["RESIL_ATTEMPT"] = str(attempt)
        own = os.path.join(place.run_dir, layout.ATTEMPTS, f"{layout.attempt_file(attempt)}.error")
        defaults["RESIL_ERROR_FILE"] = own
        defaults["TORCHELASTIC_ERROR_FILE"] = f"{environ.get('RESIL_ERROR_FILE') or own}.{place.rank}"
    return defaults | {name: text for name, text in found.items() if text or name not in defaults}


def _find_run(options: RunOptions, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return name and directory of the run, created if missing; empty texts if nothing names one.

    Raise UsageError for a name that cannot be used. A directory that cannot be used costs the records only.
    """
    given = environ.get("RESIL_RUN_DIR", "")
    if given:
        run = environ.get("RESIL_RUN") or os.path.basename(given.rstrip("/"))
        if options.run and options.run != run:
            raise UsageError(f"this job belongs to the run {run}, not to {options.run}", hint="leave out --run")
        return run, given
    from resilience.runs.open_project import check_responding, open_in_child
    from resilience.settings.load import FILE_NAME
    from resilience.system.ports import System

    try:
        project = open_in_child(System())
        if not options.run and (project.loaded.path is None or project.loaded.path.name != FILE_NAME):
            return "", ""
        directory = project.directory(options.run or project.default_run(Path(options.command[0])))
        check_responding(project)
        if not directory.exists():
            from resilience.settings.show import to_toml

            directory.create(to_toml(project.loaded, directory.run))
        return directory.run, str(directory.path)
    except (StateDirectoryError, OSError) as error:
        say(f"warning: nothing is recorded: {error}")
    except ResilError as error:
        if options.run:
            raise
        say(f"warning: nothing is recorded: {error}")
    return "", ""


class Supervisor:
    """One command under supervision. All methods run in the main thread."""

    def __init__(
        self,
        argv: tuple[str, ...],
        environ: dict[str, str],
        place: RankInfo,
        command: Command,
        *,
        stop: Request | None,
        save: Request | None,
        lead_s: float,
    ) -> None:
        """`lead_s`: how long before the time limit the command is asked to stop."""
        self._argv, self._environ, self._place, self._command = argv, environ, place, command
        self._stop, self._save, self._lead_s = stop, save, lead_s
        self._settings = _settings(environ)
        self._end_time = find_end_time(place, environ, END_TIME_S if place.is_first else 0.0)
        self._memory = MemoryWatch() if place.is_first_of_node else None
        self._memory_due = 0.0
        self._asked = ""
        self._asked_signal = 0
        self._killed_at = 0.0  # when the kill switch was seen, in monotonic seconds
        self._killed_by: signal.Signals | None = None  # sent because of that
        self._saved: dict[tuple[int, int, int], float] = {}
        self._received = ""
        self._seen_s = 3 * look_interval_s(place, self._settings)  # until every rank has seen a switch
        self._has_failed = False

    def run(self) -> int:
        """Run the command to its end."""
        command, place = self._command, self._place
        newest, role, own = Newest(), _role(self._environ, place), streams()
        records = RecordsProcess(lambda peer: Records(place, role, self._settings, peer).run(), newest)
        self._records = records
        records.begin(CLAIM_S)
        state = records.state
        if not state.has_begun:
            say(f"warning: the run directory {place.run_dir} does not respond: starting without a record")
        elif state.trouble:
            say(f"warning: nothing is recorded: {state.trouble}")
        if state.refusal is not None:
            code, why = state.refusal
            say(why)
            records.end(END_S)
            return code
        early = command.ended_before_start()
        if early is not None:
            self._end(early, received=command.received[0].name, is_launched=False)
            return early
        tees = [Tee(one, newest) for one in own]
        files = {number: tee.write_end for tee in tees for number in tee.descriptors}
        try:
            command.start(self._argv, command_environment(self._environ, place, state.attempt), files)
        except CannotStart as error:
            say(str(error))
            self._end(error.code, more=str(error), is_launched=False)
            return error.code
        records.send("launched", command.pid)
        self._add_event("launch")
        for tee in tees:
            tee.start()
        while command.code is None:
            command.wait(min(TICK_S, self._settings.poll_s), self._on_signal)
            if command.code is None:
                self._try_tick()
        self._drain(tees)
        more = self._memory.explain_kill() if command.code == 128 + signal.SIGKILL and self._memory is not None else ""
        self._end(command.code, received=self._received, more=more)
        return command.code

    # ---- while it runs ----------------------------------------------------------------------------------------

    def _on_signal(self, number: signal.Signals) -> None:
        if number in ENDING:
            self._received = self._received or number.name
        if number != signal.SIGCONT:
            event = "terminating" if number == signal.SIGTERM else "signal"
            self._add_event(event, signal=number.name.removeprefix("SIG"))

    def _try_tick(self) -> None:
        """Watch the command; a bug in here must not end it, nor change its exit code."""
        try:
            self._tick(time.monotonic())
        except Exception as error:
            if not self._has_failed:
                say(f"warning: cannot watch the command: {type(error).__name__}: {error}")
            self._has_failed = True

    def _tick(self, now: float) -> None:
        """Look at switches, time limit and memory, and ask the command accordingly."""
        self._records.exchange()
        self._follow_switches(now)
        end = None
        if self._stop is not None:
            self._end_time.refresh(now)
            end = self._end_time.end
        if end is not None and end != NO_LIMIT and not self._asked and time.time() >= end - self._lead_s:
            self._ask_to_stop(f"about {max(0, round(end - time.time()))} s are left before the time limit")
        if self._memory is not None and now >= self._memory_due:
            self._memory_due = now + self._settings.beat_s
            high = self._memory.look(now)
            if high is not None:
                self._add_event("memory", owner=high.owner, used=high.used_bytes, limit=high.limit_bytes)
                say(f"warning: {describe(high)}")

    def _follow_switches(self, now: float) -> None:
        switches = self._records.state.switches
        kill, save = switches.get(layout.KILL_SWITCH), switches.get(layout.SAVE_SWITCH)
        stop = switches.get(layout.STOP_PREFIX + self._place.job_id)
        if stop is not None and not self._asked:
            self._ask_to_stop(stop.why or "the stop file of the job was written")
        if kill is None:
            self._killed_at = 0.0
        elif not self._killed_at:
            self._killed_at = now
            if not self._asked:
                self._ask_to_stop(kill.as_kill)
        if kill is not None and not _is_attended(self._environ):
            is_asked = self._stop is not None or self._records.state.is_guarded
            late_s = now - self._killed_at - (KILL_PATIENCE_S if is_asked else 0.0)
            number = signal.SIGKILL if late_s >= KILL_WAIT_S else signal.SIGTERM
            if late_s >= 0 and number != self._killed_by:
                self._killed_by = number
                self._asked, self._asked_signal = self._asked or kill.as_kill, signal.SIGTERM
                self._add_event("kill_term" if number == signal.SIGTERM else "kill_kill", why=self._asked)
                self._send(number)
        if save is not None and self._save is not None:
            if save.identity not in self._saved:
                self._saved[save.identity] = now
                why = save.why or "the save switch was set"
                self._add_event("save_requested", why=why)
                self._ask(self._save, why)
            elif self._place.is_first and (self._place.world == 1 or now > self._saved[save.identity] + self._seen_s):
                self._records.send("followed", save.identity)

    def _ask_to_stop(self, why: str) -> None:
        if self._stop is None:
            return
        self._asked, self._asked_signal = why, self._stop.signal
        self._add_event("stop_requested", why=why, by=self._stop.describe())
        if self._place.is_first:
            say(f"asking the command to stop by {self._stop.describe()}: {why}")
        self._ask(self._stop, why)

    def _ask(self, request: Request, why: str) -> None:
        """Every rank signals its own command; one file is enough for all."""
        if request.signal:
            self._send(request.signal)
        elif self._place.is_first:
            self._records.send("create", request.path, why)

    def _send(self, number: int) -> None:
        self._command.send(number)
        if is_stopped(self._command.pid):
            self._command.send(signal.SIGCONT)

    def _add_event(self, name: str, **fields: object) -> None:
        self._records.send("event", name, fields)

    # ---- the end ----------------------------------------------------------------------------------------------

    def _drain(self, tees: list[Tee]) -> None:
        """Copy what is left of the output; a slow reader is waited for, unless a signal tells this process to end."""
        for tee in tees:
            tee.drain(time.monotonic())
        for tee in tees:
            tee.join(0.05)
        while not all(tee.is_over(time.monotonic()) for tee in tees):
            self._records.exchange()
            if self._command.wait_after_end(0.05):
                break
        if any(tee.is_held for tee in tees):
            say("processes that the command has left behind hold its output; their further output is lost")
        for tee in tees:
            if tee.error:
                say(f"warning: output was lost: {tee.error}")

    def _end(self, code: int, *, received: str = "", more: str = "", is_launched: bool = True) -> None:
        self._records.end(END_S, code, is_launched, self._asked, int(self._asked_signal), received, more)


def _role(environ: Mapping[str, str], place: RankInfo) -> Role:
    array, task = environ.get("SLURM_ARRAY_JOB_ID", ""), environ.get("SLURM_ARRAY_TASK_ID", "")
    label = f"{array}_{task}" if array.isdigit() and task.isdigit() else "" if place.job_id == "0" else place.job_id
    is_attended = _is_attended(environ)
    # Ranks without a job cannot tell which attempt is theirs.
    owns = place.is_first and not is_attended and (place.job_id != "0" or place.world == 1)
    return Role(owns_attempt=owns, writes_beats=place.is_first_of_node, label=label, is_attended=is_attended)


def _is_attended(environ: Mapping[str, str]) -> bool:
    """Return whether the batch shell of a template does what is per attempt."""
    return environ.get("RESIL_ATTEMPT", "0") != "0"


def _settings(environ: Mapping[str, str]) -> GuardSettings:
    try:
        return read_settings(environ)
    except GuardError as error:
        say(f"warning: defaults apply: {error}")
        return GuardSettings()
