"""A kill switch ends a run for certain, and stop_after an attempt: asked, SIGTERM, SIGKILL. With a real bash."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab.waiting import until
from tests.runs.templates.batch import PYTHON, Batch, Script

HANGS = f"exec {PYTHON} -c 'import time; print(\"ready\", flush=True); time.sleep(600)'"
IGNORES_TERM = (
    f"exec {PYTHON} -c 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    'print("ready", flush=True); time.sleep(600)\''
)
LONG_S = 60
"""Generous: a busy machine may take seconds for what takes milliseconds here."""


def obeys(file: Path, code: int = 75) -> str:
    """A training that exits as soon as a file is there."""
    return f'echo ready; until [ -e "{file}" ]; do sleep 0.05; done; exit {code}'


def train(
    batch: Batch, command: str, *, kill_timeout_s: float | str = 1, kill_wait_s: int = 1, **wishes: Any
) -> Script:
    """Start a training and wait until it runs."""
    guard = {"RESIL_GUARD__KILL_TIMEOUT_S": str(kill_timeout_s)} if kill_timeout_s else {}
    environment = {"RESIL_LOCAL_KILL_WAIT_S": str(kill_wait_s), **wishes.pop("environment", {})}
    guard |= wishes.pop("guard", {})
    return batch.start(command, guard=guard, environment=environment, says="ready", **wishes)


def set_kill(batch: Batch, why: str = "loss is NaN", scope: str = "job") -> None:
    temporary = batch.root / "kill"
    temporary.write_text(f'who = "bob"\nwhen = "2026-11-20T10:00:00+01:00"\nwhy = "{why}"\nscope = "{scope}"\n')
    temporary.rename(batch.switch("kill"))


def killed(batch: Batch, command: str, *, scope: str = "job", **wishes: Any) -> tuple[int, list[str]]:
    """Set the kill switch of a training that runs; return its exit code and the stages."""
    script = train(batch, command, **wishes)
    set_kill(batch, scope=scope)
    return script.wait(LONG_S), stages(batch)


def let_go(batch: Batch, script: Script) -> int:
    """Let a training that obeys the file `go` end; return its exit code."""
    (batch.root / "go").touch()
    return script.wait(LONG_S)


def learn(batch: Batch, text: str) -> None:
    (batch.run_dir / "learned").mkdir()
    (batch.run_dir / "learned" / "0.json").write_text(text)


def within(bound_s: float, record: dict[str, Any]) -> bool:
    """Whether a bound is the one that is meant, on a machine that may be busy."""
    return bound_s - 20 < float(record["bound_s"]) <= bound_s


def guard_says(batch: Batch, event: str, attempt: int = 1, **fields: Any) -> None:
    """Write a line as the guard of rank 0 does."""
    line = {"event": event, "time": time.time(), "attempt": attempt, "rank": 0, "host": "n1", **fields}
    with (batch.run_dir / "journal" / "7.0.jsonl").open("a") as file:
        file.write(json.dumps(line, separators=(",", ":")) + "\n")


def until_journalled(batch: Batch, event: str) -> dict[str, Any]:
    until(lambda: event in batch.events(), f"{event} in {batch.events()}", LONG_S)
    return next(record for record in batch.journal() if record["event"] == event)


def until_beats(batch: Batch, count: int) -> None:
    """Wait until the heartbeat has come so many times more."""
    path = batch.run_dir / "attempts" / "0001.beat"

    def beats() -> int:
        return int(path.read_text().split()[1]) if path.exists() else 0

    before = beats()
    until(lambda: beats() > before + count, f"{count} beats", LONG_S)


def stages(batch: Batch) -> list[str]:
    return [event for event in batch.events() if event.startswith(("kill", "stop", "siblings"))]


def is_running(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def nothing_is_left(batch: Batch) -> bool:
    until(lambda: not batch.processes(), "no process to be left", LONG_S)
    return True


# ---- the stages -------------------------------------------------------------------------------------------------


def test_a_training_that_hangs_and_ignores_sigterm_is_killed_and_the_attempt_says_by_whom_and_how(batch: Batch) -> None:
    assert killed(batch, IGNORES_TERM) == (137, ["kill_noticed", "kill_term", "kill_kill"])
    end, text = batch.end(1), batch.started[0].text
    assert (end["end"], end["exit_code"], end["gone"]) == ("terminated", 137, True)
    owner = batch.switch("kill").owner()
    sentence = f"the kill switch was set by {owner} at 2026-11-20T10:00:00+01:00: loss is NaN"
    assert end["why"] == f"{sentence}, no step within 1 s: ended with SIGKILL"
    noticed, term, _ = (record for record in batch.journal() if record["event"].startswith("kill"))
    assert (noticed["why"], noticed["scope"]) == (sentence, "job") and noticed["bound_s"] <= 1
    assert term["kill_wait_s"] == 1 and term["why"] == f"{sentence}, no step within 1 s"
    assert sentence in text and "may stop at a step until" in text
    assert nothing_is_left(batch)


def test_a_training_that_hangs_and_dies_of_sigterm_keeps_its_true_exit_code(batch: Batch) -> None:
    assert killed(batch, HANGS) == (143, ["kill_noticed", "kill_term"])
    assert batch.end(1)["end"] == "terminated"
    assert batch.end(1)["why"].endswith(": loss is NaN, no step within 1 s: ended with SIGTERM")


@pytest.mark.parametrize(("code", "end"), [(75, "stopped"), (0, "terminated"), (3, "terminated")])
def test_what_a_training_makes_of_sigterm_counts(batch: Batch, code: int, end: str) -> None:
    catch = f"signal.signal(signal.SIGTERM, lambda *_: sys.exit({code}))"
    training = f'import signal, sys, time; {catch}; print("ready", flush=True); time.sleep(600)'
    assert killed(batch, f"exec {PYTHON} -c '{training}'")[0] == code
    assert (batch.end(1)["end"], batch.end(1)["exit_code"]) == (end, code)
    assert batch.end(1)["why"].endswith("ended with SIGTERM")
    assert not batch.is_finished


def test_a_training_that_stops_by_itself_is_left_alone(batch: Batch) -> None:
    code, passed = killed(batch, obeys(batch.switch("kill")), kill_timeout_s=600)
    assert code == 75 and not {"kill_term", "kill_kill"} & set(passed)
    assert batch.end(1)["end"] == "stopped" and "loss is NaN" in batch.end(1)["why"]


def test_a_switch_that_is_cleared_in_time_ends_nothing(batch: Batch) -> None:
    script = train(batch, obeys(batch.root / "go", 3), kill_timeout_s=5)
    set_kill(batch)
    noticed = until_journalled(batch, "kill_noticed")
    batch.switch("kill").unlink()
    until_journalled(batch, "kill_cleared")
    time.sleep(max(0.0, noticed["time"] + 7 - time.time()))
    assert let_go(batch, script) == 3
    assert stages(batch) == ["kill_noticed", "kill_cleared"]
    assert (batch.end(1)["end"], batch.end(1)["why"]) == ("exited", "")


def test_a_switch_that_is_cleared_after_sigterm_changes_nothing(batch: Batch) -> None:
    script = train(batch, IGNORES_TERM, kill_wait_s=3)
    queued = batch.state(8, "PENDING")
    set_kill(batch, scope="all")
    until_journalled(batch, "kill_term")
    batch.switch("kill").unlink()
    assert script.wait(LONG_S) == 137
    assert stages(batch) == ["kill_noticed", "kill_term", "kill_kill"]
    assert not (queued / "cancel").exists(), "but the queued jobs may run"


def test_a_switch_that_is_set_again_does_not_begin_anew(batch: Batch) -> None:
    script = train(batch, HANGS, kill_timeout_s=6)
    set_kill(batch)
    first = until_journalled(batch, "kill_noticed")
    queued = batch.state(8, "PENDING")
    set_kill(batch, why="loss is still NaN", scope="all")
    assert script.wait(LONG_S) == 143
    assert stages(batch) == ["kill_noticed", "kill_noticed", "kill_term", "siblings_cancelled"]
    _, again, term, *_ = (record for record in batch.journal() if record["event"].startswith("kill"))
    assert again["time"] + again["bound_s"] <= first["time"] + 8 and again["scope"] == "all"
    assert "loss is still NaN, no step within 6 s" in term["why"]
    assert (queued / "cancel").exists()


def test_a_switch_that_was_set_and_cleared_during_the_setup_is_history(batch: Batch) -> None:
    setup = 'echo setting up; until [ -e "$RESIL_RUN_DIR/go" ]; do sleep 0.05; done'
    guard = {"RESIL_GUARD__KILL_TIMEOUT_S": "1"}
    script = batch.start("sleep 3; exit 4", setup=(setup,), guard=guard, says="setting up")
    changes: list[Callable[[], object]] = [lambda: set_kill(batch), batch.switch("kill").unlink]
    for change in changes:
        change()
        until_beats(batch, 3)
    (batch.run_dir / "go").touch()
    assert script.wait(LONG_S) == 4
    assert "kill_term" not in stages(batch)


def test_a_switch_that_goes_while_it_is_read_is_not_read_as_another(batch: Batch) -> None:
    """`stat` stands for a file server that answers slowly: the file is gone when the rest of it is read."""
    stat = (
        f'#!/bin/bash\n[ "$1 $2" = "-c %U" ] && [ -e {batch.root}/cleared ] && rm -f {batch.switch("kill")}\n'
        'exec /usr/bin/stat "$@"\n'
    )
    slow = batch.program("stat", stat)
    script = train(batch, obeys(batch.root / "go", 3), kill_timeout_s=600, environment=slow)
    set_kill(batch)
    until_journalled(batch, "kill_noticed")
    (batch.root / "cleared").touch()
    until_journalled(batch, "kill_cleared")
    assert let_go(batch, script) == 3
    assert stages(batch) == ["kill_noticed", "kill_cleared"]


def test_a_look_that_fails_neither_clears_nor_postpones(batch: Batch) -> None:
    script = train(batch, HANGS, kill_timeout_s=3)
    set_kill(batch)
    until_journalled(batch, "kill_noticed")
    batch.switch("kill").parent.rename(batch.root / "away")
    assert script.wait(LONG_S) == 143
    assert stages(batch) == ["kill_noticed", "kill_term"]


def test_a_directory_that_is_away_is_no_kill_switch(batch: Batch) -> None:
    script = train(batch, obeys(batch.root / "go", 3))
    batch.switch("kill").parent.rename(batch.root / "away")
    until_beats(batch, 10)
    assert let_go(batch, script) == 3
    assert stages(batch) == []


def test_a_journal_that_hangs_keeps_no_training_alive(batch: Batch) -> None:
    """A FIFO that nobody reads stands for a file system that hangs: who opens it waits."""
    script = train(batch, IGNORES_TERM.replace("exec", "echo $$ >pid; exec", 1))
    pid = int((batch.root / "pid").read_text())
    set_kill(batch)
    until_journalled(batch, "kill_noticed")
    journal = batch.run_dir / "journal" / "7.batch.jsonl"
    journal.unlink()
    os.mkfifo(journal)
    until(lambda: not is_running(pid), "the training's end", 120)
    reader = os.open(journal, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert script.wait(LONG_S) == 137
    finally:
        os.close(reader)


SLOW_TO_GO = (
    f"exec {PYTHON} -c 'import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), "
    'sys.exit(42))); print("ready", flush=True); time.sleep(600)\''
)


@pytest.mark.parametrize(("command", "kill_wait_s", "code"), [(SLOW_TO_GO, 60, 42), (IGNORES_TERM, 2, 137)])
def test_a_hail_of_signals_while_a_kill_is_under_way_loses_neither_the_stages_nor_the_code(
    batch: Batch, command: str, kill_wait_s: int, code: int
) -> None:
    script = train(batch, command, kill_wait_s=kill_wait_s)
    set_kill(batch)
    while script.process.poll() is None:
        for number in (signal.SIGUSR2, signal.SIGHUP, signal.SIGCONT, signal.SIGQUIT, signal.SIGALRM):
            script.process.send_signal(number)
        time.sleep(0.05)
    assert script.wait() == code
    assert stages(batch) == ["kill_noticed", "kill_term", "kill_kill"][: 2 if code == 42 else 3]
    assert batch.end(1)["exit_code"] == code


# ---- the bound --------------------------------------------------------------------------------------------------

LEARNED = [
    (None, 300),
    ('{"kill_after_s": 95}\n', 95),
    ('{"slowest_step_s": 41.2, "slowest_save_s": 8, "kill_after_s": 95, "more": 1}\n', 95),
    ('{"kill_after_s":95}', 95),
    ('{"kill_after_s": 0}\n', 300),
    ('{"kill_after_s": -5}\n', 300),
    ('{"kill_after_s": null}\n', 300),
    ('{"kill_after_s": "soon"}\n', 300),
    ('{"kill_after_s": 99999999999999999999}\n', 300),
    ('{"kill_after_s": 9', 300),
    ("\0\0\0", 300),
]


@pytest.mark.parametrize(("learned", "bound_s"), LEARNED, ids=[str(case[0]) for case in LEARNED])
def test_the_bound_is_what_the_guard_has_learned_and_else_five_minutes(
    batch: Batch, learned: str | None, bound_s: int
) -> None:
    if learned is not None:
        learn(batch, learned)
    script = train(batch, obeys(batch.root / "go"), kill_timeout_s="")
    set_kill(batch)
    assert within(bound_s, until_journalled(batch, "kill_noticed"))
    assert let_go(batch, script) == 75


@pytest.mark.parametrize(("setting", "bound_s"), [("2.0", 2), ("1.5", 2), ("0.0", 95), ("0.25", 1), ("soon", 95)])
def test_the_setting_wins_over_what_was_learned(batch: Batch, setting: str, bound_s: int) -> None:
    learn(batch, '{"kill_after_s": 95}\n')
    script = train(batch, obeys(batch.root / "go"), kill_timeout_s=setting)
    set_kill(batch)
    if bound_s < 9:
        assert f"no step within {bound_s} s" in until_journalled(batch, "kill_term")["why"]
    assert within(bound_s, until_journalled(batch, "kill_noticed"))
    let_go(batch, script)


# ---- a guard ----------------------------------------------------------------------------------------------------


def test_where_a_guard_was_seen_every_rank_is_asked_for_its_stacks_before_sigterm(batch: Batch) -> None:
    batch.switch("stacks.7").write_text("stale")
    script = train(batch, HANGS, kill_timeout_s=3, guard={"RESIL_GUARD__BEAT_S": "2"})
    assert not batch.switch("stacks.7").exists(), "one of an earlier start of the same job"
    guard_says(batch, "start", step=0, system=2, job_id="7")
    set_kill(batch)
    assert script.wait(LONG_S) == 143
    assert stages(batch) == ["kill_noticed", "kill_stacks", "kill_term"]
    assert batch.switch("stacks.7").read_bytes() == b""
    _, asked, term = (record["time"] for record in batch.journal() if record["event"].startswith("kill"))
    assert term - asked >= 3, "the mirrors look with every heartbeat of theirs"


@pytest.mark.parametrize("attempt", [None, 11])
def test_without_a_guard_in_this_attempt_nobody_is_asked_for_stacks(batch: Batch, attempt: int | None) -> None:
    if attempt:
        guard_says(batch, "start", attempt=attempt)
    assert killed(batch, HANGS) == (143, ["kill_noticed", "kill_term"])
    assert not batch.switch("stacks.7").exists()


def test_clearing_while_the_stacks_are_written_is_in_time(batch: Batch) -> None:
    script = train(batch, obeys(batch.root / "go", 3), kill_timeout_s=3)
    guard_says(batch, "start")
    set_kill(batch)
    until_journalled(batch, "kill_stacks")
    batch.switch("kill").unlink()
    until_journalled(batch, "kill_cleared")
    assert let_go(batch, script) == 3
    assert stages(batch) == ["kill_noticed", "kill_stacks", "kill_cleared"]


TAKEN = [({}, {}, 960), ({"EXIT_TIMEOUT_S": "120.0"}, {}, 180), ({"EXIT_TIMEOUT_S": "0.0"}, {}, 960),
         ({}, {"slowest_save_s": 400.5}, 1260), ({}, {"slowest_save_s": 200}, 960)]  # fmt: skip


@pytest.mark.parametrize(("settings", "learned", "bound_s"), TAKEN)
def test_when_the_guard_has_told_the_training_to_stop_it_has_the_guards_own_time_to_save_and_end(
    batch: Batch, settings: dict[str, str], learned: dict[str, float], bound_s: int
) -> None:
    learn(batch, json.dumps({"kill_after_s": 3, **learned}) + "\n")
    guard = {f"RESIL_GUARD__{key}": value for key, value in settings.items()}
    script = train(batch, obeys(batch.root / "go"), kill_timeout_s=3, guard=guard)
    guard_says(batch, "start")
    guard_says(batch, "decision", save=True, stop=True, label="", reasons=["kill"])
    set_kill(batch)
    assert within(bound_s, until_journalled(batch, "kill_taken"))
    if (settings, learned) == TAKEN[0][:2]:
        time.sleep(5)
    assert stages(batch) == ["kill_noticed", "kill_taken"], "the first bound is over, and it may save"
    guard_says(batch, "end", exit_code=75, stopped=True)
    assert let_go(batch, script) == 75


def test_a_save_behind_the_loop_has_its_own_time_and_a_guard_that_cannot_end_it_is_helped(batch: Batch) -> None:
    """What the guard gives anew when it is closed (guard/exit.py), the batch shell gives as well."""
    script = train(batch, HANGS, kill_timeout_s=2, guard={"RESIL_GUARD__EXIT_TIMEOUT_S": "1"})
    guard_says(batch, "start")
    guard_says(batch, "decision", save=True, stop=True, label="")
    set_kill(batch)
    until_journalled(batch, "kill_taken")
    guard_says(batch, "end", exit_code=75, stopped=True)
    until(lambda: batch.events().count("kill_taken") == 2, "the second word", LONG_S)
    script.process.terminate()
    assert script.wait(LONG_S) == 75, "it had saved, says the guard"


# ---- the siblings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["stops", "hangs", "crashes"])
@pytest.mark.parametrize("scope", ["job", "all"])
def test_however_the_training_ends_the_queued_jobs_go_as_the_scope_says(batch: Batch, command: str, scope: str) -> None:
    commands = {"stops": obeys(batch.switch("kill")), "hangs": HANGS, "crashes": obeys(batch.switch("kill"), 1)}
    queued, another = batch.state(8, "PENDING"), batch.state(9, "PENDING", "resil:another:token")
    killed(batch, commands[command], scope=scope)
    assert (queued / "cancel").exists() is (scope == "all")
    assert not (another / "cancel").exists()
    assert batch.events().count("siblings_cancelled") == (scope == "all")


def test_a_scope_that_nobody_knows_is_that_of_the_job(batch: Batch) -> None:
    queued = batch.state(8, "PENDING")
    assert killed(batch, HANGS, scope="all of it\\nkilled 1 all")[0] == 143
    assert not (queued / "cancel").exists()


# ---- below srun -------------------------------------------------------------------------------------------------

SRUN = '#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\nSLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=1 exec "$@"\n'
SCANCEL = """#!/bin/bash
echo "$@" >>{root}/scancelled
echo "${{SCANCEL_BATCH-}}${{SLURM_CLUSTERS-}}" >>{root}/scancel-environment
[ "$1" = --signal=TERM ] && kill -TERM $(cat {root}/pid)
exit 0
"""
SCONTROL = '#!/bin/bash\n[ "$*" = "show config" ] && echo "KillWait                = 2 sec"\n'


@pytest.mark.parametrize("command", [HANGS, IGNORES_TERM], ids=["dies of TERM", "ignores TERM"])
def test_tasks_of_srun_are_signalled_by_scancel_on_all_their_nodes(batch: Batch, command: str) -> None:
    environment = {"RESIL_SCHEDULER": "", "SLURM_JOB_END_TIME": "1800000000", "SLURM_CLUSTERS": "another"}
    for name, text in (("srun", SRUN), ("scancel", SCANCEL.format(root=batch.root)), ("scontrol", SCONTROL),
                       ("squeue", '#!/bin/bash\necho "7 RUNNING"\n')):  # fmt: skip
        environment |= {"SCANCEL_BATCH": "hidden", **batch.program(name, text)}
    code, _ = killed(batch, f"echo $$ >pid; {command}", template="srun", environment=environment)
    assert code == (143 if command == HANGS else 137)
    sent = (batch.root / "scancelled").read_text().splitlines()
    assert sent == ["--signal=TERM 7"], "SIGKILL by scancel would end the job, and the batch shell with it"
    assert not (batch.root / "scancel-environment").read_text().strip()
    assert until_journalled(batch, "kill_term")["kill_wait_s"] == 2
    assert batch.end(1)["end"] == "terminated"
    assert nothing_is_left(batch)


# ---- stop_after -------------------------------------------------------------------------------------------------


def test_stop_after_asks_for_the_stop_before_it_is_over_and_the_training_that_follows_has_stopped(batch: Batch) -> None:
    script = train(
        batch, f"env >environment; {obeys(batch.switch('stop.7'))}", kill_timeout_s=0, signal_lead_s=57,
        guard={"RESIL_GUARD__STOP_AFTER": "60.0"}, environment={"SLURM_JOB_END_TIME": "4000000000"},
    )  # fmt: skip
    began = time.time()
    assert script.wait(LONG_S) == 75
    stop = tomllib.loads(batch.switch("stop.7").read_text())
    assert re.match(r"stop_after = 60 s: \d+ s are left before the batch shell ends it", stop["why"])
    asked = until_journalled(batch, "stop_requested")
    assert asked["stop_after"] == 60
    assert (batch.end(1)["end"], batch.end(1)["why"]) == ("stopped", "stop_after = 60 s")
    told = batch.environment
    assert told["RESIL_STOP_AT"] == told["RESIL_END_TIME"] and abs(int(told["RESIL_STOP_AT"]) - began - 60) < 30


def test_an_end_before_stop_after_stays_the_end(batch: Batch) -> None:
    end = int(time.time()) + 1000
    batch.run(
        "env >environment; exit 75", guard={"RESIL_GUARD__STOP_AFTER": "71400.0"},
        environment={"SLURM_JOB_END_TIME": str(end), "RESIL_STOP_AT": "1"},
    )  # fmt: skip
    told = batch.environment
    assert told["RESIL_END_TIME"] == str(end)
    assert abs(int(told["RESIL_STOP_AT"]) - time.time() - 71400) < 30


def test_without_stop_after_nothing_is_left_of_that_of_the_job_that_submitted(batch: Batch) -> None:
    batch.run("env >environment; exit 75", environment={"RESIL_STOP_AT": "1", "RESIL_GUARD__STOP_AFTER": "1"})
    assert "STOP_A" not in (batch.root / "environment").read_text()


@pytest.mark.parametrize(
    ("command", "code", "how"), [(HANGS, 143, "SIGTERM"), (IGNORES_TERM, 137, "SIGKILL")], ids=["TERM", "KILL"]
)
def test_a_training_that_does_not_follow_stop_after_is_ended(batch: Batch, command: str, code: int, how: str) -> None:
    script = train(batch, command, kill_timeout_s=0, signal_lead_s=2, guard={"RESIL_GUARD__STOP_AFTER": "5"})
    assert script.wait(LONG_S) == code
    assert stages(batch) == ["stop_requested", "kill_term", "kill_kill"][: 2 if code == 143 else 3]
    assert (batch.end(1)["end"], batch.end(1)["exit_code"]) == ("terminated", code)
    assert batch.end(1)["why"] == f"stop_after = 5 s is over: ended with {how}"


def test_the_earlier_of_a_kill_and_stop_after_counts(batch: Batch) -> None:
    stop_after = {"RESIL_GUARD__STOP_AFTER": "5"}
    assert killed(batch, HANGS, kill_timeout_s=600, signal_lead_s=1, guard=stop_after)[0] == 143
    assert batch.end(1)["why"].startswith("stop_after = 5 s is over")


DURATIONS = {
    "90": 90, "1.5": 2, "60.0": 60, "007": 7, "5s": 5, "10m": 600, "10min": 600, "19h50m": 71400, "2d": 172800,
    "1w": 604800, " 1 H 30 Min ": 5400, "1.5h": 5400, "1.0009d": 86478, "1500ms": 2, "0.2s0.2s": 1,
    "": None, "0": None, "0s": None, "-5s": None, "soon": None, "5x": None, "5s!": None,
    "s": None, "1h30": None, "1e3": None,
}  # fmt: skip


def test_durations_that_the_setup_exports_are_understood(batch: Batch) -> None:
    look = "if resil_setting X; then echo is $REPLY.; else echo is none.; fi"
    setup = tuple(f"export RESIL_GUARD__X='{text}'; {look}" for text in DURATIONS)
    said = re.findall(r"^is (\w+)\.$", batch.run("true", setup=setup).text, re.MULTILINE)
    assert dict(zip(DURATIONS, said, strict=True)) == {text: str(s).lower() for text, s in DURATIONS.items()}


def test_a_bound_with_a_unit_that_the_setup_exports_is_enforced(batch: Batch) -> None:
    script = train(batch, HANGS, kill_timeout_s=0, signal_lead_s=1, setup=("export RESIL_GUARD__STOP_AFTER=5s",))
    assert script.wait(LONG_S) == 143
    assert batch.end(1)["why"] == "stop_after = 5 s is over: ended with SIGTERM"


# ---- how soon ---------------------------------------------------------------------------------------------------


def test_a_rare_beat_makes_nobody_wait_for_the_switch(batch: Batch) -> None:
    assert killed(batch, HANGS, beat_s=600)[0] == 143
    assert int((batch.journal()[-1])["time"]) and batch.end(1)["end"] == "terminated"
