"""The commands of `resil alert`: acknowledgements and silences reach the watchdogs or fail; a flush always ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilience.alerts import commands
from resilience.alerts.alert import Reason
from resilience.alerts.channel_health import NodeState
from resilience.alerts.incident import Incident
from resilience.alerts.routes import Route
from resilience.alerts.sending import DeliveryStatus
from resilience.alerts.state import open_alert_state
from resilience.errors import StateDirectoryError, UsageError
from resilience.finding import Verdict
from resilience.runs.project import Project
from tests.alerts.stand_in import StandIn, an_alert
from tests.lab.fakes import ME, NOW, FakeClock, make_project
from tests.lab.hung import hung_directory

pytestmark = pytest.mark.usefixtures("probed_here")

SETTINGS = """
[run]
name = "gpt"
[alert]
channels = ["email"]
[watch]
state_deadline_s = 3
[channel.email]
to = ["ada@example.org"]
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = make_project(tmp_path, settings=SETTINGS, environ={"XDG_STATE_HOME": str(tmp_path / "state")})
    for episode, fields in {
        "aaaa0001": {"verdict": Verdict.WARNING, "opened": NOW - 60},
        "aaaa0002": {"verdict": Verdict.CRITICAL, "opened": NOW - 30, "subject": "/home"},
        "bbbb0001": {"verdict": Verdict.WARNING, "opened": NOW - 90, "resolved": NOW - 5, "subject": "/old"},
    }.items():
        given: dict[str, Any] = {"subject": "/scratch", "seen": NOW, **fields}
        open_alert_state(made).ledger.save(
            Incident(episode=episode, fingerprint=episode * 2, check="fs", fault="space", summary="99% used", **given)
        )
    return made


def test_incidents_are_sorted_by_severity_with_resolved_ones_last(project: Project) -> None:
    assert [k.incident.episode for k in commands.listing(project).known] == ["aaaa0002", "aaaa0001"]
    assert [k.incident.episode for k in commands.listing(project, everything=True).known][-1] == "bbbb0001"


def test_a_listing_from_a_hanging_state_directory_is_partial_and_does_not_hang(
    project: Project, tmp_path: Path
) -> None:
    """The fault may be that very disk: what this node remembers can be acknowledged, and nothing else is known."""
    state = open_alert_state(project)
    state.ledger.incidents()
    state.ledger.save_copy(NOW)
    state.path.parent.rename(tmp_path / "behind")
    with hung_directory(state.path.parent):
        found = commands.listing(project)
        assert found.is_partial and [k.incident.episode for k in found.known] == ["aaaa0002", "aaaa0001"]
        with pytest.raises(StateDirectoryError, match="cannot look up"):
            commands.acknowledge(project, ["cccc"], "")
        commands.acknowledge(project, ["aaaa0002"], "on it")
        commands.silence(project, check="fs", until=NOW + 60, why="")
        assert commands.listing(project).known[0].incident.acknowledged_by
        (state.ledger.directory.fallback or tmp_path).with_name("ledger-copy.json").unlink()
        for path in (state.ledger.directory.fallback or tmp_path).iterdir():
            path.unlink()
        with pytest.raises(StateDirectoryError, match="was not saved"):
            commands.silence(project, check="fs", until=NOW + 60, why="")


def test_queued_messages_and_dead_letters_are_listed_with_their_incident(project: Project) -> None:
    state = open_alert_state(project)
    state.outbox.put(an_alert("1", episode="aaaa0001"), "email", NOW)
    state.outbox.put(an_alert("1", episode="aaaa0001"), "slack", NOW)
    state.outbox.give_up(state.outbox.pending("slack")[0], "no such channel", "", NOW, "n1")
    state.outbox.channels.save_node_state("email", "login1", NodeState(failures=2, error="down"), NOW)
    found = commands.listing(project)
    known = {k.incident.episode: k for k in found.known}["aaaa0001"]
    assert (known.waiting, known.dead) == (("email",), ("slack",))
    assert found.waiting == {"email": 1} and found.failing["email"].error == "down"
    about = commands.details(project, "aaaa0001")
    assert (len(about.waiting), len(about.dead), about.sent) == (1, 1, ())


def test_a_message_about_many_is_found_from_each_of_them(project: Project) -> None:
    state = open_alert_state(project)
    for number, episode in enumerate(("aaaa0001", "aaaa0002")):
        state.outbox.put(an_alert(f"m{number}", episode=episode, reason=Reason.WORSE), "email", NOW)
    state.outbox.fold("email", NOW, host="n1", project="/p")
    for episode in ("aaaa0001", "aaaa0002"):
        (digest,) = commands.details(project, episode).waiting
        assert digest.is_digest


def test_an_acknowledgement_has_a_name_a_time_and_a_note(project: Project) -> None:
    (incident,) = commands.acknowledge(project, ["aaaa0001"], "at it")
    assert (incident.acknowledged_by, incident.acknowledged_at, incident.acknowledged_note) == (ME, NOW, "at it")
    assert commands.details(project, "aaaa0001").known.incident == incident
    (back,) = commands.acknowledge(project, ["aaaa0001"], "", undo=True)
    assert back.acknowledged_by == ""


def test_the_same_id_twice_is_one_and_an_unclear_one_is_refused(project: Project) -> None:
    assert len(commands.acknowledge(project, ["aaaa0001", "aaaa0001"], "")) == 1
    with pytest.raises(UsageError, match="there is no incident"):
        commands.acknowledge(project, ["deadbeef"], "")
    with pytest.raises(UsageError, match="several"):
        commands.acknowledge(project, ["aaaa"], "")


def test_a_resolved_incident_cannot_be_acknowledged_and_then_none_is(project: Project) -> None:
    ledger = open_alert_state(project).ledger
    ledger.save(replace(ledger.find("aaaa0002"), resolved=NOW))
    with pytest.raises(UsageError, match="is already resolved"):
        commands.acknowledge(project, ["aaaa0001", "aaaa0002"], "")
    assert not ledger.find("aaaa0001").acknowledged_by


def test_a_silence_matches_incidents_and_expires(project: Project) -> None:
    made, covered = commands.silence(project, check="fs", subject="/h*", until=NOW + 60, why="maintenance")
    assert [incident.episode for incident in covered] == ["aaaa0002"]
    assert (made.by, made.since, made.why) == (ME, NOW, "maintenance")
    silenced = [k.incident.episode for k in commands.listing(project).known if k.silence is not None]
    assert silenced == ["aaaa0002"]
    clock = project.system.clock
    assert isinstance(clock, FakeClock)
    clock.time += 61
    assert [k for k in commands.listing(project).known if k.silence is not None] == []


def test_one_incident_is_silenced_by_the_beginning_of_its_id(project: Project) -> None:
    made, covered = commands.silence(project, incident_id="aaaa0001", until=NOW + 60, why="")
    assert made.episode == "aaaa0001" and len(covered) == 1
    assert commands.unsilence(project, [made.id[:4]])[0] == made
    with pytest.raises(UsageError, match="no silence"):
        commands.unsilence(project, [made.id])


def test_a_silence_in_the_past_is_refused(project: Project) -> None:
    with pytest.raises(UsageError, match="in the past"):
        commands.silence(project, check="fs", until=NOW, why="")
    assert commands.silence_ids(project) == ()


def test_only_open_incidents_are_offered_for_completion(project: Project) -> None:
    assert set(commands.incident_ids(project)) == {"aaaa0001", "aaaa0002"}


class Desk:
    """A project whose channels are stand-ins."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        environ = {"XDG_STATE_HOME": str(directory / "state")}
        settings = '[alert]\nchannels = ["email", "slack"]\n'
        self.project: Project = make_project(directory, settings=settings, environ=environ)
        self.email, self.slack = StandIn(directory, "email"), StandIn(directory, "slack")
        routes = {"email": self.email.route, "slack": self.slack.route}

        def the_routes(project: Project, also: str = "") -> dict[str, Route]:
            return dict(routes)

        monkeypatch.setattr(commands, "routes_of", the_routes)

    def put(self, id: str, channel: str) -> None:
        open_alert_state(self.project).outbox.put(an_alert(id), channel, NOW)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)


def test_queued_messages_are_delivered_one_per_channel_and_round(desk: Desk) -> None:
    for number in range(3):
        desk.put(f"a{number}", "email")
    desk.put("b", "slack")
    rounds = list(commands.deliver(desk.project))
    assert [len(done.sent) for done in rounds][:3] == [2, 1, 1] and rounds[-1].waiting == 0
    assert len(desk.email.ids) == 3 and desk.slack.ids == ["b"]


def test_a_failing_channel_is_tried_once_and_the_others_continue(desk: Desk) -> None:
    desk.email.order("down")
    for number in range(3):
        desk.put(f"a{number}", "email")
        desk.put(f"b{number}", "slack")
    rounds = list(commands.deliver(desk.project))
    assert sum(len(done.failed) for done in rounds) == 1 and len(desk.slack.ids) == 3
    assert rounds[-1].waiting == 3


def test_flushing_a_channel_that_rejects_everything_ends(desk: Desk) -> None:
    desk.email.order("refuse")
    for number in range(3):
        desk.put(f"a{number}", "email")
    rounds = list(commands.deliver(desk.project))
    assert sum(len(done.dead) for done in rounds) == 3
    desk.email.order()
    assert len(commands.requeue(desk.project)) == 3
    assert list(commands.deliver(desk.project))[-1].waiting == 0
    assert sorted(desk.email.ids) == ["a0", "a1", "a2"]


def test_an_empty_outbox_is_one_round(desk: Desk) -> None:
    (done,) = commands.deliver(desk.project)
    assert done.waiting == 0 and done.sent == ()


def test_the_preview_is_in_order_and_only_the_first_message_of_a_thread_is_composed(desk: Desk) -> None:
    outbox = open_alert_state(desk.project).outbox
    outbox.put(an_alert("1", thread="t"), "email", NOW)
    outbox.put(an_alert("2", thread="t", time=NOW + 1), "email", NOW)
    outbox.put(an_alert("3"), "pager", NOW)
    preview = commands.preview(desk.project)
    assert [(entry.alert.id, text is None) for entry, text in preview] == [("1", False), ("2", True), ("3", False)]
    assert "no channel 'pager' any more" in str(preview[2][1])
    assert desk.email.taken == []


def test_a_test_alert_is_marked_and_has_an_id_of_its_own(desk: Desk) -> None:
    one, other = commands.trial(desk.project), commands.trial(desk.project)
    assert one.is_test and one.id != other.id and "nothing is wrong" in one.notices[0].summary
    outcomes = dict(commands.send_tests(desk.project, {"email": desk.email.route}))
    assert outcomes["email"].status is DeliveryStatus.SENT and outcomes["email"].answer == "taken"


def test_an_unknown_channel_cannot_be_tested(desk: Desk) -> None:
    with pytest.raises(UsageError, match="no channel 'emial'") as raised:
        commands.routes_to_test(desk.project, "emial")
    assert raised.value.hint == "did you mean email?"
