"""MAILTO as cron has it: output is mailed, silence is not, and nothing is lost on the way."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from resilience.alerts.commands import deliver
from resilience.alerts.outbox import Outbox
from resilience.alerts.routes import mail_error
from resilience.alerts.state import open_alert_state
from resilience.cron.mail import addresses, queue_mails
from resilience.cron.records import Entry, Kind, Outcome, RunRecord
from resilience.cron.run import tick
from resilience.cron.state_directory import Seen
from resilience.errors import StateDirectoryError
from tests.cron.stage import Stage, until

NOISY = Entry(name="crontab/noisy", place="cron/crontab:2", schedule="* * * * *", kind=Kind.RUN, argv=("/bin/echo",),
              mail_to="ada@example.org")  # fmt: skip


def with_sendmail(tmp_path: Path, alert: str = "") -> Stage:
    """Mail leaves by a program that keeps each in a file."""
    program = tmp_path / "sendmail"
    program.write_text(f'#!/bin/sh\n{{ echo "ARGV $*"; cat; }} >> {tmp_path}/mails\n')
    program.chmod(0o755)
    return Stage(tmp_path, alert=alert, channel=f'[channel.email]\nto = ["list@example.org"]\nsendmail = ["{program}"]')


def mails(stage: Stage) -> str:
    path = stage.directory / "mails"
    return path.read_text() if path.exists() else ""


def a_run(stage: Stage, output: str, slot: int = 100, entry: Entry = NOISY) -> RunRecord:
    directory = stage.cron.state.path / "output" / entry.key
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{slot}.txt").write_text(output)
    return RunRecord(
        name=entry.name,
        slot=slot,
        outcome=Outcome.FAILED,
        time=slot + 5.0,
        exit_code=3,
        host="n1",
        output=f"{slot}.txt",
    )


def queue(stage: Stage, *runs: RunRecord, entry: Entry = NOISY, since: float = 0.0) -> tuple[str, ...]:
    """Queue the mails of the runs, and of later ones in the history; return the error messages."""
    return queue_mails(stage.cron, (entry,), runs, since)[0]


def test_output_is_mailed_only_to_mailto(tmp_path: Path) -> None:
    stage = with_sendmail(tmp_path)
    assert queue(stage, a_run(stage, "hello\nworld\n")) == ()
    assert mails(stage) == "", "it waits in the outbox, where nothing is lost"
    list(deliver(stage.project))
    text = mails(stage)
    assert "ada@example.org" in text and "list@example.org" not in text
    assert "hello" in text and "world" in text and "crontab/noisy" in text and "exit code 3" in text
    assert not open_alert_state(stage.project).outbox.names()


def test_the_same_run_is_mailed_once(tmp_path: Path) -> None:
    stage = with_sendmail(tmp_path)
    run = a_run(stage, "hello\n")
    queue(stage, run)
    list(deliver(stage.project))
    queue(stage, run)
    list(deliver(stage.project))
    assert mails(stage).count("ARGV") == 1


@pytest.mark.parametrize("mail_to", [None, "", " , "])
def test_without_mailto_or_with_an_empty_one_nothing_is_sent(tmp_path: Path, mail_to: str | None) -> None:
    from dataclasses import replace

    stage = with_sendmail(tmp_path)
    assert queue(stage, a_run(stage, "hello\n"), entry=replace(NOISY, mail_to=mail_to)) == ()
    assert not open_alert_state(stage.project).outbox.names()


@pytest.mark.parametrize("output", ["", "\n \n"])
def test_a_run_without_output_sends_nothing(tmp_path: Path, output: str) -> None:
    stage = with_sendmail(tmp_path)
    assert queue(stage, a_run(stage, output)) == ()
    assert not open_alert_state(stage.project).outbox.names()


def test_several_recipients_get_one_each_and_an_invalid_address_is_reported(tmp_path: Path) -> None:
    from dataclasses import replace

    stage = with_sendmail(tmp_path)
    entry = replace(NOISY, mail_to="ada@example.org, bob@example.org, -oQ/tmp, ada@example.org")
    (line,) = queue(stage, a_run(stage, "hello\n"), entry=entry)
    assert "-oQ/tmp" in line
    list(deliver(stage.project))
    assert mails(stage).count("ARGV") == 2 and "bob@example.org" in mails(stage)


def test_two_million_lines_are_a_short_mail_with_their_beginning_and_their_end(tmp_path: Path) -> None:
    stage = with_sendmail(tmp_path)
    queue(stage, a_run(stage, "first\n" + "x" * 79 * 20_000 + "\nlast\n"))
    list(deliver(stage.project))
    text = mails(stage)
    assert "first" in text and "last" in text and len(text) < 100_000


def test_nothing_that_was_a_secret_here_is_mailed(tmp_path: Path) -> None:
    from resilience.system.secrets import Secret

    stage = with_sendmail(tmp_path)
    Secret("hunter2hunter2")
    queue(stage, a_run(stage, "the password is hunter2hunter2\n"))
    list(deliver(stage.project))
    assert "the password is" in mails(stage) and "hunter2" not in mails(stage)


def test_without_a_mail_program_there_is_a_message_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path)
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert "no [channel.email] and no sendmail" in mail_error(stage.project)
    (line,) = queue(stage, a_run(stage, "hello\n"))
    assert "no sendmail" in line and "cron/crontab:2" in line


def test_mails_of_a_killed_tick_are_sent_by_the_next_one_and_old_output_is_not(tmp_path: Path) -> None:
    stage = with_sendmail(tmp_path)
    now = int(time.time())
    for text, slot in (("of the past", now - 90000), ("mailed before", now - 400), ("nobody told", now - 60)):
        stage.cron.state.record(NOISY.key, a_run(stage, f"{text}\n", slot=slot))
    told = a_run(stage, "told\n", slot=now)
    stage.cron.state.record(NOISY.key, told)
    for since in (now - 200.0, now - 100.0):
        queue(stage, told, since=since)
    list(deliver(stage.project))
    text = mails(stage)
    assert text.count("ARGV") == 2 and "nobody told" in text
    queue(stage, since=1.0)
    list(deliver(stage.project))
    assert "mailed before" in mails(stage) and "of the past" not in mails(stage)


def test_mails_that_cannot_be_queued_now_are_queued_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = with_sendmail(tmp_path)
    run = a_run(stage, "hello\n", slot=int(time.time()))
    stage.cron.state.record(NOISY.key, run)
    with monkeypatch.context() as patched:

        def fail(*_: object) -> bool:
            raise StateDirectoryError("the disk is full")

        patched.setattr(Outbox, "put", fail)
        (line,), is_complete = queue_mails(stage.cron, (NOISY,), (run,), 0.0)
        assert "the disk is full" in line and not is_complete
    assert queue(stage, since=run.time) == ()
    list(deliver(stage.project))
    assert "hello" in mails(stage)


def test_addresses_are_parsed_as_in_cron() -> None:
    assert addresses("ada, bob@example.org,ada") == ("ada", "bob@example.org")
    assert addresses(None) == addresses("") == ()


def test_a_real_line_with_mailto_is_mailed_by_its_tick(tmp_path: Path) -> None:
    stage = with_sendmail(tmp_path)
    stage.crontab("MAILTO=ada@example.org", "* * * * * /bin/echo good morning # resil: name=hello")
    tick(stage.cron, driver="foreground")
    seen = stage.cron.state.seen()
    stage.cron.state.write_seen({key: Seen(one.since - 120, one.schedule) for key, one in seen.items()})
    tick(stage.cron, driver="foreground")
    until(lambda: "good morning" in mails(stage), "the mail")
    assert "ada@example.org" in mails(stage)
