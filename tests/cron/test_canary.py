"""A real alert on demand: whoever's scheduler ticks next sends it, once, and the asker hears what each channel said."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.alerts.state import open_alert_state
from resilience.cron.canary import CanaryAnswer, answer, ask, release, waiting
from resilience.cron.run import tick
from resilience.errors import StateDirectoryError, UsageError
from tests.cron.stage import Stage, until

BROKEN = '[channel.pager]\nkind = "command"\nargv = ["/bin/false"]\n'
BOTH = 'channels = ["console", "pager"]'


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def answered(stage: Stage, id: str) -> CanaryAnswer:
    until(lambda: answer(stage.cron, id).ended is not None, "the answer")
    return answer(stage.cron, id)


def test_the_next_tick_sends_it_and_the_asker_hears_of_it(stage: Stage) -> None:
    id = ask(stage.cron)
    assert answer(stage.cron, id).taken is None
    tick(stage.cron, driver="foreground")
    found = answered(stage, id)
    assert found.is_well and not found.trouble and "foreground on" in found.by
    ((channel, took_it, said, after_s),) = found.channels
    assert (channel, took_it) == ("console", True) and said and after_s >= 0
    (line,) = [line for line in stage.told() if id in line]
    assert f"test alert {id}, requested by" in line and "foreground on" in line
    assert waiting(stage.cron) == ()


def test_it_leaves_no_incident_and_no_message_behind(stage: Stage) -> None:
    release(stage.cron, ask(stage.cron), "foreground")
    state = open_alert_state(stage.project)
    assert not state.ledger.incidents() and not state.outbox.names()


def test_two_schedulers_send_it_once(stage: Stage) -> None:
    id = ask(stage.cron)
    release(stage.cron, id, "foreground")
    release(stage.cron, id, "crontab")
    assert len([line for line in stage.told() if id in line]) == 1
    assert answered(stage, id).by.startswith("foreground")


def test_two_canaries_in_a_row_wait_for_no_group(tmp_path: Path) -> None:
    stage = Stage(tmp_path, alert='channels = ["console"]\ngroup_s = 3600\nquiet_hours = "00:00-23:59"')
    for _ in range(2):
        id = ask(stage.cron)
        release(stage.cron, id, "foreground")
        assert answered(stage, id).is_well


def test_a_channel_that_rejects_the_alert_is_reported_with_its_reason(tmp_path: Path) -> None:
    stage = Stage(tmp_path, channel=BROKEN, alert=BOTH)
    id = ask(stage.cron)
    release(stage.cron, id, "foreground")
    found = answered(stage, id)
    assert not found.is_well
    said = {channel: (took_it, words) for channel, took_it, words, _ in found.channels}
    assert said["console"][0] and not said["pager"][0] and said["pager"][1]


def test_without_a_channel_a_canary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no channel"):
        ask(Stage(tmp_path, alert="").cron)


def test_while_the_scheduler_is_stopped_a_canary_is_refused(stage: Stage) -> None:
    stage.cron.state.stop("alice", "enough", 1.0)
    with pytest.raises(UsageError, match="stopped"):
        ask(stage.cron)
    assert waiting(stage.cron) == ()


@pytest.mark.parametrize("id", ["canary-00000000", "../../etc/passwd", "", "canary-zzzzzzzz"])
def test_an_unrequested_canary_is_refused(stage: Stage, id: str) -> None:
    with pytest.raises(UsageError):
        answer(stage.cron, id)


def test_a_damaged_one_is_reported(stage: Stage) -> None:
    id = ask(stage.cron)
    (stage.cron.state.path / "canary" / f"{id}.asked").write_text('{"asked": "x"}')
    with pytest.raises(StateDirectoryError):
        answer(stage.cron, id)


def test_an_error_during_delivery_is_the_answer(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StateDirectoryError("the disk is full")

    id = ask(stage.cron)
    monkeypatch.setattr("resilience.cron.canary._send", fail)
    release(stage.cron, id, "foreground")
    found = answered(stage, id)
    assert found.trouble == "the disk is full" and not found.is_well
