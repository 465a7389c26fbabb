"""`resil alert`: what is wrong, who is at it, what waits, and whether messages arrive."""

from __future__ import annotations

import grp
import importlib
import io
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from resilience.alerts.message import plain_text
from resilience.alerts.notify import notify
from resilience.alerts.routes import channels
from resilience.cli import alert as alert_command
from resilience.cli import entry
from resilience.finding import Report, Verdict
from tests.lab.hung import hung_directory
from tests.lab.shell import ALERTING, SETTINGS, Office, Said, Shell, full, well
from tests.system.people import NOBODY, needs_root, open_the_way


@pytest.fixture
def office(shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Office]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    channels.cache_clear()
    yield Office(shell)
    channels.cache_clear()


# ---- list and show


def test_an_incident_is_one_line_with_who_was_told_and_who_is_at_it(office: Office) -> None:
    office.tick(full(), full("/home", Verdict.WARNING))
    said = office.resil("list")
    head, first, second = said.out.splitlines()
    assert head.split() == ["ID", "VERDICT", "WHAT", "SINCE", "NOTIFIED", "SUMMARY"]
    assert "CRITICAL" in first and "fs /scratch space" in first and "pager" in first and "99% used" in first
    assert "WARNING" in second, "the worst first"
    ages = re.compile(r"\d+ s ago")
    assert ages.sub("", office.resil().out) == ages.sub("", said.out), "`resil alert` alone lists"


def test_what_ended_is_shown_when_asked_for(office: Office) -> None:
    office.tick(full())
    office.tick(well())
    assert "no open incident" in office.resil("list").out
    everything = office.resil("list", "--all").out
    assert "was CRITICAL" in everything and re.search(r"resolved \d+ s ago", everything)


def test_a_channel_is_notified_once_it_has_accepted_the_message(office: Office) -> None:
    office.order("list", "down")
    said = office.tick(full())
    assert re.fullmatch(r"notified pager: 1 incident \([0-9a-f]{8}\)", said[0])
    assert re.fullmatch(r"queued for list: 1 incident \([0-9a-f]{8}\)", said[1])
    (line,) = [line for line in office.resil("list").out.splitlines() if "/scratch" in line]
    assert "pager; queued for list" in line
    (incident,) = office.resil("list", "--json").json["incidents"]
    assert (incident["accepted_by"], incident["waiting_for"]) == (["pager"], ["list"])
    office.order("list")
    office.resil("flush")
    (incident,) = office.resil("list", "--json").json["incidents"]
    assert (sorted(incident["accepted_by"]), incident["waiting_for"]) == (["list", "pager"], [])


def test_an_incident_of_a_message_about_very_many_has_the_channels_of_that_message(office: Office) -> None:
    office.tick(*(full(f"job {number}") for number in range(60)))
    incidents = office.resil("list", "--json").json["incidents"]
    assert len(incidents) == 60 and all(sorted(i["accepted_by"]) == ["list", "pager"] for i in incidents)


def test_a_recovered_incident_is_not_shown_as_critical(office: Office) -> None:
    office.shell.settings(ALERTING.replace("[alert]", "[alert]\nresolve_after_s = 3600"))
    office.tick(full(), full("/home", Verdict.WARNING))
    office.tick(well(), full("/home", Verdict.WARNING))
    faulty, recovered = office.resil("list").out.splitlines()[1:3]
    assert "WARNING" in faulty, "the faulty one first"
    assert "recovered, was CRITICAL" in recovered and re.search(r"recovered \d+ s ago", recovered)
    said = office.resil("show", office.episode()).out
    assert "recovered, was CRITICAL" in said.splitlines()[0] and "no longer found the fault" in said
    document = office.resil("list", "--json").json
    assert [incident["state"] for incident in document["incidents"]] == ["faulty", "recovered"]


def test_an_incident_that_is_no_longer_checked_is_shown_as_such_while_its_end_waits(office: Office) -> None:
    office.shell.settings(ALERTING.replace("group_s = 0", "group_s = 3600"))
    for findings in ((full(), full("/home")), *[(full("/home"),)] * 3):
        assert "not checked" not in office.resil("list").out
        notify(office.shell.project, [Report(check="fs", findings=findings, time=time.time())], typed="")
    (line,) = [line for line in office.resil("list").out.splitlines() if "/scratch" in line]
    assert "not checked recently" in line


def test_many_incidents_are_acknowledged_at_once(office: Office) -> None:
    office.tick(full(), full("/home"))
    office.tick(full("gpt"), check="job")
    said = office.resil("ack", "--check", "fs", "-m", "on it")
    assert said.code == 0 and len(said.out.splitlines()) == 2 and "fs /home space" in said.out
    said = office.resil("ack", "--all")
    assert len(said.out.splitlines()) == 1 and "job gpt space" in said.out
    assert office.resil("ack", "--all").out == "no unacknowledged incident\n"
    assert office.resil("ack", "--check", "inodes").out == "no unacknowledged incident of inodes\n"
    assert len(office.resil("ack", "--all", "--undo").out.splitlines()) == 3
    for words in ((), ("--all", "--check", "fs"), ("3f9a1c04", "--all")):
        said = office.resil("ack", *words)
        assert said.code == 2 and "resil alert ack --all" in said.err


def test_the_id_of_a_message_stands_for_all_its_incidents(office: Office) -> None:
    office.tick(*(full(f"job {number}") for number in range(30)))
    (entry,) = {entry.alert.id: entry for entry in office.state.outbox.sent()}.values()
    assert entry.alert.id in plain_text(entry.alert)
    assert len(office.resil("ack", entry.alert.id[:8]).out.splitlines()) == 30
    assert all(incident.acknowledged_by for incident in office.state.ledger.incidents())
    office.tick(*(well(f"job {number}") for number in range(30)))
    said = office.resil("ack", entry.alert.id)
    assert said.code == 2 and "every incident in message" in said.err


def test_show_names_the_incidents_of_a_message_about_several(office: Office) -> None:
    office.tick(full(), full("/home"))
    (entry,) = {entry.alert.id: entry for entry in office.state.outbox.sent()}.values()
    said = office.resil("show", entry.alert.id)
    ids = {incident.episode for incident in office.state.ledger.incidents()}
    assert said.code == 2 and "is about 2 incidents: " in said.err and all(id in said.err for id in ids)
    shown = said.err.partition("try: resil alert ")[2].split()
    assert office.resil(*shown).code == 0
    assert "there is no incident" in office.resil("show", "0123456789abcdef").err


def test_the_id_of_a_digest_stands_for_all_its_incidents(office: Office) -> None:
    office.order("pager", "down")
    office.order("list", "down")
    for number in range(30):
        office.tick(full(f"job {number}"), check=f"check{number}")
    office.order("pager")
    office.resil("flush")
    (digest,) = {e.alert.id for e in office.state.outbox.sent() if e.is_digest}
    assert len(office.resil("ack", digest).out.splitlines()) == 30


def test_the_list_is_json_for_programs(office: Office) -> None:
    office.tick(full())
    document = office.resil("list", "--json").json
    (incident,) = document["incidents"]
    assert (document["kind"], incident["subject"], incident["open"]) == ("alerts", "/scratch", True)
    assert document["channels"] == ["pager", "list"] and document["waiting"] == {}


def test_a_project_without_channels_says_what_to_write(office: Office) -> None:
    office.shell.settings(SETTINGS)
    for words in (("list",), ()):
        said = office.resil(*words)
        assert said.code == 0 and '[alert]\n  channels = ["email"]\n  [channel.email]\n' in said.out
    said = office.resil("test")
    assert said.code == 2 and "[channel.email]" in said.err and "resil alert test" in said.err


def test_what_to_write_is_good_toml_for_a_channel_that_exists(office: Office) -> None:
    office.shell.settings(SETTINGS)
    written = office.resil("list").out
    toml = "".join(line.strip() + "\n" for line in written.splitlines() if line.startswith("  "))
    office.shell.settings(SETTINGS + toml)
    said = office.resil("test", "email", "--dry-run")
    assert said.code == 0 and "you@example.org" in said.out


def test_the_life_of_an_incident_is_told_with_whom_was_told_what(office: Office) -> None:
    office.order("list", "down")
    office.tick(full())
    office.resil("ack", office.episode(), "-m", "deleting old checkpoints")
    said = office.resil("show", office.episode()[:4])
    assert said.code == 0
    for words in (
        "CRITICAL", "fs /scratch space", "try: resil watch fs --top", "df: 99%", "run: gpt", "opened",
        "pager delivered FIRST fs /scratch space", "(taken)", "queued for list", "the server does not answer",
        "deleting old checkpoints",
    ):  # fmt: skip
        assert words in said.out, words
    document = office.resil("show", office.episode(), "--json").json
    assert [message["channel"] for message in document["sent"]] == ["pager"]
    assert document["waiting"][0]["error"] == "the server does not answer"


@pytest.mark.parametrize("words", [("show", "zzz"), ("ack", "zzz"), ("silence", "zzz", "--for", "2h"), ("show", "")])
def test_an_incident_that_is_not_there_is_said(office: Office, words: tuple[str, ...]) -> None:
    office.tick(full())
    said = office.resil(*words)
    assert said.code == 2 and "there is no incident" in said.err and "try:" in said.err


def test_control_characters_in_a_subject_steer_no_terminal(office: Office) -> None:
    office.tick(full("/scratch\x1b[31m\n"))
    assert "\x1b" not in office.resil("list").out + office.resil("show", office.episode("/scratch\x1b[31m\n")).out


def test_a_damaged_incident_is_said_and_the_others_are_shown(office: Office) -> None:
    office.tick(full(), full("/home"))
    incidents = office.state.path / "incidents"
    sorted(incidents.glob("*.json"))[0].write_text("{")
    said = office.resil("list")
    assert said.code == 0 and "moved to" in said.out and "99% used" in said.out


def test_a_state_directory_that_hangs_is_said_and_messages_go_out_from_this_node(office: Office) -> None:
    with hung_directory(office.directory / "hung") as directory:
        settings = ALERTING.replace("[run]", f'[run]\nstate_dir = "{directory}"')
        office.shell.settings(settings + "[watch]\nstate_deadline_s = 3\n")
        began = time.monotonic()
        office.order("list", "down")
        office.tick(full())
        assert len(office.taken("pager")) == 1
        office.order("list")
        assert office.resil("flush").code == 0 and len(office.taken("list")) == 1
        listed = office.resil("list")
        assert "does not respond" in listed.out and "fs /scratch space" in listed.out
        assert time.monotonic() - began < 30


# ---- ack


def test_several_are_acknowledged_at_once_and_handed_back(office: Office) -> None:
    office.tick(full(), full("/home"))
    ids = office.episode(), office.episode("/home")
    said = office.resil("ack", *ids, "-m", "at it")
    assert said.code == 0 and said.out.count("acknowledged by") == 2
    assert {i.acknowledged_note for i in office.state.ledger.incidents()} == {"at it"}
    assert "ACKNOWLEDGED" in office.resil("list").out
    assert "acknowledgement removed" in office.resil("ack", "--undo", ids[0]).out
    assert [i.acknowledged_by for i in office.state.ledger.incidents()].count("") == 1


def test_if_one_of_several_is_not_there_none_is_acknowledged(office: Office) -> None:
    office.tick(full())
    assert office.resil("ack", office.episode(), "zzz").code == 2
    assert office.state.ledger.incidents()[0].acknowledged_by == ""


def test_what_is_over_is_not_acknowledged(office: Office) -> None:
    office.tick(full())
    office.tick(well())
    said = office.resil("ack", office.episode())
    assert said.code == 2 and "is already resolved" in said.err


# ---- silence


def test_a_silence_says_what_it_covers_and_how_to_end_it(office: Office) -> None:
    office.tick(full())
    said = office.resil("silence", "--subject", "/scr*", "--for", "2h", "--why", "maintenance")
    assert said.code == 0 and f"covers {office.episode()}" in said.out and "for 2 h" in said.out
    listed = office.resil("silence", "--list").out
    assert "maintenance" in listed and "subject /scr*" in listed
    assert "silenced" in office.resil("list").out
    (silence,) = office.state.silences.active(time.time())
    assert office.resil("unsilence", silence.id[:5]).code == 0
    assert "no active silence" in office.resil("silence", "--list").out


def test_one_incident_is_silenced_by_its_id_until_a_time_of_day(office: Office) -> None:
    office.tick(full())
    assert office.resil("silence", office.episode()[:5], "--until", "07:30").code == 0
    (silence,) = office.state.silences.active(time.time())
    assert silence.episode == office.episode() and 0 < silence.until - time.time() <= 86400
    assert time.strftime("%H:%M", time.localtime(silence.until)) == "07:30"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--check", "fs"), "must have an end"),
        (("--check", "fs", "--for", "2h", "--until", "07:30"), "together"),
        (("--for", "2h"), "a silence needs a pattern"),
        (("--check", "fs", "--for", "2"), "not a duration"),
        (("--check", "fs", "--until", "soon"), "is not a time"),
        (("--check", "fs", "--until", "25:61"), "is not a time"),
        (("--check", "fs", "--until", "2001-01-01"), "in the past"),
        (("--check", "fs", "--until", "99999-01-01"), "is not a time"),
        (("--check", "fs", "--for", "0s"), "in the past"),
    ],
)
def test_a_silence_that_cannot_be_meant_is_refused(office: Office, words: tuple[str, ...], said: str) -> None:
    refused = office.resil("silence", *words)
    assert refused.code == 2 and said in refused.err and "try:" in refused.err
    assert office.state.silences.active(0.0) == ()


def test_nobody_is_told_while_it_is_silenced(office: Office) -> None:
    office.resil("silence", "--check", "fs", "--for", "2h")
    office.tick(full())
    assert office.taken("pager") == [] and "CRITICAL" in office.resil("list").out


# ---- flush


def test_what_waits_is_delivered_now(office: Office) -> None:
    office.order("list", "down")
    office.tick(full())
    assert "list: 1 message queued: the server does not answer" in office.resil("list").out
    said = office.resil("flush")
    assert said.code == 75 and "did not deliver FIRST fs /scratch" in said.out and "1 message still queued" in said.out
    office.order("list")
    due = office.resil("flush", "--due")
    assert due.code == 75 and "skipped" in due.out, "cron waits for the back-off"
    said = office.resil("flush")
    assert said.code == 0 and "list delivered FIRST fs /scratch space" in said.out and len(office.taken("list")) == 1
    assert office.resil("flush").out == "nothing is queued\n"


def test_a_dead_letter_is_told_by_the_next_command_and_can_be_tried_again(office: Office) -> None:
    office.order("list", "refuse")
    said = office.tick(full())
    assert any(line.startswith("rejected by list: 1 incident") for line in said) and "queued" not in str(said)
    status = office.shell.resil("status")
    assert status.err == "resil: 1 alert could not be delivered: see resil alert\n"
    assert "alert" not in status.out
    assert (
        office.shell.resil("config", "show", "--json").json and "1 alert" in office.shell.resil("config", "check").err
    )
    listed = office.resil("list")
    assert listed.err == "", "the table shows it"
    assert "there is no such recipient" in listed.out and "--retry-dead" in listed.out
    assert "list rejected" in listed.out
    flushed = office.resil("flush", "--retry-dead")
    assert flushed.code == 1 and "1 dead letter queued again" in flushed.out and "list rejected FIRST" in flushed.out
    office.order("list")
    assert office.resil("flush", "--retry-dead").code == 0
    assert len(office.taken("list")) >= 1 and office.shell.resil("status").err == ""


def test_dead_letters_can_be_forgotten(office: Office) -> None:
    office.order("list", "refuse")
    office.tick(full())
    assert office.resil("flush", "--retry-dead", "--discard-dead").code == 2
    assert office.resil("flush", "--discard-dead").code == 0
    assert office.shell.resil("status").err == ""


def test_tab_completion_says_nothing_of_dead_letters(
    office: Office, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    office.order("list", "refuse")
    office.tick(full())
    monkeypatch.setenv("_RESIL_COMPLETE", "complete_bash")
    from resilience.cli.options import complete_runs

    capsys.readouterr()
    complete_runs("")
    assert capsys.readouterr().err == ""


def test_a_dry_run_shows_the_messages_and_sends_none(office: Office) -> None:
    office.order("list", "down")
    office.tick(full())
    office.order("list")
    said = office.resil("flush", "--dry-run")
    assert said.code == 0 and "FIRST /scratch: 99% used" in said.out and office.taken("list") == []
    assert office.state.outbox.names() != ()


# ---- test


def test_a_real_message_goes_out_and_what_came_back_is_said(office: Office) -> None:
    said = office.resil("test")
    assert said.code == 0 and sorted(line.partition(":")[0] for line in said.out.splitlines()) == ["list", "pager"]
    assert "delivered in" in said.out and "nothing is wrong" in office.taken("pager")[0]
    assert office.resil("test", "pager").code == 0 and (len(office.taken("pager")), len(office.taken("list"))) == (2, 1)
    assert not (office.shell.directory / ".resil" / ".alerts").exists(), "a trial is no incident"


@pytest.mark.parametrize(
    ("order", "why"),
    [
        ("down", "the server does not answer"),
        ("settings", "chmod 600 it"),
        ("raise", "RuntimeError"),
        ("abort", "crash"),
    ],
)
def test_a_channel_that_does_not_take_it_is_said_and_the_exit_code_is_1(office: Office, order: str, why: str) -> None:
    office.order("list", order)
    said = office.resil("test")
    assert said.code == 1 and "list: FAILED" in said.out and why in said.out and "pager: delivered" in said.out
    assert "canary" not in said.out + said.err
    document = office.resil("test", "--json").json
    assert document["channels"]["pager"]["taken"] and not document["channels"]["list"]["taken"]


def test_a_trial_can_be_seen_without_sending(office: Office) -> None:
    said = office.resil("test", "--dry-run")
    assert said.code == 0 and "nothing is wrong" in said.out and office.taken("pager") == []


# ---- a watchdog's verdict is its own


def test_a_channel_that_hangs_changes_no_verdict(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resilience.alerts.delivery.SEND_S", 0.5)
    missing = str(office.directory / "missing")
    plain = office.shell.resil("watch", "fs", missing, "--no-alert")
    office.order("pager", "hang")
    alerted = office.shell.resil("watch", "fs", missing, "--alert")
    assert plain.code != 0 and (alerted.code, alerted.out) == (plain.code, plain.out)
    assert "pager failed to deliver a message: no answer within 0.5 s" in alerted.err
    assert len(office.taken("list")) == 1 and "queued for pager" in office.resil("list").out


# ---- colleagues


def as_colleague(office: Office, *words: str) -> Said:
    """Type a command as somebody else of the group, in a process that may not become root again."""
    home = office.directory / "colleague"
    home.mkdir(exist_ok=True)
    os.chown(home, NOBODY, NOBODY)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            os.environ |= {"HOME": str(home), "XDG_STATE_HOME": str(home)}
            sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
            code = entry.run(["alert", *words])
            answer = code, sys.stdout.getvalue(), sys.stderr.getvalue()
        except BaseException as error:
            answer = -1, "", f"{type(error).__name__}: {error}"
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        code, out, err = json.loads(pipe.read())
    os.waitpid(pid, 0)
    return Said(code, out, err)


def let_in(office: Office) -> None:
    """Let the colleague pass to the project; load what they cannot reach."""
    open_the_way(office.shell.directory / "x")
    office.shell.directory.chmod(0o755)
    office.tick(full("/warm"))
    office.resil("ack", office.episode("/warm"))
    office.resil("silence", "--check", "none", "--for", "1s")
    office.resil("flush")
    office.resil("ack", "zzz")
    importlib.import_module("email.headerregistry")  # imported when a mail is composed


@needs_root
def test_a_colleague_of_the_group_acknowledges_silences_and_delivers(office: Office) -> None:
    group = grp.getgrgid(NOBODY).gr_name
    office.shell.settings(ALERTING.replace("[run]", f'[run]\ngroup = "{group}"'))
    let_in(office)
    office.order("list", "down")
    office.tick(full())
    office.order("list")
    for path in (office.directory, *office.directory.glob("*.taken")):
        path.chmod(0o777)  # the stand-in writes there
    directory = office.state.path
    assert directory.stat().st_mode & 0o7777 == 0o2770
    said = as_colleague(office, "ack", office.episode())
    assert said.code == 0, said.err
    said = as_colleague(office, "silence", "--check", "fs", "--for", "1h")
    assert said.code == 0, said.err
    said = as_colleague(office, "flush")
    assert said.code == 0 and "list delivered FIRST" in said.out, said.err
    assert {i.acknowledged_by for i in office.state.ledger.incidents() if i.subject == "/scratch"} == {"nobody"}
    assert [silence.check for silence in office.state.silences.active(time.time() + 5)] == ["fs"]
    assert office.state.outbox.names() == ()
    office.tick(well())
    assert office.resil("list", "--all").code == 0, "and the owner goes on"
    files = {path.name: path.stat().st_mode & 0o777 for path in directory.rglob("*") if path.is_file()}
    assert set(files.values()) == {0o660}, files


@needs_root
def test_a_colleague_of_a_private_run_is_told_that_it_was_not_kept(office: Office) -> None:
    let_in(office)
    said = as_colleague(office, "silence", "--check", "fs", "--for", "1h")
    assert said.code != 0 and "not saved" in said.err and "[run] group" in said.err
    assert office.state.silences.active(time.time() + 5) == ()


# ---- completion


def test_ids_and_channels_are_completed_from_local_state(office: Office) -> None:
    office.tick(full(), full("/home"))
    office.resil("silence", "--check", "fs", "--for", "2h")
    assert alert_command.complete_incidents(office.episode()[:6]) == [office.episode()]
    assert len(alert_command.complete_silences("")) == 1
    assert alert_command.complete_channels("p") == ["pager"]
    assert alert_command.complete_subjects("/h") == ["/home"]
    os.chdir("/")
    assert alert_command.complete_incidents("") == []
    office.shell.settings("nonsense")
    os.chdir(office.shell.directory)
    for complete in (
        alert_command.complete_incidents, alert_command.complete_silences, alert_command.complete_channels,
        alert_command.complete_subjects,
    ):  # fmt: skip
        assert complete("") == []
