"""`resil cron`: what people type, what is printed, and what a program reads of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from resilience.cli import cron as cron_command
from resilience.cli.cron import complete_entries
from resilience.cli.run_cron import _print_consequence
from resilience.cli.show_cron import ago, outcome_text, print_ignored, show_status, sign, span, when
from resilience.cron.driver_choice import drivers
from resilience.cron.drivers import DriverState
from resilience.cron.health import Health, Judgement
from resilience.cron.late import late_notice
from resilience.cron.project import CronProject, open_cron
from resilience.cron.records import Heartbeat, Installation, Outcome, RunRecord
from resilience.cron.status import CronStatus, Lateness
from resilience.errors import SchedulerError
from resilience.job import Liveness
from tests.cron.records import put_run, take
from tests.lab.fakes import DOWN, NOW, FakeScheduler, make_project
from tests.lab.hung import hung_directory
from tests.lab.shell import SETTINGS, Desk, Said, Shell
from tests.lab.waiting import until
from tests.system.people import needs_root


@pytest.fixture
def desk(shell: Shell) -> Iterator[Desk]:
    drivers.cache_clear()
    yield Desk(shell)
    drivers.cache_clear()


# ---- the whole surface


COMMANDS = [str(one.name or one.callback.__name__) for one in cron_command.app.registered_commands if one.callback]


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "job"])
def test_every_command_has_help_with_examples(desk: Desk, name: str) -> None:
    said = desk.cron(name, "--help").out
    assert f"resil cron {name}" in said and "xample" in said and "--config" in said


def test_the_commands_are_listed_whole_and_the_jobs_own_is_hidden(desk: Desk) -> None:
    said = desk.cron("--help").out
    for name in COMMANDS:
        assert (f"\n  {name} " in said) is (name != "job")
    assert "..." not in said.partition("Commands:")[2], "each fits on its line"


def test_an_unknown_command_is_a_usage_error(desk: Desk) -> None:
    assert desk.cron("stauts", code=2).err.startswith("resil: error: ")


def test_cron_alone_is_its_status(desk: Desk) -> None:
    assert desk.cron(code=1).out == desk.cron("status", code=1).out


# ---- install, status, stop, uninstall


def test_nothing_installed_says_what_to_do_and_exits_with_1(desk: Desk) -> None:
    said = desk.cron("status", code=1)
    assert "not installed" in said.out and "try: start it: resil cron install" in said.out
    assert desk.cron("status", "--json", code=1).json["health"] == "not installed"


def test_a_dry_run_of_install_shows_every_line_and_changes_nothing(desk: Desk) -> None:
    said = desk.cron("install", "--dry-run").out
    assert said.startswith("fake: ") and "would: write a line" in said and "    * * * * * resil cron tick" in said
    assert not (desk.directory / "line").exists() and desk.project.state.installation() is None
    document = desk.cron("install", "--dry-run", "--json").json
    assert document["dry_run"] and document["driver"] == "fake"
    assert document["steps"] == [{"what": "write a line", "text": "* * * * * resil cron tick"}]
    assert "token" not in document["installation"]


def test_the_life_of_a_scheduler(desk: Desk) -> None:
    desk.drop("backup")
    said = desk.cron("install").out
    assert "wrote a line" in said and "resil cron status" in said
    assert "no change: already installed" in desk.cron("install").out, "again does nothing"
    waiting = desk.cron("status").out
    assert "waiting" in waiting and "first tick" in waiting
    desk.beat()
    alive = desk.cron("status").out
    assert (
        "alive: the line is there" in alive
        and "66 ticks" in alive
        and "late by 1.5 s" in alive
        and "installed by" in alive
    )
    assert "cron.hourly/backup" in alive and ", in " in alive

    stopped = desk.cron("stop", "--why", "maintenance").out
    assert "took the line out" in stopped and "resil cron install" in stopped
    status = desk.cron("status", code=1).out
    assert "stopped: by " in status and "maintenance" in status and "resil cron install" in status
    assert "next, once the scheduler runs" in status
    for words in (("tick",), ("run", "--once"), ("tick", "--dry-run")):
        said = desk.cron(*words).out
        assert said.count("stopped by") == 1 and "maintenance" in said

    again = desk.cron("install").out
    assert "resumed" in again and (desk.directory / "line").exists()
    assert "would uninstall fake" in desk.cron("uninstall", "--dry-run").out and (desk.directory / "line").exists()
    gone = desk.cron("uninstall").out
    assert "took the line out" in gone and "uninstalled" in gone
    assert "nothing is installed" in desk.cron("uninstall").out
    assert "not installed" in desk.cron("status", code=1).out


def test_a_dead_scheduler_says_the_command_that_brings_it_back(desk: Desk) -> None:
    desk.cron("install")
    desk.beat(driver="fake")
    (desk.directory / "line").unlink()
    said = desk.cron("status", code=1).out
    assert "dead: no line" in said and "resil cron install" in said and "GONE" in said
    document = desk.cron("status", "--json", code=1).json
    assert document["driver"]["liveness"] == "GONE" and "install" in document["advice"]


def test_a_late_scheduler_is_late_and_says_by_how_much(desk: Desk) -> None:
    desk.cron("install")
    before = desk.project.state.installation()
    assert before is not None
    text = (desk.project.state.path / "driver.json").read_text()
    (desk.project.state.path / "driver.json").write_text(text.replace(str(before.time), str(before.time - 90000)))
    desk.beat(ago_s=300)
    said = desk.cron("status", code=1).out
    assert re.search(r"late: last tick 5 min.*, next tick overdue by 4 min", said) and "try: " in said


def test_the_status_is_json_for_programs(desk: Desk) -> None:
    desk.drop("backup")
    desk.drop("notes.txt", mode=0o644)
    desk.cron("install")
    desk.beat()
    desk.record("cron.hourly/backup", 60, Outcome.FAILED, started=time.time() - 58, exit_code=3)
    document = desk.cron("status", "--json").json
    assert (document["schema"], document["kind"], document["health"]) == ("resil/1", "cron-status", "alive")
    (entry,) = document["entries"]
    assert entry["last"]["outcome"] == "failed" and entry["failed"] == 1 and entry["next"] > time.time()
    assert document["lateness"]["runs"] == 1 and document["heartbeat"]["ticks"] == 66
    assert document["next"][0]["name"] == "cron.hourly/backup" and document["ignored"] == 1
    assert "token" not in json.dumps(document)


def test_damaged_state_is_no_traceback(desk: Desk) -> None:
    desk.cron("install")
    (desk.project.state.path / "heartbeat").write_text("\0")
    said = desk.cron("status", code=75)
    assert "unknown" in said.out and "try: " in said.out


@needs_root
@pytest.mark.parametrize("what", ["state_dir", "cron directory"])
def test_a_disk_that_hangs_keeps_nobody_from_an_answer(desk: Desk, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    from resilience.cron import status as cron_status
    from resilience.doctor import cron as cron_doctor

    for module in (cron_doctor, cron_status):
        monkeypatch.setattr(module, "READ_S", 0.5)
    with hung_directory(desk.directory.parent / "hung") as directory:
        settings = SETTINGS + '[cron]\nbackend = "fake"\n'
        if what == "state_dir":
            desk.shell.settings(settings.replace("[run]", f'[run]\nstate_dir = "{directory}/state"'))
        else:
            desk.shell.settings(f'{settings}folder = "{directory}/cron"\n')
        began = time.monotonic()
        said = desk.cron("status", code=75)
        assert "unknown" in said.out and "no answer within 0.5 s" in said.out
        assert "resil cron" not in said.out or "start it" not in said.out, "unknown is not dead"
        assert desk.cron("status", "--json", code=75).json["health"] == "unknown"
        assert "UNKNOWN" in desk.cron("doctor", code=75).out
        assert time.monotonic() - began < 60


def begin_in_this_process(desk: Desk, name: str) -> None:
    """Let this process be the active run of an entry."""
    slot = int(time.time()) - 300
    put_run(desk.project.state, name.replace("/", "+"), slot, at=float(slot))


def test_a_run_under_way_says_for_how_long(desk: Desk) -> None:
    desk.drop("backup")
    begin_in_this_process(desk, "cron.hourly/backup")
    said = desk.cron("status", code=1).out
    assert re.search(r"\.\. +cron.hourly/backup +([0-9]+ \w+ )?[0-9:]+ +running for 5 min", said)
    assert re.search(r"\.\. .* 5 min.* so far .*running", desk.cron("history", "backup").out)


# ---- list


def test_the_list_has_schedule_next_run_kind_timeout_options_and_place(desk: Desk) -> None:
    desk.drop("backup", "#!/bin/sh\n# resil: timeout=5m rerun\n")
    desk.drop("eval.slurm", "#!/bin/sh\n")
    desk.drop("notes.txt", mode=0o644)
    desk.drop("half.sh")
    (desk.directory / "cron" / "crontab").write_text(
        "30 2 * * 1  curl https://u:geheim99@h/  # resil: name=tea ok=0-3\n"
    )
    said = desk.cron("list").out
    lines = {line.split()[0]: line for line in said.splitlines()}
    assert said.split()[:4] == ["ENTRY", "RUNS", "NEXT", "KIND"]
    backup = lines["cron.hourly/backup"]
    assert "every hour" in backup and ", in " in backup and "5 min" in backup and "rerun" in backup
    assert " submit " in lines["cron.hourly/eval.slurm"]
    assert "at 02:30 on Monday" in lines["crontab/tea"] and "ok=0-3" in lines["crontab/tea"]
    assert "cron/crontab:1" in lines["crontab/tea"] and "geheim99" not in said
    assert "1 item in the cron directory cannot run" in said and "resil cron doctor" in said
    document = desk.cron("list", "--json").json
    assert {entry["name"] for entry in document["entries"]} == {"cron.hourly/backup", "cron.hourly/eval.slurm",
                                                                "crontab/tea"}  # fmt: skip
    assert {ignored["is_fault"] for ignored in document["ignored"]} == {True, False}


def test_an_empty_directory_says_how_to_begin(desk: Desk) -> None:
    said = desk.cron("list").out
    assert "nothing is scheduled" in said and "resil cron add" in said


# ---- history and logs


def test_the_history_has_slot_lateness_duration_and_outcome(desk: Desk) -> None:
    desk.drop("backup")
    desk.record("cron.hourly/backup", 7200, Outcome.MISSED, count=4)
    slot = desk.record("cron.hourly/backup", 3600, Outcome.FAILED, exit_code=3, summary="disk full\x1b[31m", host="n1")
    desk.record("cron.daily/other", 60, Outcome.SUBMITTED, job_id="88")
    said = desk.cron("history", "backup").out
    head, missed, failed = said.splitlines()
    assert "LATE" not in head, "nothing began" if "3.0 s" not in failed else ""
    assert missed.startswith("--") and "missed 4 slots" in missed
    assert failed.startswith("!!") and " 3 " in failed and "disk full?[31m" in failed and "n1" in failed
    everything = desk.cron("history").out
    assert "cron.daily/other" in everything and "88" in everything and everything.count("\n") == 4
    (one,) = desk.cron("history", "backup", "-n", "1", "--json").json["runs"]
    assert (one["slot"], one["exit_code"], one["is_failure"]) == (slot, 3, True)


def test_a_run_says_how_late_it_began_and_how_long_it_took(desk: Desk) -> None:
    now = time.time()
    desk.record("cron.hourly/backup", 3600, started=int(now - 3600) + 1.5)
    (one,) = desk.cron("history", "--json").json["runs"]
    assert one["late_s"] == 1.5 and one["took_s"] == 1.5
    assert "1.5 s" in desk.cron("history").out


def test_an_unknown_name_is_answered_with_the_nearest(desk: Desk) -> None:
    desk.drop("backup")
    for command in ("history", "logs", "remove"):
        said = desk.cron(command, "bakup", code=2)
        assert "unknown entry 'bakup'" in said.err and "did you mean cron.hourly/backup?" in said.err


def test_a_history_without_runs_says_when_there_will_be_some(desk: Desk) -> None:
    desk.drop("backup")
    assert "has not run yet" in desk.cron("history", "backup").out
    assert "no entry has run yet" in desk.cron("history").out
    assert "has not run yet" in desk.cron("logs", "backup", code=2).err


def test_logs_are_the_words_of_a_run_without_what_steers_a_terminal(desk: Desk) -> None:
    desk.drop("backup")
    for number, text in enumerate(("first\n", "\x1b]0;title\x07\x1b[31msecond\x1b[0m\n")):
        desk.record("cron.hourly/backup", 3600 - number * 60, output=f"{number}.txt")
        directory = desk.project.state.path / "output" / "cron.hourly+backup"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{number}.txt").write_text(text)
    said = desk.cron("logs", "backup")
    assert said.out == "second\n" and said.err.startswith("==> cron.hourly/backup ")
    assert desk.cron("logs", "backup", "--last", "2").out == "first\nsecond\n"
    assert desk.cron("logs", "backup", "--path").out.strip() == str(directory / "1.txt")
    assert desk.cron("logs", "backup", "-f").out == "second\n", "it has ended"
    assert "cannot be given together" in desk.cron("logs", "backup", "--last", "2", "--slot", "18:00", code=2).err
    assert "no entry was named" in desk.cron("logs", code=2).err


# ---- add and remove


def test_what_was_added_is_listed_runs_and_is_removed(desk: Desk) -> None:
    said = desk.cron("add", "say", "--minutely", "--timeout", "30s", "--", sys.executable, "-c", "print('it is me')")
    assert "wrote " in said.out and "next runs of cron.minutely/say: " in said.out
    assert said.out.count(", in ") == 3 and "resil cron remove cron.minutely/say" in said.out
    assert "cron.minutely/say" in desk.cron("list").out
    assert "already exists" in desk.cron("add", "say", "--minutely", "--", "true", code=2).err
    gone = desk.cron("remove", "say").out
    assert gone.startswith("removed ") and "nothing is scheduled" in desk.cron("list").out


def test_a_line_is_added_shown_and_removed_and_the_rest_stays(desk: Desk) -> None:
    desk.drop("x")
    (desk.directory / "cron" / "crontab").write_text("# mine\n")
    said = desk.cron("add", "probe", "--cron", "*/10 * * * *", "--ok", "0-3", "--catch-up", "none", "--overlap",
                     "allow", "--jitter", "5s", "--rerun", "--", "echo", "--flag", "a b")  # fmt: skip
    assert "# resil: name=probe overlap=allow catch_up=none jitter=5s ok=0-3 rerun" in said.out
    document = desk.cron("remove", "probe", "--json").json
    assert document["removed"][0]["name"] == "crontab/probe" and "echo" in document["removed"][0]["text"]
    assert (desk.directory / "cron" / "crontab").read_text() == "# mine\n"


def test_a_dry_run_of_add_and_remove_changes_nothing(desk: Desk) -> None:
    said = desk.cron("add", "say", "--hourly", "--dry-run", "--json", "--", "true").json
    assert said["dry_run"] and len(said["next"]) == 3 and not (desk.directory / "cron").exists()
    path = desk.drop("backup")
    assert "would remove" in desk.cron("remove", "backup", "--dry-run").out and path.exists()


def test_a_forgotten_double_dash_is_told(desk: Desk) -> None:
    said = desk.cron("add", "x", "--hourly", "ls", "--all", code=2)
    assert "--all" in said.err


def test_removing_a_link_leaves_what_it_leads_to(desk: Desk) -> None:
    real = desk.directory / "real"
    real.write_text("#!/bin/sh\n")
    real.chmod(0o755)
    desk.drop("x").unlink()
    (desk.directory / "cron" / "cron.hourly" / "linked").symlink_to(real)
    said = desk.cron("remove", "linked").out
    assert "only the link" in said and real.exists()


# ---- doctor and prune


def test_the_doctor_exits_with_1_when_something_meant_to_run_does_not(desk: Desk) -> None:
    desk.cron("install")
    desk.beat()
    path = desk.drop("backup.sh")
    said = desk.cron("doctor", code=1).out
    assert "cron/cron.hourly/backup.sh" in said and "-> rename it: backup" in said
    document = desk.cron("doctor", "--json", code=1).json
    assert document["is_broken"] and document["ignored"][0]["is_fault"]
    path.rename(path.with_name("backup"))
    assert "CRITICAL" not in desk.cron("doctor").out


def test_the_doctor_shows_the_environment_without_its_secrets(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JWT", "eyJhbGciOi")
    monkeypatch.setenv("SOME_LOGIN_TOKEN", "never-passed")
    monkeypatch.setenv("MAIL_WORD", "hunter22")
    desk.shell.settings(SETTINGS + '[channel.email]\nhost = "h"\nto = ["a@b.c"]\npassword_variable = "MAIL_WORD"\n')
    said = desk.cron("doctor", "--environment").out
    assert f"RESIL_PYTHON={sys.executable}\n" in said and "SHELL=/bin/sh\n" in said
    assert "MAIL_WORD=REDACTED" in said and "hunter22" not in said
    assert "eyJhbGciOi" not in said and "never-passed" not in said and "SLURM_JWT=REDACTED" in said
    document = desk.cron("doctor", "--environment", "--json").json
    assert document["environment"]["HOME"] == os.environ["HOME"]


def test_prune_says_how_much_went(desk: Desk) -> None:
    desk.drop("backup")
    directory = desk.project.state.path / "output" / "cron.hourly+backup"
    directory.mkdir(parents=True)
    desk.project.state.path.chmod(0o700)
    for slot in range(25):
        (directory / f"{slot}.txt").write_text("x" * 5000)
    dry = desk.cron("prune", "--dry-run").out
    assert "outputs: 5 files would be removed, " in dry and len(list(directory.iterdir())) == 25
    document = desk.cron("prune", "--json").json
    assert document["removed"][0]["files"] == 5 and document["removed"][0]["bytes"] >= 25000
    assert len(list(directory.iterdir())) == 20
    assert "nothing has expired" in desk.cron("prune").out


# ---- tick


def test_a_tick_runs_what_is_due_and_says_so(desk: Desk) -> None:
    desk.drop("say", "#!/bin/sh\necho it is me\nexit 3\n", directory="cron.minutely")
    project = desk.project
    desk.cron("tick")
    slot = int(time.time()) // 60 * 60
    seen = project.state.seen()
    from resilience.cron.state_directory import Seen

    project.state.write_seen({key: Seen(slot - 90, value.schedule) for key, value in seen.items()})
    dry = desk.cron("tick", "--dry-run").out
    assert "cron.minutely/say" in dry and "would run" in dry
    said = desk.cron("tick").out
    assert "!!  cron.minutely/say" in said and "failed" in said, "and exits with 0 nevertheless"
    assert desk.cron("logs", "say").out == "it is me\n"


# ---- one entry, now


def runs_now(desk: Desk, text: str, *, options: str = "timeout=1m", code: int = 0) -> Said:
    desk.drop("backup", f"#!/bin/sh\n# resil: {options}\n{text}\n")
    return desk.cron("run", "backup", code=code)


@pytest.mark.parametrize(
    ("text", "options", "code", "outcome"),
    [
        ("echo $RESIL_CRON_ENTRY", "rerun", 0, "done"),
        ("echo $RESIL_CRON_ENTRY; exit 3", "rerun", 3, "failed"),
        ("echo $RESIL_CRON_ENTRY; exit 2", "ok=0-3", 2, "done"),
        ("echo $RESIL_CRON_ENTRY; kill -9 $$", "rerun", 137, "failed"),
        ("echo $RESIL_CRON_ENTRY; sleep 60", "timeout=1s", 143, "timeout"),
    ],
)
def test_an_entry_that_is_run_now_prints_its_output_and_exits_with_its_code(
    desk: Desk, text: str, options: str, code: int, outcome: str
) -> None:
    said = runs_now(desk, text, options=options, code=code)
    assert said.out == "cron.hourly/backup\n" and outcome in said.err
    (run,) = desk.cron("history", "backup", "--json").json["runs"]
    assert run["outcome"] == outcome and desk.cron("logs", "backup").out == said.out


def test_the_output_of_an_entry_that_is_run_now_is_printed_as_it_comes(desk: Desk) -> None:
    """A signal comes only when the first line has been seen by whoever reads standard output."""
    reading, writing = os.pipe()
    desk.drop("backup", "#!/bin/sh\n# resil: timeout=1m\necho first; printf 'half '; sleep 60\n")
    argv = [sys.executable, "-m", "resilience", "cron", "run", "backup"]
    with subprocess.Popen(argv, stdout=writing, stderr=subprocess.PIPE, text=True) as process:
        os.close(writing)
        with open(reading) as seen:
            assert seen.readline() == "first\n" and process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert seen.read() == "half "
        assert process.wait(60) == 128 + signal.SIGTERM


def test_two_runs_by_hand_in_one_second_are_two_runs(desk: Desk) -> None:
    runs_now(desk, "true")
    runs_now(desk, "true")
    assert len(desk.cron("history", "backup", "--json").json["runs"]) == 2


def test_a_run_now_takes_no_slot_of_the_schedule(desk: Desk) -> None:
    desk.drop("backup")
    take(desk.project.state, "cron.hourly+backup", int(time.time()) // 3600 * 3600 - 7200, now=time.time())

    def due() -> list[tuple[str, int, int]]:
        rows = desk.cron("tick", "--dry-run", "--json").json["due"]
        return [(row["name"], row["slot"], row["passed_over"]) for row in rows]

    before = due()
    assert before[0][0] == "cron.hourly/backup"
    desk.cron("run", "backup")
    assert due() == before


def test_a_batch_script_that_is_run_now_is_submitted(desk: Desk) -> None:
    desk.drop("eval.slurm", "#!/bin/bash\n#SBATCH --time=1\ntrue\n")
    assert "submitted as job" in desk.cron("run", "eval").err and len(desk.shell.fake.submissions) == 1


def test_a_batch_script_that_cannot_be_submitted_now_is_told(desk: Desk) -> None:
    desk.drop("eval.slurm", "#!/bin/bash\n#SBATCH --time=1\ntrue\n")
    desk.shell.fake.refusals = {1: SchedulerError("no such partition")}
    assert "refused: no such partition" in desk.cron("run", "eval", code=1).err
    desk.shell.fake.trouble = DOWN
    assert DOWN.message in desk.cron("run", "eval", code=75).err


def test_an_entry_runs_now_only_where_it_may_run(desk: Desk) -> None:
    desk.drop("backup")
    desk.drop("draft", mode=0o644)
    assert "did you mean cron.hourly/backup?" in desk.cron("run", "bakup", code=2).err
    said = desk.cron("run", "draft", code=2).err
    assert "cron/cron.hourly/draft is not an entry: " in said and "try: " in said
    assert "neither --once" in desk.cron("run", "backup", "--once", code=2).err
    ran = runs_now(desk, "", options="\n#", code=0)
    assert ran.out == "" and ran.err.endswith(": done\n"), "an empty script is a program"


def test_while_an_earlier_run_is_active_an_entry_is_not_run_now(desk: Desk) -> None:
    begin_in_this_process(desk, "cron.hourly/backup")
    assert "still active" in runs_now(desk, "echo no", code=75).err


def test_a_stopped_scheduler_stays_stopped_when_an_entry_runs_now(desk: Desk) -> None:
    desk.cron("stop", "--why", "maintenance")
    said = runs_now(desk, "echo yes")
    assert said.out == "yes\n" and "maintenance" in said.err and "does not restart it" in said.err
    assert desk.project.state.stopped() is not None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_an_entry_that_was_run_now(desk: Desk, number: int) -> None:
    begun = desk.shell.directory / "begun"

    def end() -> None:
        until(begun.exists, "the program to run", timeout_s=60)
        os.kill(os.getpid(), number)

    ender = threading.Thread(target=end)
    ender.start()
    runs_now(desk, f"touch {begun}; exec sleep 60", options="rerun", code=128 + number)
    ender.join()
    assert desk.cron("tick").out == "", "who ended it does not want it again"
    (run,) = desk.cron("history", "backup", "--json").json["runs"]
    assert run["outcome"] == "cut short" and "stopped" in run["summary"]


# ---- completion


def test_completion_offers_names_of_the_table_and_of_the_past(desk: Desk) -> None:
    desk.drop("backup")
    desk.record("cron.daily/old", 60)
    assert complete_entries("cron.") == ["cron.hourly/backup", "cron.daily/old"]
    assert complete_entries("cron.d") == ["cron.daily/old"]
    desk.shell.settings("[nonsense")
    assert complete_entries("") == [], "never a traceback into somebody's prompt"


def run(outcome: Outcome, **given: object) -> RunRecord:
    return RunRecord(name="cron.hourly/backup", slot=int(NOW), outcome=outcome, time=NOW + 5, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outcome", "given", "text"),
    [
        (Outcome.DONE, {"exit_code": 0, "summary": "all well"}, "done"),
        (Outcome.FAILED, {"exit_code": 3, "summary": "exit code 3"}, "failed, exit code 3"),
        (Outcome.FAILED, {"exit_code": 3, "summary": "no \x1b[31mroom"}, "failed, exit code 3: no ?[31mroom"),
        (Outcome.SUBMITTED, {"job_id": "88"}, "submitted as job 88"),
        (Outcome.MISSED, {"count": 4}, "missed 4"),
        (Outcome.SKIPPED, {}, "skipped"),
        (Outcome.TIMEOUT, {"summary": "x" * 100}, "timeout: " + "x" * 69 + "…"),
        (Outcome.RUNNING, {"started": NOW - 300}, "running for 5 min"),
    ],
)
def test_an_outcome_is_one_line(outcome: Outcome, given: dict[str, object], text: str) -> None:
    assert outcome_text(run(outcome, **given), NOW) == text


def test_every_outcome_has_a_sign_and_failures_stand_out() -> None:
    for outcome in Outcome:
        assert len(sign(outcome)) == 2
        assert (sign(outcome) == "!!") == outcome.is_failure


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (-3, "0 s"), (90, "90 s"), (150, "2 min"), (7100, "118 min"), (7200, "2 h"), (100000, "1 d 3 h")],
)
def test_a_span_has_no_more_than_it_needs(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_a_moment_says_how_far_it_is() -> None:
    assert when(NOW + 720, NOW).endswith(", in 12 min") and when(NOW - 1, NOW).endswith(", now")
    assert ago(NOW - 720, NOW) == "12 min ago"
    assert "in the future" in ago(NOW + 720, NOW), "some clock is wrong, and that is said"


@pytest.mark.parametrize(
    ("faults", "text"),
    [
        (0, ""),
        (1, "1 item in the cron directory cannot run, probably by mistake: resil cron doctor\n"),
        (3, "3 items in the cron directory cannot run, probably by mistake: resil cron doctor\n"),
    ],
)
def test_only_what_is_ignored_by_mistake_is_counted(capsys: pytest.CaptureFixture[str], faults: int, text: str) -> None:
    print_ignored(faults)
    assert capsys.readouterr().out == text


def full_status() -> CronStatus:
    return CronStatus(
        now=NOW,
        judgement=Judgement(Health.LATE, "last tick 10 min ago", "resil cron doctor"),
        installation=Installation(driver="slurm", token="secret-token", time=NOW - 9000, by="ada", host="login1",
                                  project="/p", python="/py", mode="daemon",
                                  facts={"why": "no crontab here", "$PATH": "/bin"}),
        driver=DriverState(Liveness.UNKNOWN, "squeue did\x1b[2J not answer", NOW + 60),
        heartbeat=Heartbeat(time=NOW - 600, expected=NOW - 540, alive_since=NOW - 9000, ticks=1, late_s=2.0,
                            driver="slurm", host="n1", job_id="88", trouble="the disk is full"),
        lateness=Lateness(1.25, 75.0, 40),
        trouble=("a history cannot be read",),
        directory="/p/cron",
    )  # fmt: skip


def test_the_status_has_all_that_people_ask_for(capsys: pytest.CaptureFixture[str]) -> None:
    show_status(full_status())
    said = capsys.readouterr().out
    for text in (
        "cron  late: last tick 10 min ago", "try: resil cron doctor", "slurm (daemon), installed by ada",
        "no crontab here", "UNKNOWN: squeue did?[2J not answer", "next tick: ", "last tick: 10 min ago, by slurm on n1",
        "job 88", ": 1 tick\n", "error in that tick: the disk is full", "late by 2 s",
        "the last 40 runs began 1.2 s after the slot, jitter included (median; 1 min 15 s at p95)",
        "a history cannot be read",
    ):  # fmt: skip
        assert text in said, said
    assert "\x1b" not in said and "secret-token" not in said and "/bin" not in said
    assert "nothing is scheduled" not in said, "nobody could look"


def test_runs_are_not_promised_before_the_scheduler_begins(capsys: pytest.CaptureFixture[str]) -> None:
    found = full_status()
    usual = replace(found, listing=replace(found.listing, next=((NOW + 60, "crontab/a"),)))
    show_status(usual)
    assert "  next:\n" in capsys.readouterr().out
    show_status(replace(usual, driver=DriverState(Liveness.ALIVE, "jobs 6, 7 are queued", NOW + 7200)))
    assert "  next, once the scheduler runs:\n" in capsys.readouterr().out


def test_the_json_has_no_token_and_no_environment(capsys: pytest.CaptureFixture[str]) -> None:
    show_status(full_status(), as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["installation"]["facts"] == {"why": "no crontab here"}
    assert "secret-token" not in str(document) and document["driver"]["liveness"] == "UNKNOWN"
    assert document["lateness"] == {"median_s": 1.25, "p95_s": 75.0, "runs": 40}


@pytest.fixture
def cron(tmp_path: Path) -> CronProject:
    cron = open_cron(make_project(tmp_path, FakeScheduler()))
    cron.state.path.mkdir(parents=True)
    cron.state.beat(
        Heartbeat(
            time=NOW - 7200, expected=NOW - 7140, alive_since=NOW - 9000, driver="foreground", pid=os.getpid(),
            host=cron.project.system.host.name,
        )
    )  # fmt: skip
    return cron


@pytest.mark.parametrize(
    ("number", "is_missed"), [(signal.SIGINT, False), (signal.SIGTERM, True), (signal.SIGHUP, True)]
)
def test_only_ctrl_c_is_meant(
    cron: CronProject, number: int, is_missed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    _print_consequence(cron, [number])
    assert bool(late_notice(cron.project)) is is_missed
    assert ("resil cron stop" in capsys.readouterr().out) is is_missed


@pytest.mark.parametrize(
    ("typed", "message", "hint"),
    [
        (
            ("--timeout", "5x"),
            "--timeout 5x: '5x' is not a duration",
            "write for instance --timeout 10m, or --timeout none",
        ),
        (("--jitter", "later"), "--jitter later: 'later' is not a duration", "write for instance --jitter 30s"),
        (("--catch-up", "twice"), "--catch-up twice is unknown", "write none, once or all<=12"),
        (("--overlap", "never"), "--overlap never is not one of skip, allow, replace", "write --overlap skip"),
        (("--ok", "x"), "--ok x is not a list of exit codes", "write for instance --ok 0-3 or --ok 0,75"),
    ],
)
def test_a_mistyped_option_of_a_new_entry_is_advised_as_an_option(
    shell: Shell, typed: tuple[str, ...], message: str, hint: str
) -> None:
    said = shell.resil("cron", "add", "probe", "--hourly", *typed, "--", "true")
    assert (said.code, said.err) == (2, f"resil: error: {message}\n  try: {hint}\n")
