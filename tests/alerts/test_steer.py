"""What people say to incidents is kept where the watchdogs read it, all of it or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from resilience.alerts import commands as alerts
from resilience.alerts.alert import Reason
from resilience.alerts.channel_health import Health
from resilience.alerts.incident import Incident
from resilience.alerts.state import open_alert_state
from resilience.errors import StateDirectoryError, UsageError
from resilience.finding import Verdict
from resilience.runs.project import Project
from tests.alerts.stand_in import an_alert
from tests.fakes import ME, NOW, FakeClock, make_project
from tests.system.hung import hung_folder

SETTINGS = """
[run]
name = "gpt"
[alert]
channels = ["email"]
[watch]
state_deadline_s = 0.3
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
        open_alert_state(made).ledger.keep(
            Incident(episode=episode, fingerprint=episode * 2, check="fs", fault="space", summary="99% used", **given)
        )
    return made


def test_the_worst_comes_first_and_what_ended_last(project: Project) -> None:
    assert [k.incident.episode for k in alerts.listing(project).known] == ["aaaa0002", "aaaa0001"]
    assert [k.incident.episode for k in alerts.listing(project, everything=True).known][-1] == "bbbb0001"


def test_a_state_directory_that_hangs_is_no_word_that_all_is_well_and_holds_nobody(
    project: Project, tmp_path: Path
) -> None:
    """The fault may be that very disk: what this node remembers can be acknowledged, and nothing else is known."""
    state = open_alert_state(project)
    state.ledger.incidents()
    state.ledger.save_copy(NOW)
    state.path.parent.rename(tmp_path / "behind")
    try:
        with hung_folder(state.path.parent):
            found = alerts.listing(project)
            assert found.is_partial and [k.incident.episode for k in found.known] == ["aaaa0002", "aaaa0001"]
            with pytest.raises(StateDirectoryError, match="cannot be known"):
                alerts.acknowledge(project, ["cccc"], "")
            alerts.acknowledge(project, ["aaaa0002"], "on it")
            alerts.silence(project, check="fs", until=NOW + 60, why="")
            assert alerts.listing(project).known[0].incident.acknowledged_by
            (state.ledger.folder.spare or tmp_path).with_name("ledger-copy.json").unlink()
            for path in (state.ledger.folder.spare or tmp_path).iterdir():
                path.unlink()
            with pytest.raises(StateDirectoryError, match="was not kept"):
                alerts.silence(project, check="fs", until=NOW + 60, why="")
    except OSError as error:  # /dev/fuse
        pytest.skip(f"no file system that hangs can be mounted here: {error}")


def test_what_waits_and_what_never_will_be_taken_stands_beside_its_incident(project: Project) -> None:
    state = open_alert_state(project)
    state.outbox.put(an_alert("1", episode="aaaa0001"), "email", NOW)
    state.outbox.put(an_alert("1", episode="aaaa0001"), "slack", NOW)
    state.outbox.give_up(state.outbox.pending("slack")[0], "no such channel", "", NOW, "n1")
    state.outbox.memory.keep_health("email", "login1", Health(failures=2, error="down"), NOW)
    found = alerts.listing(project)
    known = {k.incident.episode: k for k in found.known}["aaaa0001"]
    assert (known.waiting, known.dead) == (("email",), ("slack",))
    assert found.waiting == {"email": 1} and found.failing["email"].error == "down"
    about = alerts.details(project, "aaaa0001")
    assert (len(about.waiting), len(about.dead), about.sent) == (1, 1, ())


def test_a_message_about_many_is_found_from_each_of_them(project: Project) -> None:
    state = open_alert_state(project)
    for number, episode in enumerate(("aaaa0001", "aaaa0002")):
        state.outbox.put(an_alert(f"m{number}", episode=episode, reason=Reason.WORSE), "email", NOW)
    state.outbox.fold("email", NOW, host="n1", project="/p")
    for episode in ("aaaa0001", "aaaa0002"):
        (digest,) = alerts.details(project, episode).waiting
        assert digest.is_digest


def test_an_acknowledgement_has_a_name_a_time_and_a_note(project: Project) -> None:
    (incident,) = alerts.acknowledge(project, ["aaaa0001"], "at it")
    assert (incident.acknowledged_by, incident.acknowledged_at, incident.acknowledged_note) == (ME, NOW, "at it")
    assert alerts.details(project, "aaaa0001").known.incident == incident
    (back,) = alerts.acknowledge(project, ["aaaa0001"], "", undo=True)
    assert back.acknowledged_by == ""


def test_the_same_id_twice_is_one_and_an_unclear_one_is_refused(project: Project) -> None:
    assert len(alerts.acknowledge(project, ["aaaa0001", "aaaa0001"], "")) == 1
    with pytest.raises(UsageError, match="several"):
        alerts.acknowledge(project, ["aaaa"], "")


def test_a_silence_covers_what_fits_and_ends(project: Project) -> None:
    made, covered = alerts.silence(project, check="fs", subject="/h*", until=NOW + 60, why="maintenance")
    assert [incident.episode for incident in covered] == ["aaaa0002"]
    assert (made.by, made.since, made.why) == (ME, NOW, "maintenance")
    silenced = [k.incident.episode for k in alerts.listing(project).known if k.silence is not None]
    assert silenced == ["aaaa0002"]
    clock = project.world.clock
    assert isinstance(clock, FakeClock)
    clock.time += 61
    assert [k for k in alerts.listing(project).known if k.silence is not None] == []


def test_one_incident_is_silenced_by_the_beginning_of_its_id(project: Project) -> None:
    made, covered = alerts.silence(project, episode="aaaa0001", until=NOW + 60, why="")
    assert made.episode == "aaaa0001" and len(covered) == 1
    assert alerts.unsilence(project, [made.id[:4]])[0] == made
    with pytest.raises(UsageError, match="no silence"):
        alerts.unsilence(project, [made.id])


def test_a_silence_in_the_past_is_refused(project: Project) -> None:
    with pytest.raises(UsageError, match="in the past"):
        alerts.silence(project, check="fs", until=NOW, why="")
    assert alerts.silence_ids(project) == ()


def test_only_open_incidents_are_offered_for_completion(project: Project) -> None:
    assert set(alerts.episodes(project)) == {"aaaa0001", "aaaa0002"}
