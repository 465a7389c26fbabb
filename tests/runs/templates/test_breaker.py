"""The breaker in the batch shell: a crash loop ends after three attempts. With a real bash, without a scheduler."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from resilience.attempts.acting import act
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_files import read_attempts
from resilience.runs.templates.script import ScriptSpec, render
from resilience.schedulers._local.records import Task, to_json
from resilience.settings.sections import ActSettings
from tests.lab.fakes import make_project
from tests.runs.templates.batch import SHIPPED, Batch, Script

ACTS = ActSettings(enabled=True)
CAN_HOLD = '#!/bin/sh\necho "$@" >>scontrol.asked\n'
MAY_NOT = '#!/bin/sh\necho "$@" >>scontrol.asked\necho "Access/permission denied" >&2\nexit 1\n'


class Loop:
    """An array of single tasks, run one after another as the scheduler would, unless one is held."""

    def __init__(self, batch: Batch) -> None:
        self.batch, self.job, self.may_hold, self.act = batch, 100, True, ACTS

    def one(
        self, command: str = "exit 1", job: int = 0, waiting: int = 900, given: Mapping[str, str] = {}, **wishes: Any
    ) -> Script:
        """Run the next job, while another one waits in the queue. `given`: more variables of its environment."""
        self.job = job or self.job + 1
        self.batch.state(waiting, "PENDING")
        environment = {**self.batch.program("scontrol", CAN_HOLD if self.may_hold else MAY_NOT), **given}
        script = self.batch.run(command, self.job, environment=environment, act=self.act, **wishes)
        self.batch.state(self.job, "COMPLETED")
        return script

    def failed(self, times: int) -> None:
        """Write what these attempts have left."""
        for number in range(1, times + 1):
            path = self.batch.attempt(number, job=number)
            path.with_name(f"{path.name}.end").write_text(f'end = "exited"\nburnt = {number}\noutside = 0\n')

    def opens(self) -> Script:
        """Fail for the third time in a row."""
        self.failed(2)
        script = self.one()
        assert self.is_open
        return script

    def saves(self, step: int) -> str:
        """A training whose guard journals a durable save, and that fails then."""
        event = {"event": "save", "time": 1, "attempt": 0, "step": step, "seconds": 1}
        line = json.dumps(event, separators=(",", ":")).replace('"attempt":0', '"attempt":%d')
        file = f"{self.batch.run_dir}/journal/$SLURM_JOB_ID.0.jsonl"
        return f"printf '{line}\\n' $RESIL_ATTEMPT >>{file}; exit 1"

    def functions(self) -> str:
        """Return the functions of a rendered script, without what it does."""
        wish = ScriptSpec(run="demo", run_dir=str(self.batch.run_dir), command="exit 75", act=self.act)
        return render(SHIPPED, "python", wish).partition("\nresil_begin\n")[0] + "\n"

    def in_shell(self, commands: str) -> list[str]:
        """Run commands with the functions of a rendered script; return the lines of their output."""
        environment = {**os.environ, "SLURM_JOB_ID": "1", "RESIL_SCHEDULER": "local"}
        script = self.batch.root / "in_shell"
        script.write_text(self.functions() + commands)
        done = subprocess.run(
            ["bash", str(script)], cwd=self.batch.root, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.splitlines()

    @property
    def asked(self) -> list[str]:
        """What scontrol was asked for."""
        path = self.batch.root / "scontrol.asked"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def is_open(self) -> bool:
        return self.file().exists()

    def file(self, suffix: str = "") -> Path:
        return self.batch.run_dir / "attempts" / f"breaker{suffix}"

    @property
    def burnt(self) -> list[int]:
        """The launches: how many attempts trained."""
        ends = [self.batch.end(number) for number in range(1, 100)]
        return [number for number, end in enumerate(ends, 1) if end.get("launched")]


@pytest.fixture
def loop(batch: Batch) -> Loop:
    return Loop(batch)


def test_three_failures_in_a_row_hold_the_queue_and_the_fourth_job_trains_no_more(loop: Loop) -> None:
    texts = [loop.one().text for _ in range(3)]
    assert loop.is_open and loop.asked == ["hold 900"]
    assert "opens" not in texts[1] and "held the queued jobs of this run: 900" in texts[2]
    assert "3 attempts in a row failed without a new checkpoint" in texts[2]
    assert "exit code 1" in texts[2] and "resil breaker close demo" in texts[2]
    script = loop.one("touch launched")
    assert script.wait() == 75 and not loop.batch.launched
    assert "the breaker of run demo is open: 3 attempts in a row" in script.text
    assert loop.burnt == [1, 2, 3] and loop.batch.end(4) == {}, "a job that may not train takes no number"


def test_where_jobs_may_not_hold_others_the_start_ends_each_of_them_at_once(loop: Loop) -> None:
    loop.may_hold = False
    scripts = [loop.one() for _ in range(6)]
    assert [script.wait() for script in scripts] == [1, 1, 1] + [75] * 3
    assert loop.burnt == [1, 2, 3]
    assert "cannot be held here: Access/permission denied" in scripts[2].text
    assert [event for job in range(101, 107) for event in loop.batch.events(job)].count("breaker_opened") == 1


def test_of_an_array_of_the_embedded_scheduler_it_holds_the_array(loop: Loop) -> None:
    loop.failed(2)
    for task in (901, 902):
        (loop.batch.state(task, "PENDING") / "array").write_text("90")
    loop.one(waiting=901)
    assert loop.asked == ["hold 90"]


def test_a_job_of_the_embedded_scheduler_that_its_owner_holds_is_left_alone(loop: Loop) -> None:
    loop.failed(2)
    task = Task(raw=902, held=True)
    (loop.batch.state(902, "PENDING") / "task.json").write_text(to_json(task))
    (loop.batch.state(900, "PENDING") / "task.json").write_text(to_json(replace(task, held=False)))
    loop.one()
    assert loop.asked == ["hold 900"] and loop.file(".held").read_text() == "900\n"


def test_without_leave_it_says_what_it_would_do(loop: Loop) -> None:
    loop.act = ActSettings()
    first, second = loop.opens().text, loop.one().text
    assert "it would hold the queued jobs" in first and "the breaker would end this job" in second
    assert "enabled = true under [act]" in first
    assert not loop.asked and loop.burnt == [3, 4]


def test_a_new_durable_step_starts_the_count_again_and_an_old_one_does_not(loop: Loop) -> None:
    for command in ("exit 1", "exit 1", loop.saves(10), "exit 1", loop.saves(10)):
        loop.one(command)
        assert not loop.is_open, command
    assert loop.batch.end(3)["burnt"] == 0 and loop.batch.end(5)["durable"] == 10
    loop.one(loop.saves(9))
    assert loop.is_open, "saved again, and not further: three without progress"


@pytest.mark.parametrize(("known", "burnt"), [("", 0), ("durable = 50", 3)])
def test_five_minutes_without_a_guard_are_progress_unless_a_guard_has_saved_before(
    loop: Loop, known: str, burnt: int
) -> None:
    loop.failed(2)
    end = loop.batch.run_dir / "attempts" / "0002.end"
    end.write_text(f"{end.read_text()}{known}\n")
    counted = "resil_launched_at=$((SECONDS - 400)) RESIL_ATTEMPT=3; resil_count exited 1; echo $resil_burnt"
    assert loop.in_shell(f"resil_launched=true\n{counted}") == [str(burnt)]
    assert loop.in_shell(f"resil_launched=false\n{counted}") == ["3"], "setup is no training"


def test_ends_from_outside_count_on_their_own(loop: Loop) -> None:
    loop.act = ActSettings(enabled=True, neutral=2)
    for job in range(200, 202):
        assert not loop.is_open
        script = loop.batch.start(
            "echo ready; exec sleep 60", job, says="ready", act=loop.act,
            environment=loop.batch.program("scontrol", CAN_HOLD),
        )  # fmt: skip
        script.wait_after(signal.SIGTERM)
        loop.batch.state(job, "PREEMPTED")
    assert loop.is_open
    assert "2 attempts in a row were ended from outside" in loop.file().read_text()


def test_lost_nodes_and_stops_on_purpose_are_no_failures(loop: Loop) -> None:
    for number in range(1, 7):
        path = loop.batch.attempt(number, job=10 + number)
        path.with_name(f"{path.name}.end").write_text('end = "lost"\ntime = 2\nseen_by = 9\n')
    loop.one("exit 75")
    assert not loop.is_open
    assert (loop.batch.end(7)["burnt"], loop.batch.end(7)["outside"]) == (0, 6)


def test_closed_by_a_person_lost_attempts_count_no_more_either(loop: Loop) -> None:
    for number in range(1, 7):
        loop.batch.attempt(number, job=10 + number)
    loop.file(".closed").write_text("attempt = 5\n")
    loop.one("exit 75")
    assert loop.batch.end(7)["outside"] == 1


def test_it_survives_a_requeue_and_other_job_ids(loop: Loop) -> None:
    loop.failed(1)
    loop.one()
    loop.one(job=loop.job)  # a requeue keeps the id
    assert loop.is_open
    assert loop.one("touch launched", job=9000).wait() == 75


def test_it_survives_restarts_of_the_same_job_without_a_pause(loop: Loop) -> None:
    """As with `sbatch --requeue=expedite` of SLURM 25.11: the same id, a restart count, and at once."""
    restarts = [{}, *({"SLURM_RESTART_COUNT": str(number)} for number in (1, 2, 3))]
    scripts = [loop.one("exit 3", job=500, given=given) for given in restarts]
    assert [script.wait() for script in scripts] == [3, 3, 3, 75] and loop.burnt == [1, 2, 3]
    assert [attempt.restart for attempt in read_attempts(RunDirectory(loop.batch.run_dir))] == [0, 1, 2]
    assert loop.asked[-1] == "hold 900", "never itself: SLURM makes a hold of its own job that only root may release"


def test_alternating_exit_codes_hosts_and_job_ids_are_one_loop(loop: Loop) -> None:
    loop.failed(1)
    loop.one("kill -9 $$", job=700, given={"SLURMD_NODENAME": "n1"})
    loop.one("echo NaN; exit 2", job=600, given={"SLURMD_NODENAME": "n2", "SLURM_RESTART_COUNT": "7"})
    assert loop.is_open and loop.one("touch launched", job=800, given={"SLURMD_NODENAME": "n3"}).wait() == 75


def test_success_is_no_failure_although_it_does_not_finish_the_run(loop: Loop) -> None:
    loop.failed(2)
    assert loop.one("exit 0", finish_on_success=False).wait() == 0
    assert not loop.is_open and loop.batch.end(3)["burnt"] == 0


def test_a_failing_setup_counts(loop: Loop) -> None:
    loop.failed(2)
    loop.one("touch launched", setup=("ls no-such-file 2>/dev/null",))
    assert loop.is_open and "the batch script ended early" in loop.file().read_text()


def test_closed_by_a_person_it_counts_from_there(loop: Loop) -> None:
    loop.opens()
    loop.file(".closed").write_text("attempt = 3\n")
    loop.file().unlink()
    loop.one()
    loop.one()
    assert not loop.is_open and loop.batch.end(5)["burnt"] == 2
    loop.one()
    assert loop.is_open


def test_the_start_opens_what_an_end_could_not(loop: Loop) -> None:
    loop.opens()
    loop.file().unlink()  # the node died between the end and this
    script = loop.one("touch launched")
    assert script.wait() == 75 and loop.is_open and not loop.batch.launched
    assert "attempt 3" in loop.file().read_text()


def test_half_open_lets_one_through_whose_failure_closes_the_way_again(loop: Loop) -> None:
    loop.opens()
    text = loop.file().read_text()
    loop.file().write_text(text.replace("retry_at = 0", f"retry_at = {int(time.time()) + 3600}"))
    assert loop.one("touch launched").wait() == 75
    loop.file().write_text(text.replace("retry_at = 0", "retry_at = 5"))
    script = loop.one("exit 3")
    assert script.wait() == 3 and "the breaker is half open" in script.text
    assert "burnt = 4" in loop.file().read_text() and "retry_at = 0" in loop.file().read_text()
    assert loop.one("touch launched").wait() == 75


def test_half_open_is_over_once_the_one_that_tried_has_failed_although_its_shell_could_not_say(loop: Loop) -> None:
    loop.opens()
    loop.file().write_text(loop.file().read_text().replace("retry_at = 0", "retry_at = 5"))
    path = loop.batch.attempt(4, job=104)
    path.with_name("0004.end").write_text('end = "exited"\nburnt = 4\noutside = 0\n')
    assert loop.one("touch launched").wait() == 75 and not loop.batch.launched


def test_progress_of_the_one_that_may_try_releases_the_others(loop: Loop) -> None:
    loop.opens()
    loop.file().write_text(loop.file().read_text().replace("retry_at = 0", "retry_at = 5"))
    script = loop.one(loop.saves(4))
    assert not loop.is_open and not loop.file(".held").exists()
    assert loop.asked[-1] == "release 900" and "this attempt made progress" in script.text


def test_a_task_that_a_watchdog_has_held_is_released_and_nothing_else_of_that_file(loop: Loop) -> None:
    loop.opens()
    loop.file().write_text(loop.file().read_text().replace("retry_at = 0", "retry_at = 5"))
    loop.file(".held").write_text("900\n50_4\n--help\n$(id)\n")
    loop.one(loop.saves(4))
    assert loop.asked[-1] == "release 50_4 900"


def test_what_was_open_and_acting_stays_so_when_a_job_without_leave_fails(loop: Loop) -> None:
    loop.opens()
    loop.file().write_text(loop.file().read_text().replace("retry_at = 0", "retry_at = 5"))
    loop.act = ActSettings()
    loop.one("exit 3")
    assert "burnt = 4" in loop.file().read_text() and "acting = true" in loop.file().read_text()


@pytest.mark.parametrize("by", ["user ada", "alert 3f9a1c04"])
def test_only_a_person_closes_what_a_person_or_an_alert_has_opened(loop: Loop, by: str) -> None:
    text = f'opened = 5\nattempt = 0\nburnt = 0\nacting = true\nby = "{by}"\nretry_at = 0\nwhy = "new data"\n'
    for command in (loop.saves(4), "exit 1"):  # it trained already when the breaker was opened
        loop.one(f"printf '{text.encode('unicode_escape').decode()}' >{loop.file()}; {command}")
        assert loop.file().read_text() == text and "release 900" not in loop.asked
        loop.file().unlink()


def test_ten_jobs_that_see_an_open_breaker_at_once_open_it_once(loop: Loop) -> None:
    loop.failed(3)
    environment = loop.batch.program("scontrol", CAN_HOLD)
    scripts = [loop.batch.start("touch launched", job, environment=environment, act=ACTS) for job in range(300, 310)]
    assert {script.wait(60) for script in scripts} == {75}
    opened = [event for job in range(300, 310) for event in loop.batch.events(job)].count("breaker_opened")
    assert opened == 1 and not loop.batch.launched


@pytest.mark.parametrize("text", ["", "\0\xff\n[[", 'why = "a \\" b', "acting = true"], ids=repr)
def test_a_damaged_file_is_still_an_open_breaker_or_harmless(loop: Loop, text: str) -> None:
    loop.file().write_text(text)
    script = loop.one("exit 7")
    assert script.wait() == (75 if "acting = true" in text else 7)


def test_the_start_check_costs_less_than_30_ms(loop: Loop) -> None:
    """Measured in one shell: the functions of the script, a thousand attempts behind it."""
    for number in range(1, 1000):
        path = loop.batch.attempt(number, job=number)
        path.with_name(f"{path.name}.end").write_text('end = "exited"\nburnt = 1\noutside = 0\ndurable = 5\n')
    taken = loop.in_shell(
        "RESIL_ATTEMPT=1001\n"
        "for _ in 1 2 3 4 5; do\n"
        "t0=${EPOCHREALTIME/[.,]/}; resil_check_breaker; resil_check_breaker counted; t1=${EPOCHREALTIME/[.,]/}\n"
        "echo $((t1 - t0))\n"
        "done\n"
    )
    assert min(map(int, taken)) < 30_000, "microseconds"


ROWS = (
    "{own}|100|RUNNING|None|resil:demo:token",  # an array whose job is this one
    "100|100|PENDING|JobArrayTaskLimit|resil:demo:token",
    "800|800|PENDING|Dependency|resil:demo:token x",
    "801|801|PENDING|JobHeldUser|resil:demo:token",  # by its owner, on purpose
    "802|802|PENDING|job requeued in held state|resil:demo:token",
    "803|803|PENDING|Priority|resil:demo:other",
    "804|804|PENDING|Priority|",
)
SQUEUE = """#!/bin/bash
[[ "$*" == *%F* ]] || {{ echo "$SLURM_JOB_ID RUNNING"; exit; }}
grep -qs release scontrol.asked || [ ! -s scontrol.asked ] || exec true
tr '|' '\\037' <<'END'
{rows}
END
"""


@pytest.mark.parametrize("template", ["python", "srun"])
def test_of_the_queue_of_slurm_it_holds_what_is_queued_of_this_run_and_not_held_by_its_owner(
    loop: Loop, template: str
) -> None:
    loop.failed(2)
    rows = "\n".join(ROWS).format(own=101)
    loop.batch.program("squeue", SQUEUE.format(rows=rows))
    loop.batch.program("srun", '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nexec "$@"\n')
    # As for an array of which a task has ended: an error although all is done.
    finished = CAN_HOLD + 'echo "100_1-2: Job has already finished" >&2\nexit 1\n'
    environment = {**loop.batch.program("scontrol", finished), "RESIL_SCHEDULER": "", "SLURM_NNODES": "1"}
    script = loop.batch.run("exit 1", 101, environment=environment, act=ACTS, template=template)
    assert "hold 100 800" in loop.asked and "held the queued jobs of this run: 100 800" in script.text
    assert loop.file(".held").read_text().split() == ["100", "800"]


def test_where_the_queue_cannot_be_read_it_opens_and_the_start_ends_the_rest(loop: Loop) -> None:
    loop.failed(2)
    loop.batch.program("squeue", "#!/bin/sh\nexit 1\n")
    environment = {**loop.batch.program("scontrol", MAY_NOT), "RESIL_SCHEDULER": ""}
    script = loop.batch.run("exit 3", 7, environment=environment, act=ACTS)
    assert script.wait() == 3 and loop.is_open and not loop.asked
    assert "SLURM does not answer: the queued jobs are not held, each ends at its start instead" in script.text
    assert loop.batch.run("touch launched", 8, environment=environment, act=ACTS).wait() == 75
    assert not loop.batch.launched


def test_a_silent_scheduler_opens_nothing_where_it_may_have_ended_the_job(loop: Loop) -> None:
    loop.failed(2)
    loop.batch.program("squeue", "#!/bin/sh\nexit 1\n")
    loop.batch.program("srun", "#!/bin/sh\nexit 1\n")
    environment = {**loop.batch.program("scontrol", MAY_NOT), "RESIL_SCHEDULER": "", "SLURM_NNODES": "1"}
    assert loop.batch.run("true", 7, environment=environment, act=ACTS, template="srun").wait() == 1
    assert not loop.is_open and loop.batch.end(3)["burnt"] == 2


def test_two_ticks_and_a_batch_shell_at_once_open_it_once(loop: Loop) -> None:
    loop.failed(2)
    project = make_project(loop.batch.root, settings='[run]\nname = "demo"\n[act]\nenabled = true\n')
    directory, is_over = RunDirectory(loop.batch.run_dir), Event()

    def ticks() -> list[str]:
        said = []
        while not is_over.is_set():
            said.append(act(project, directory))
        return [*said, act(project, directory)]

    with ThreadPoolExecutor(2) as pool:
        two = [pool.submit(ticks) for _ in range(2)]
        loop.one()
        is_over.set()
    opened = sum("opens" in text for one in two for text in one.result()) + loop.batch.events(101).count(
        "breaker_opened"
    )
    assert opened == 1 and loop.asked == ["hold 900"]


DRIVER = """
while read -r RESIL_ATTEMPT end code step; do
  if [ "$RESIL_ATTEMPT" = 1 ]; then rm -f "$RESIL_RUN_DIR"/attempts/* "$RESIL_RUN_DIR"/journal/*; fi
  RESIL_JOB_ID=$((100 + RESIL_ATTEMPT)) resil_launched=true resil_launched_at=$SECONDS
  printf -v file '%s/attempts/%04d' "$RESIL_RUN_DIR" "$RESIL_ATTEMPT"
  echo "job_id = $RESIL_JOB_ID" >"$file"
  [ "$step" = - ] || printf '{"event":"save","time":1,"attempt":%d,"step":%d}\\n' "$RESIL_ATTEMPT" "$step" \\
    >"$RESIL_RUN_DIR/journal/$RESIL_JOB_ID.0.jsonl"
  if [ "$end" = lost ]; then # another attempt records it
    echo 'end = "lost"' >"$file.end"
    resil_tally $((RESIL_ATTEMPT + 1))
  else
    resil_count "$end" "$code"
    printf 'end = "%s"\\nburnt = %d\\noutside = %d\\n%s' "$end" "$resil_burnt" "$resil_outside" \\
      "${resil_best:+durable = $resil_best$'\\n'}" >"$file.end"
  fi
  echo "counts $resil_burnt $resil_outside"
done <steps
"""


def test_over_drawn_histories_the_shell_counts_what_made_no_progress(loop: Loop) -> None:
    drawn = random.Random(20261123)
    steps, expected = [], []
    for _ in range(400 if "RESIL_SOAK" in os.environ else 40):
        best, burnt, outside = -1, 0, 0
        for attempt in range(1, drawn.randint(2, 12)):
            end = drawn.choice(("exited", "exited", "exited", "terminated", "lost", "stopped", "superseded"))
            code = drawn.choice((0, 1, 1, 137)) if end == "exited" else 75
            save = drawn.choice((None, None, None, best, best + 1, 7))
            save = None if save is None or save < 0 else save
            if (save is not None and save > best) or (end, code) == ("exited", 0):
                burnt, outside = 0, 0
            else:
                burnt += end == "exited"
                outside += end in ("terminated", "lost", "superseded")
            best = max(best, -1 if save is None else save)
            steps.append(f"{attempt} {end} {code} {'-' if save is None else save}")
            expected.append(f"counts {burnt} {outside}")
    (loop.batch.root / "steps").write_text("\n".join(steps) + "\n")
    found = loop.in_shell(DRIVER)
    for number, (line, counts) in enumerate(zip(found, expected, strict=True)):
        assert line == counts, steps[max(0, number - 12) : number + 1]
