"""`resil alert flush` ends, whatever the channels do; `resil alert test` sends what says that nothing is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.alerts import commands as alert_delivery
from resilience.alerts.sending import Ending, Route
from resilience.alerts.state import open_alert_state
from resilience.errors import UsageError
from resilience.runs.project import Project
from tests.alerts.stand_in import StandIn, an_alert
from tests.fakes import NOW, make_project


class Desk:
    """A project whose channels are stand-ins."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        environ = {"XDG_STATE_HOME": str(folder / "state")}
        settings = '[alert]\nchannels = ["email", "slack"]\n'
        self.project: Project = make_project(folder, settings=settings, environ=environ)
        self.email, self.slack = StandIn(folder, "email"), StandIn(folder, "slack")
        routes = {"email": self.email.route, "slack": self.slack.route}

        def the_routes(project: Project, also: str = "") -> dict[str, Route]:
            return dict(routes)

        monkeypatch.setattr(alert_delivery, "routes_of", the_routes)

    def put(self, id: str, channel: str) -> None:
        open_alert_state(self.project).outbox.put(an_alert(id), channel, NOW)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)


def test_all_that_waits_goes_out_a_message_for_each_channel_at_a_time(desk: Desk) -> None:
    for number in range(3):
        desk.put(f"a{number}", "email")
    desk.put("b", "slack")
    rounds = list(alert_delivery.deliver(desk.project))
    assert [len(done.sent) for done in rounds][:3] == [2, 1, 1] and rounds[-1].waiting == 0
    assert len(desk.email.ids) == 3 and desk.slack.ids == ["b"]


def test_a_channel_that_fails_is_tried_once_and_the_others_go_on(desk: Desk) -> None:
    desk.email.order("down")
    for number in range(3):
        desk.put(f"a{number}", "email")
        desk.put(f"b{number}", "slack")
    rounds = list(alert_delivery.deliver(desk.project))
    assert sum(len(done.failed) for done in rounds) == 1 and len(desk.slack.ids) == 3
    assert rounds[-1].waiting == 3


def test_a_channel_that_refuses_everything_does_not_go_on_for_ever(desk: Desk) -> None:
    desk.email.order("refuse")
    for number in range(3):
        desk.put(f"a{number}", "email")
    rounds = list(alert_delivery.deliver(desk.project))
    assert sum(len(done.dead) for done in rounds) == 3
    desk.email.order()
    assert len(alert_delivery.revive(desk.project)) == 3
    assert list(alert_delivery.deliver(desk.project))[-1].waiting == 0
    assert sorted(desk.email.ids) == ["a0", "a1", "a2"]


def test_an_empty_outbox_is_one_round(desk: Desk) -> None:
    (done,) = alert_delivery.deliver(desk.project)
    assert done.waiting == 0 and done.sent == ()


def test_the_drafts_are_in_order_and_of_each_thread_only_the_first_is_composed(desk: Desk) -> None:
    outbox = open_alert_state(desk.project).outbox
    outbox.put(an_alert("1", thread="t"), "email", NOW)
    outbox.put(an_alert("2", thread="t", time=NOW + 1), "email", NOW)
    outbox.put(an_alert("3"), "pager", NOW)
    drafts = alert_delivery.drafts(desk.project)
    assert [(draft.entry.alert.id, draft.text is None) for draft in drafts] == [("1", False), ("2", True), ("3", False)]
    assert "no channel 'pager' any more" in str(drafts[2].text)
    assert desk.email.taken == []


def test_a_trial_says_that_it_is_one_and_each_is_a_new_one(desk: Desk) -> None:
    one, other = alert_delivery.trial(desk.project), alert_delivery.trial(desk.project)
    assert one.is_test and one.id != other.id and "nothing is wrong" in one.notices[0].summary
    outcomes = dict(alert_delivery.try_channels(desk.project, {"email": desk.email.route}))
    assert outcomes["email"].ending is Ending.SENT and outcomes["email"].answer == "taken"


def test_a_channel_that_nobody_knows_cannot_be_tried(desk: Desk) -> None:
    with pytest.raises(UsageError, match="no channel 'emial'") as raised:
        alert_delivery.routes_to_try(desk.project, "emial")
    assert raised.value.hint == "did you mean email?"
