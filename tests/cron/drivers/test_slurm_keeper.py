"""scheduler.bash keeps the chain: what it submits, what it cancels, and what it tells instead. A table of queues."""

from __future__ import annotations

import os
import random
import subprocess
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from resilience.cron.drivers._slurm import script
from resilience.cron.drivers._slurm.keeper import parse_row, trouble_of
from resilience.cron.drivers._slurm.script import render_script
from resilience.cron.records import Installation
from resilience.cron.state_directory import CronDirectory
from resilience.settings.cron_settings import CronSettings
from tests.cron.drivers.slurm_programs import DOWN, REFUSED, Programs
from tests.lab.fakes import ME, NOW

INSTALLED = Installation(
    driver="slurm", token="0123456789abcdef", time=NOW, by=ME, host="n1", project="/p", python="/bin/python",
    mode="daemon",
)  # fmt: skip
MARK = "resil:.cron:0123456789abcdef-"
HOUR = 3600
P = 900


@dataclass
class Chain:
    """A chain whose queue is a file."""

    slurm: Programs
    cron: CronDirectory
    mode: str = "daemon"
    settings: CronSettings = field(default_factory=lambda: CronSettings(pulse_s=P))

    @property
    def script(self) -> str:
        return render_script(
            replace(INSTALLED, mode=self.mode), self.settings, state=str(self.cron.path), config="",
            scheduler="slurm", environ={"HOME": "/"}, limit=86400, tool_directories=(str(self.slurm.directory),),
        )  # fmt: skip

    @property
    def digest(self) -> str:
        return self.script.split("digest=")[1].split("\n")[0]

    def ask(self, *words: str, environ: dict[str, str] | None = None) -> tuple[int, list[str]]:
        """Ask from outside; or with SLURM_JOB_ID as a job does, beside its scheduler."""
        text, environ = self.script, {"PATH": "/usr/bin:/bin", **(environ or {})}
        if "SLURM_JOB_ID" in environ:
            head = text[: text.index("\ncase ${1-} in\n  revive | keep")]
            text = head + "\n" + "\n".join(words) + '\nprintf %s "$facts"\nexit\n'
            words = ()
        done = subprocess.run(
            ["bash", "-s", "--", *words], input=text, env=environ, capture_output=True, text=True, timeout=100
        )
        assert not done.stderr, done.stderr
        return done.returncode, done.stdout.splitlines()

    def inside(self, job: int, *, ends_in: int = 80000, slot: int = 0, failed: int = 0, do: str = "keep") -> list[str]:
        """What the running job of that id does beside its scheduler."""
        now = int(time.time())
        environ = {"SLURM_JOB_ID": str(job), "SLURM_JOB_START_TIME": str(now + ends_in - 86400)}
        environ["SLURM_JOB_END_TIME"] = str(now + ends_in)
        more = [f"slot={slot}"] + ([f"failed={failed} delay_s={60 << (failed - 1)}"] if failed else [])
        return self.ask(*more, do, environ=environ)[1]

    def row(self, number: int, what: str, state: str = "PENDING", *, reason: str = "None", start: str = "N/A") -> str:
        end = str(int(time.time()) + 80000) if state == "RUNNING" else "N/A"
        begun = str(int(time.time()) - 6400) if state == "RUNNING" and start == "N/A" else start
        mark = what if what.startswith(("resil:", "(")) else f"{MARK}{what}"
        return f"{number}|{state}|{begun}|{end}|{'n1' if state == 'RUNNING' else ''}|{reason}|{mark}"

    def own(self, kind: str, begin: int = 0) -> str:
        return f"{kind}{begin}.{self.digest}"

    def kinds(self) -> list[tuple[str, int]]:
        """Kind and earliest start of what waits, oldest first."""
        found = [parse_row("|".join(row), INSTALLED.token) for row in self.slurm.rows]
        return [(job.kind, job.begin) for job in found if job.state.is_waiting]


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    directory = CronDirectory(tmp_path / ".resil")
    directory.install(INSTALLED)
    (directory.path / "driver").mkdir()
    chain = Chain(Programs(tmp_path / "bin"), directory)
    (directory.path / "driver" / "job.bash").write_text(chain.script)
    return chain


def test_an_empty_queue_gets_two_jobs_and_a_second_call_does_nothing(chain: Chain) -> None:
    assert chain.ask("keep") == (0, ["submitted 101", "submitted 102"])
    assert chain.ask("keep") == (0, [])
    assert chain.kinds() == [("s", 0), ("s", 0)]
    assert all("--dependency=singleton" in line and "--job-name=resil-cron-01234567" in line
               for line in chain.slurm.submitted)  # fmt: skip


def test_no_job_of_the_chain_is_requeued_or_has_an_output_of_slurms(chain: Chain) -> None:
    chain.ask("keep")
    line = chain.slurm.submitted[0]
    for option in ("--no-requeue", "--output=/dev/null", "--time=1440", "--time-min=60", "--signal=B:USR1@90"):
        assert option in line
    assert "--begin" not in line


def test_a_job_is_submitted_with_the_users_umask_which_slurm_passes_on(chain: Chain) -> None:
    chain.slurm.fault("sbatch", "umask >>masks")
    before = os.umask(0o022)
    try:
        chain.ask("keep")
        chain.slurm.queue(chain.row(101, chain.own("s"), "RUNNING"))
        chain.inside(101)
    finally:
        os.umask(before)
    assert (chain.slurm.directory / "masks").read_text().split() == ["0022"] * 4


def test_a_plan_shows_the_commands_and_does_nothing(chain: Chain) -> None:
    code, lines = chain.ask("plan")
    assert code == 0 and len(lines) == 2 and all(line.startswith("submit sbatch --parsable") for line in lines)
    assert all(line.endswith(f" {chain.cron.path}/driver/job.bash") for line in lines), "as `install` runs them"
    assert not chain.slurm.calls("sbatch")


# ---- daemons: a spare that waits for the end of the running one, and a head that does not ---------------------------


def test_the_head_begins_an_hour_before_the_daemon_leaves_and_no_singleton_holds_it(chain: Chain) -> None:
    chain.slurm.queue(chain.row(7, chain.own("s"), "RUNNING"), chain.row(8, chain.own("s")))
    chain.inside(7, ends_in=80000)
    (line,) = chain.slurm.submitted
    assert "singleton" not in line
    (begin,) = [int(word.partition("now+")[2]) for word in line.split() if word.startswith("--begin=")]
    assert abs(begin - (80000 - 90 - HOUR)) < 10
    assert chain.inside(7) == []


def test_of_a_short_limit_the_head_has_a_quarter(chain: Chain) -> None:
    chain.slurm.queue(chain.row(8, chain.own("s")))
    now = int(time.time())
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_START_TIME": str(now), "SLURM_JOB_END_TIME": str(now + 1000)}
    chain.ask("keep", environ=environ)
    (begin,) = [begin for kind, begin in chain.kinds() if kind == "h"]
    assert abs(begin - (now + 1000 - 90 - 250)) < 10


def test_a_head_is_newer_than_the_spare_which_would_wait_for_it_otherwise(chain: Chain) -> None:
    """SLURM's singleton waits for older jobs that wait, too: for the head's begin tomorrow."""
    soon = int(time.time()) + 70000
    chain.slurm.queue(chain.row(7, chain.own("s"), "RUNNING"), chain.row(8, chain.own("h", soon)))
    assert chain.inside(7) == ["submitted 101", "submitted 102", "cancelled 8"]
    assert [kind for kind, _ in chain.kinds()] == ["s", "h"]


def test_the_head_that_runs_queues_its_own_and_the_old_daemon_queues_none(chain: Chain) -> None:
    now = int(time.time())
    chain.slurm.queue(
        chain.row(7, chain.own("s"), "RUNNING", start=str(now - 86000)), chain.row(8, chain.own("s")),
        chain.row(9, chain.own("h", now - 5), "RUNNING", start=str(now - 5)),
    )  # fmt: skip
    chain.slurm.change(7, end=str(now + 400))
    assert chain.inside(7, ends_in=400) == []
    assert chain.inside(9, ends_in=86395) == ["submitted 101"]
    assert [kind for kind, _ in chain.kinds()] == ["s", "h"]


def test_a_lost_successor_is_queued_again_by_any_look(chain: Chain) -> None:
    chain.slurm.queue(chain.row(7, chain.own("s"), "RUNNING"), chain.row(6, chain.own("h", 5), "CANCELLED"))
    assert chain.ask("keep") == (0, ["submitted 101"]), "from outside the spare; the head is the daemon's"
    assert chain.inside(7) == ["submitted 102"]


def test_changed_options_reach_what_waits_and_a_new_daemon_takes_over_at_once(chain: Chain) -> None:
    old = f"{MARK}s0.0000", f"{MARK}s0.0000", f"{MARK}h1799999999.0000"
    chain.slurm.queue(chain.row(7, old[0], "RUNNING"), chain.row(8, old[1]), chain.row(9, old[2], reason="BeginTime"))
    assert chain.ask("keep")[1] == ["submitted 101", "submitted 102", "cancelled 8 9"]
    assert [kind for kind, _ in chain.kinds()] == ["s", "h"]
    assert all("--begin" not in line for line in chain.slurm.submitted)


def test_a_daemon_with_the_options_of_before_leaves_the_new_jobs_in_the_queue(chain: Chain) -> None:
    """The queue is full, and the jobs of `install` wait: the running one has looked after the chain for hours."""
    old = chain.own("s")
    chain.slurm.queue(chain.row(7, old, "RUNNING"))
    newer = replace(chain, settings=CronSettings(pulse_s=P, sbatch={"partition": "other"}))
    (chain.cron.path / "driver" / "job.bash").write_text(newer.script)
    assert newer.ask("keep")[1] == ["submitted 101", "submitted 102"]
    assert chain.inside(7) == []
    chain.slurm.change(101, state="CANCELLED", end=str(int(time.time())))
    assert chain.inside(7) == ["submitted 103", "submitted 104", "cancelled 102"], "a spare is older than the head"
    assert all("--partition=other" in line and f".{newer.digest} " in line for line in chain.slurm.submitted)
    chain.slurm.change(104, state="RUNNING", start=str(int(time.time())))
    assert chain.inside(7) == [], "the daemon with the new options runs"


def test_jobs_of_an_earlier_release_are_replaced(chain: Chain) -> None:
    chain.slurm.queue(
        chain.row(7, "d0.1", "RUNNING"), chain.row(8, "d0.2", reason="Dependency"), chain.row(9, "d7.bash1")
    )
    assert chain.ask("keep")[1] == ["submitted 101", "submitted 102", "cancelled 8 9"]


def test_what_begins_later_than_its_own_would_is_replaced_by_install(chain: Chain) -> None:
    """After failures the next jobs begin in up to an hour."""
    later = int(time.time()) + 3500
    chain.slurm.queue(chain.row(8, chain.own("s", later + HOUR)), chain.row(9, chain.own("h", later)))
    assert chain.ask("keep")[1] == ["submitted 101", "submitted 102", "cancelled 8 9"]
    assert chain.kinds() == [("s", 0), ("s", 0)]


def test_a_daemon_that_fails_leaves_time_before_the_next_ones_and_avoids_its_node(chain: Chain) -> None:
    chain.slurm.queue(chain.row(8, chain.own("s")), chain.row(9, chain.own("h", int(time.time()) + 50000)))
    said = chain.inside(7, failed=3)
    assert said == ["submitted 101", "submitted 102", "cancelled 8 9"]
    now = time.time()
    assert [(kind, round((begin - now) / 60)) for kind, begin in chain.kinds()] == [("s", 8), ("h", 4)]
    assert all(" failed=3" in line for line in chain.slurm.submitted)
    assert chain.inside(7, failed=3) == []


def test_a_daemon_that_fails_on_the_only_node_is_followed_there(chain: Chain) -> None:
    said = "sbatch: error: Requested node configuration is not available"
    refuse = f"case $* in *--exclude=n1*) echo '{said}' >&2; exit 1; esac"
    chain.slurm.fault("sbatch", refuse)
    now = int(time.time())
    environ = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "SLURM_JOB_END_TIME": str(now + 80000)}
    _, facts = chain.ask("failed=1 delay_s=60", "keep", environ=environ)
    assert facts == ["submitted 101", "submitted 102"]
    assert [bool("--exclude=n1" in line) for line in chain.slurm.calls("sbatch")] == [False, True, False]


def test_a_daemon_that_fails_while_another_runs_leaves_the_spare_alone(chain: Chain) -> None:
    now = int(time.time())
    chain.slurm.queue(
        chain.row(6, chain.own("s"), "RUNNING", start=str(now - 5000)),
        chain.row(7, chain.own("h", now), "RUNNING", start=str(now - 5)), chain.row(8, chain.own("s")),
    )  # fmt: skip
    chain.inside(7, failed=1)
    assert [kind for kind, _ in chain.kinds()] == ["s", "h"]


def test_twins_of_a_hung_controller_are_cancelled_down_to_two(chain: Chain) -> None:
    chain.ask("keep")
    chain.slurm.queue(*("|".join(row) for row in chain.slurm.rows), chain.row(150, chain.own("s")))
    assert chain.ask("keep") == (0, ["cancelled 150"])
    assert chain.slurm.alive() == [101, 102]


# ---- pulses --------------------------------------------------------------------------------------------------------


@pytest.fixture
def pulses(chain: Chain) -> Chain:
    chain.mode = "pulse"
    (chain.cron.path / "driver" / "job.bash").write_text(chain.script)
    return chain


def slots() -> tuple[int, int, int]:
    """The slot that is past, and the next two. (Not right before one.)"""
    while time.time() % P > P - 5:
        time.sleep(1)
    past = int(time.time()) // P * P
    return past, past + P, past + 2 * P


def test_from_nothing_the_first_pulse_comes_at_once_and_the_second_at_its_slot(pulses: Chain) -> None:
    past, first, _ = slots()
    pulses.ask("keep")
    assert pulses.kinds() == [("p", past), ("p", first)]
    assert "--begin" not in pulses.slurm.submitted[0] and f"slot={past}" in pulses.slurm.submitted[0]
    assert "--begin=now+" in pulses.slurm.submitted[1] and f"slot={first}" in pulses.slurm.submitted[1]
    assert pulses.ask("keep") == (0, [])


def test_a_pulse_that_runs_late_submits_from_the_clock_and_not_from_its_own_start(pulses: Chain) -> None:
    past, first, second = slots()
    pulses.slurm.queue(pulses.row(8, pulses.own("p", past)), pulses.row(9, pulses.own("p", first)))
    said = pulses.inside(7, slot=past - 5 * P)
    assert said == ["submitted 101", "cancelled 8"], "the one whose slot is past goes when the next ones are queued"
    assert sorted(begin for _, begin in pulses.kinds()) == [first, second]


def test_a_pulse_that_begins_a_moment_early_does_not_submit_its_own_slot_again(pulses: Chain) -> None:
    _, first, second = slots()
    pulses.inside(7, slot=first)
    assert [begin for _, begin in pulses.kinds()] == [second, second + P]


def test_seen_from_outside_a_pulse_whose_slot_is_past_is_the_head_of_the_queue(pulses: Chain) -> None:
    """It waits for a free node, and has waited long."""
    past, first, _ = slots()
    pulses.slurm.queue(pulses.row(8, pulses.own("p", past)), pulses.row(9, pulses.own("p", first)))
    assert pulses.ask("keep") == (0, [])


def test_a_pulse_that_fails_puts_the_next_ones_off(pulses: Chain) -> None:
    past, first, second = slots()
    pulses.slurm.queue(pulses.row(8, pulses.own("p", first)), pulses.row(9, pulses.own("p", second)))
    pulses.inside(7, slot=past, failed=6)
    assert min(begin for _, begin in pulses.kinds()) >= time.time() + 1900


def test_after_a_change_of_mode_the_old_ones_go_when_the_new_ones_wait(pulses: Chain) -> None:
    pulses.slurm.queue(pulses.row(8, pulses.own("s")), pulses.row(9, pulses.own("s")))
    assert pulses.ask("keep")[1] == ["submitted 101", "submitted 102", "cancelled 8 9"]


# ---- problems ------------------------------------------------------------------------------------------------------


def test_an_sbatch_whose_answer_was_lost_is_found_again_and_not_repeated(chain: Chain) -> None:
    chain.slurm.fault("sbatch", "if [[ ! -e once ]]; then touch once; lost=1; fi")
    code, said = chain.ask("keep")
    assert (code, said) == (0, ["submitted 102"])
    assert chain.slurm.alive() == [101, 102]


def test_a_refused_successor_is_reported_and_queued_the_next_time(chain: Chain) -> None:
    chain.slurm.fault("sbatch", f"if [[ -e submitted ]]; then {REFUSED}; fi")
    code, said = chain.ask("keep")
    assert code == 75 and said[0] == "submitted 101" and "violates accounting/QOS policy" in said[1]
    chain.slurm.mend("sbatch")
    assert chain.ask("keep") == (0, ["submitted 102"])


def test_trouble_is_noted_for_the_watchdog_and_its_end_too(chain: Chain) -> None:
    chain.slurm.fault("sbatch", REFUSED.replace("Job violates accounting/QOS policy", "Access/permission denied"))
    chain.inside(7, do="keep_and_tell; facts=")
    trouble, _ = trouble_of(chain.cron.path)
    assert "jobs apparently cannot submit jobs here" in trouble and "Access/permission denied" in trouble
    assert "--backend foreground" in trouble, "another way is offered"
    chain.slurm.mend("sbatch")
    assert any("complete again" in line for line in chain.inside(7, do="keep_and_tell; facts="))
    assert trouble_of(chain.cron.path) == ("", 0.0)


def test_a_queue_that_does_not_answer_is_not_an_empty_one(chain: Chain) -> None:
    chain.slurm.fault("squeue", DOWN)
    code, (said,) = chain.ask("keep")
    assert code == 75 and said.startswith("problem squeue does not answer: slurm_load_jobs error")
    assert not chain.slurm.calls("sbatch")


@pytest.mark.parametrize(
    ("change", "why"),
    [("stop", "the scheduler was stopped"), ("uninstall", "was uninstalled"), ("anew", "installed anew")],
)
def test_a_stopped_or_other_installation_gets_no_successor(chain: Chain, change: str, why: str) -> None:
    if change == "stop":
        chain.cron.stop("bob", "enough", NOW)
    else:
        chain.cron.uninstall()
    if change == "anew":
        chain.cron.install(replace(INSTALLED, token="fedcba", by="bob", host="n2"))
    code, said = chain.ask("keep")
    assert code == 3 and why in said[0]
    assert not chain.slurm.calls("sbatch")


@pytest.mark.parametrize("moment", [1, 2])
def test_a_stop_during_a_submission_wins(chain: Chain, moment: int) -> None:
    stop = chain.cron.path / "stop"
    chain.slurm.fault("sbatch", f"if (($(grep -c '^sbatch' calls) == {moment})); then echo '{{}}' >{stop}; fi")
    code, said = chain.ask("keep")
    assert (code, said[-1]) == (3, "ended the scheduler was stopped")
    assert chain.slurm.alive() == []


def test_a_held_successor_is_reported(chain: Chain) -> None:
    chain.slurm.queue(chain.row(8, chain.own("s"), reason="JobHeldUser"), chain.row(9, chain.own("s")))
    code, said = chain.ask("keep")
    assert (code, said) == (75, ["problem job 8 is pending and will never start by itself: JobHeldUser"])


def test_other_installations_jobs_and_ended_ones_are_not_touched_and_do_not_count(chain: Chain) -> None:
    chain.slurm.queue(
        chain.row(7, "(null)", "RUNNING"), chain.row(8, "resil:.cron:other-s0.1"),
        chain.row(9, chain.own("s"), "COMPLETING"), chain.row(10, chain.own("s"), "CANCELLED"),
        chain.row(11, "resil:gpt:0123456789abcdef-s0.1"),
    )  # fmt: skip
    assert chain.ask("keep") == (0, ["submitted 101", "submitted 102"])


def test_the_mark_is_found_among_the_words_of_others(chain: Chain) -> None:
    chain.slurm.queue(
        chain.row(8, f"resil:sbatch:77f0 {MARK}{chain.own('s')}"), chain.row(9, f"resil:x:y {MARK}{chain.own('s')} me")
    )
    assert chain.ask("keep") == (0, [])
    assert [line.split("|")[-1].startswith(MARK) for line in chain.ask("rows")[1]] == [True, True]


# ---- the last word of a job that is cancelled -----------------------------------------------------------------------


def cancelled(chain: Chain, *rows: str) -> list[str]:
    chain.slurm.queue(chain.row(7, chain.own("s"), "COMPLETING"), *rows)
    return chain.inside(7, do="stop_at=$now\nlast_word; facts=")


def test_jobs_cancelled_together_are_a_stop_that_is_told(chain: Chain) -> None:
    now = str(int(time.time()))
    gone = [chain.row(n, chain.own("s"), "CANCELLED").replace("|N/A|N/A|", f"|N/A|{now}|") for n in (8, 9)]
    said = cancelled(chain, *gone)
    assert "cancelled together" in said[-1]
    stopped = chain.cron.stopped()
    assert stopped is not None and stopped["by"] == ME and "scancel" in stopped["why"]
    assert not chain.slurm.submitted


def test_one_that_is_cancelled_alone_leaves_the_rest_and_a_lost_one_is_queued_first(chain: Chain) -> None:
    began = time.monotonic()
    cancelled(chain, chain.row(9, chain.own("h", int(time.time()) + 5000)))
    assert chain.cron.stopped() is None
    assert "s" in [kind for kind, _ in chain.kinds()]
    assert time.monotonic() - began < 20


def test_one_without_successors_that_nobody_cancelled_queues_them(chain: Chain) -> None:
    long_ago = chain.row(8, chain.own("s"), "CANCELLED").replace("|N/A|N/A|", f"|N/A|{int(time.time()) - 400}|")
    cancelled(chain, long_ago)
    assert chain.cron.stopped() is None and len(chain.slurm.submitted) == 2


# ---- the end of a chain ---------------------------------------------------------------------------------------------


def test_cancelling_takes_what_waits_and_signals_what_runs(chain: Chain) -> None:
    chain.slurm.queue(chain.row(7, chain.own("s"), "RUNNING"), chain.row(8, chain.own("s")), chain.row(9, "h5.old"))
    assert chain.ask("end") == (0, ["cancelled 8 9", "signalled 7"])
    assert chain.slurm.calls("scancel")[-1] == "--batch --signal=USR1 7"
    assert chain.ask("kill") == (0, ["cancelled 7"])
    assert chain.slurm.alive() == []


def test_jobs_that_will_not_go_away_are_an_error_and_no_endless_wait(chain: Chain) -> None:
    chain.slurm.fault("scancel", "echo 'scancel: error: Kill job error: Access/permission denied' >&2; exit 1")
    chain.slurm.queue(chain.row(8, chain.own("s")))
    began = time.monotonic()
    code, said = chain.ask("end")
    assert code == 75 and "Access/permission denied" in said[0] and time.monotonic() - began < 60


# ---- whatever happens -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["daemon", "pulse"])
def test_whatever_happens_to_the_queue_it_has_two_successors_again_and_never_more(chain: Chain, mode: str) -> None:
    """Jobs are lost, doubled by a controller that hung, started, ended: looking makes it good."""
    chain.mode, dice, slurm = mode, random.Random(5), chain.slurm
    chain.slurm.fault("sbatch", '((RANDOM % 4)) || { printf "%s\\n" "$*" >>submitted; }')  # ids are skipped as well
    for _ in range(12):
        running = slurm.alive("RUNNING")
        chain.inside(running[-1]) if running else chain.ask("keep")
        waiting = slurm.alive("PENDING")
        assert len(waiting) == 2, slurm.rows
        assert len(set(chain.kinds())) == 2 or chain.kinds() == [("s", 0)] * 2
        event = dice.choice(["start", "start", "lose", "lose all", "end", "double"])
        if event == "start":
            now = str(int(time.time()))
            slurm.change(waiting[0], state="RUNNING", start=now, end=str(int(now) + 86400), node="n1")
        elif event == "end" and running:
            slurm.change(running[-1], state="COMPLETED")
        elif event == "lose":
            slurm.change(waiting[-1], state="CANCELLED")
        elif event == "lose all":
            slurm.queue()
        elif event == "double":
            twin = slurm.rows[-1]
            slurm.queue(*("|".join(row) for row in slurm.rows), "|".join(["900", *twin[1:]]))


def test_the_bash_of_an_old_cluster_is_enough() -> None:
    """Empty arrays under `set -u` failed before bash 4.4."""
    text = Path(script.__file__).with_name("scheduler.bash").read_text()
    for name in ("waits", "runs", "all", "missing"):
        assert f'"${{{name}[@]}}"' not in text.replace(f'+"${{{name}[@]}}"', ""), name
