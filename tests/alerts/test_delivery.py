"""Delivery: at least once, in order, rate-limited; no channel affects another channel or the caller."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from resilience.alerts import sending
from resilience.alerts.alert import Reason
from resilience.alerts.channel_health import GIVE_UP_S, GIVE_UP_TRIES
from resilience.alerts.claims import EXPIRES_S, claim
from resilience.alerts.delivery import Flushed, flush
from resilience.alerts.digest import DIGEST_OVER
from resilience.alerts.outbox import Outbox
from resilience.alerts.sending import DeliveryRequest, compose_in_child
from resilience.errors import UsageError
from resilience.finding import Verdict
from resilience.system.ports import System
from tests.alerts.stand_in import SECRET, Receiver, SocketChannel, StandIn, an_alert, an_outbox, receiver
from tests.lab.disks import fill, small_disk
from tests.lab.fakes import NOW, FakeClock, make_system
from tests.system.writer import OF_THE_INTERPRETER, writer

HOUR, DAY = 3600.0, 86400.0


class Desk:
    """An outbox, a clock set by hand, and two channels."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = FakeClock()
        self.email, self.slack = StandIn(directory, "email"), StandIn(directory, "slack")
        self.box = an_outbox(directory)
        self.routes = {"email": self.email.route, "slack": self.slack.route}

    def system(self, host: str = "login1") -> System:
        return make_system(self.directory, clock=self.clock, host=host)

    def put(self, id: str = "a1", *channels: str, **fields: object) -> None:
        given = {"time": self.clock.now(), **fields}
        for channel in channels or ("email",):
            assert self.box.put(an_alert(id, **given), channel, self.clock.now())  # type: ignore[arg-type]

    def flush(self, host: str = "login1", *, after_s: float = 0.0, **options: object) -> Flushed:
        self.clock.time += after_s
        return flush(self.box, self.routes, system=self.system(host), **options)  # type: ignore[arg-type]

    def flushes(self, times: int, every_s: float) -> None:
        for _ in range(times):
            self.flush()
            self.clock.time += every_s


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def quick_desk() -> Iterator[Desk]:
    """On a disk of memory: twenty thousand files that are synced take minutes elsewhere."""
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="resil-test-", dir=shared) as directory:
        yield Desk(Path(directory))


# ---- what goes well


def test_queued_messages_are_delivered_and_answers_are_kept(desk: Desk) -> None:
    desk.put()
    done = desk.flush()
    assert [delivery.outcome.answer for delivery in done.sent] == ["taken"]
    assert (done.waiting, desk.email.ids, desk.box.sent()[0].answer) == (0, ["a1"], "taken")
    assert desk.flush() == Flushed(), "and only once"
    assert desk.email.ids == ["a1"]


def test_an_empty_outbox_costs_one_probe(desk: Desk) -> None:
    assert desk.flush() == Flushed()
    assert not (desk.directory / "alerts").exists(), "nothing was even created"


def test_a_thread_is_sent_in_order_with_the_memory_of_its_channel(desk: Desk) -> None:
    desk.put("2", thread="t", reason=Reason.RESOLVED, time=NOW + 60)
    desk.put("1", thread="t", verdict=Verdict.CRITICAL)
    desk.flush()
    assert desk.email.ids == ["1", "2"]
    assert [message["thread"] for message in desk.email.taken] == [{}, {"ts": "ts-1"}]


def test_messages_of_one_channel_are_a_second_apart(desk: Desk) -> None:
    slept: list[float] = []
    desk.clock.at_sleep = slept.append
    for number in range(4):
        desk.put(f"a{number}")
    desk.flush(deadline_s=100.0)
    assert len(desk.email.ids) == 4 and slept == [1.0, 1.0, 1.0]
    desk.put("a5")
    desk.flush()
    assert slept == [1.0] * 4, "also from one flush to the next"


def test_output_of_a_channel_does_not_reach_the_callers_output(desk: Desk, capfd: pytest.CaptureFixture[str]) -> None:
    desk.email.order("print")
    desk.put()
    print("the verdict, not flushed yet", end="")
    desk.flush()
    print()
    captured = capfd.readouterr()
    assert captured.out == "the verdict, not flushed yet\n"
    assert captured.err == "a channel that prints\n", "console writes there"


# ---- what goes wrong


FAULTS = {
    "down": "the server does not answer",
    "raise": "the channel's own code failed: RuntimeError",
    "abort": "the channel crashed while sending",
    "exit": "the channel's own code failed: SystemExit",
    "hang": "no answer within 2 s",
    "settings": "the secret file may be read by others",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failing_channel_keeps_its_message_and_affects_no_other(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr("resilience.alerts.delivery.MIN_SEND_S", 0.1)
    if fault == "hang":
        monkeypatch.setattr("resilience.alerts.delivery.SEND_S", 2.0)
    desk.email.order(fault)
    desk.put("a1", "email", "slack")
    done = desk.flush()
    assert "a1" in desk.slack.ids and desk.email.ids == []
    assert [FAULTS[fault] in delivery.outcome.error for delivery in done.failed] == [True]
    assert SECRET not in str(done)
    desk.email.order()
    desk.flush(after_s=HOUR)
    assert desk.email.ids == ["a1"], "and when the channel is well, it goes out"


def test_a_route_that_cannot_be_loaded_is_a_fault_of_that_channel_alone(desk: Desk) -> None:
    def load() -> object:
        raise UsageError("the channels plugin 'email' cannot be loaded", hint="it must export CHANNEL")

    desk.routes["email"] = load  # type: ignore[assignment]
    desk.put("a1", "email", "slack")
    done = desk.flush()
    assert "a1" in desk.slack.ids and done.waiting >= 1
    assert "cannot be loaded" in done.failed[0].outcome.error


def test_a_plugin_that_aborts_on_import_affects_no_other_channel(desk: Desk) -> None:
    desk.routes["email"] = lambda: os.abort()
    desk.put("a1", "email", "slack")
    desk.flush()
    assert "a1" in desk.slack.ids and [entry.name for entry in desk.box.pending("email")] == ["a1.email"]


def test_a_permanently_rejected_message_is_a_dead_letter_with_the_reason(desk: Desk) -> None:
    desk.email.order("refuse")
    desk.put()
    done = desk.flush()
    assert [delivery.outcome.error for delivery in done.dead] == ["there is no such recipient"]
    assert desk.box.names() == () and desk.box.dead()[0].hint == "write another"


def test_a_message_for_a_removed_channel_is_a_dead_letter_with_a_hint(desk: Desk) -> None:
    desk.put("a1", "pager")
    done = desk.flush(project="/project")
    assert "no channel 'pager' any more" in done.dead[0].outcome.error
    assert "[channel.pager]" in desk.box.dead()[0].hint


def test_another_projects_channel_is_left_to_that_project(desk: Desk) -> None:
    desk.put("a1", "pager", project="/another")
    assert desk.flush(project="/project").paused == {"pager": "channel of /another"}
    assert desk.box.names() == ("a1.pager",)
    assert len(desk.flush(project="/project", after_s=8 * DAY).dead) == 1, "but not for ever"


def test_the_memory_of_a_failed_delivery_is_kept_for_the_retry(desk: Desk) -> None:
    desk.put()
    desk.email.order("partly")
    assert desk.flush().waiting == 1
    desk.email.order()
    assert desk.flush(patient=False).waiting == 0
    assert desk.email.taken[0]["thread"] == {"served": "ada"}


def test_a_failed_channel_backs_off_unless_a_user_flushes(desk: Desk) -> None:
    desk.email.order("down")
    desk.put()
    assert len(desk.flush().failed) == 1
    desk.email.order()
    done = desk.flush()
    assert done.failed == done.sent == () and "next try in" in (done.paused or {})["email"]
    assert len(desk.flush(patient=False).sent) == 1


def test_a_new_critical_overrides_the_back_off_and_an_old_one_does_not(desk: Desk) -> None:
    desk.email.order("down")
    desk.put("a1")
    desk.flush()
    desk.clock.time += 0.1
    desk.put("a2", verdict=Verdict.WARNING)
    assert desk.flush().failed == ()
    desk.put("a3", verdict=Verdict.CRITICAL)
    assert len(desk.flush().failed) == 1
    assert desk.flush(after_s=0.1).failed == (), "it was tried, and waits as the others do"
    desk.put("a4", verdict=Verdict.CRITICAL)
    desk.email.order()
    sent = desk.flush(after_s=0.1, deadline_s=60.0).sent
    assert {delivery.entry.alert.id for delivery in sent} == {"a1", "a2", "a3", "a4"}


def test_failures_of_one_node_do_not_pause_another(desk: Desk) -> None:
    desk.email.order("down")
    desk.put()
    desk.flush(host="compute7")
    desk.email.order()
    assert len(desk.flush(host="login1").sent) == 1


def test_retry_after_is_respected_by_every_node_and_user(desk: Desk) -> None:
    desk.email.order("busy 120")
    desk.put("a1")
    desk.put("a2")
    desk.flush()
    desk.email.order()
    for seconds, sent in ((60, 0), (59, 0), (2, 2)):
        assert len(desk.flush(host="login2", patient=False, after_s=seconds).sent) == sent
    assert desk.email.ids == ["a1", "a2"]


def test_a_message_that_alone_keeps_failing_blocks_no_other_and_is_given_up(desk: Desk) -> None:
    desk.email.order("bad a1")
    desk.put("a1", verdict=Verdict.CRITICAL)
    flushes = 0
    while "other" not in desk.email.ids:
        if flushes == 1:
            desk.put("other")
        desk.flush(after_s=900)
        flushes += 1
        assert flushes < 10
    assert [entry.alert.id for entry in desk.box.pending("email")] == ["a1"]
    number = 0
    while not desk.box.dead():
        desk.put(f"later{number}")
        desk.flush(after_s=2 * HOUR, deadline_s=100.0)
        number += 1
        assert number < GIVE_UP_TRIES + GIVE_UP_S / HOUR
    assert "while other messages were delivered" in desk.box.dead()[0].error


def test_a_read_only_disk_does_not_stop_delivery(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        channel = StandIn(tmp_path, "email")
        box = an_outbox(disk, tmp_path / "fallback")
        box.put(an_alert(), "email", NOW)
        fill(disk)
        done = flush(box, {"email": channel.route}, system=make_system(tmp_path))
        assert len(done.sent) == 1 and channel.ids == ["a1"]
        again = flush(an_outbox(disk, tmp_path / "fallback"), {"email": channel.route}, system=make_system(tmp_path))
        assert again.sent == () and channel.ids == ["a1"]


def test_a_damaged_queued_message_is_replaced_by_an_alert_about_the_damage(desk: Desk) -> None:
    desk.put("a1")
    desk.put("a2", "slack")
    (desk.directory / "alerts" / "outbox" / "a1.email").write_bytes(b"")  # a power cut, as some file servers take it
    done = desk.flush()
    assert desk.slack.ids == ["a2"] and len(desk.email.ids) == 1
    (notice,) = next(delivery.entry.alert.notices for delivery in done.sent if delivery.channel == "email")
    assert "1 queued message damaged on disk" in notice.summary and notice.subject == "channel email"
    assert "moved to" in done.error and done.waiting == 0
    assert desk.flush().sent == (), "and once"


def test_with_little_time_left_no_send_is_started(desk: Desk) -> None:
    desk.put()
    assert desk.flush(deadline_s=1.0).sent == () and desk.box.names() == ("a1.email",)


# ---- the others are notified of a broken channel


def test_other_channels_are_notified_immediately_and_once_of_bad_settings(desk: Desk) -> None:
    desk.email.order("settings")
    desk.put()
    desk.flushes(5, every_s=1000)
    (sent,) = desk.slack.taken
    assert sent["verdict"] == "WARNING" and "channel email" in sent["said"][0]
    assert "the secret file may be read by others" in sent["said"][0]
    desk.email.order()
    desk.flush()
    assert desk.email.ids == ["a1"]
    assert [message["reason"] for message in desk.slack.taken] == ["FIRST", "RESOLVED"]
    desk.clock.time += 2 * DAY
    desk.put("a2")
    desk.flush()
    assert len(desk.slack.taken) == 2 and desk.email.ids == ["a1", "a2"]


def test_other_channels_are_notified_once_of_a_server_that_stays_down(desk: Desk) -> None:
    desk.email.order("down")
    desk.put()
    desk.flush()
    assert desk.slack.taken == [], "not at once"
    desk.flushes(60, every_s=1800)
    (sent,) = desk.slack.taken
    assert "delivery has failed for" in sent["said"][0]


def test_a_node_without_network_access_does_not_report_a_broken_channel(desk: Desk) -> None:
    for number in range(8):
        desk.put(f"a{number}")
        desk.email.order("down")
        desk.flush(host="compute7")
        desk.email.order()
        desk.flush(host="login1", patient=False)
        desk.clock.time += 900
    assert desk.slack.taken == [] and len(desk.email.ids) == 8


def test_two_broken_channels_do_not_notify_of_each_other(desk: Desk) -> None:
    desk.email.order("settings")
    desk.slack.order("settings")
    desk.put("a1", "email", "slack")
    desk.flushes(10, every_s=1000)
    assert sorted(desk.box.names()) == ["a1.email", "a1.slack"]
    desk.slack.order()
    desk.flushes(2, every_s=0)
    said = [message["said"][0].partition(":")[0] for message in desk.slack.taken]
    assert said == ["FIRST /scratch", "FIRST channel email"]


def test_no_message_about_a_channel_makes_another_message_when_it_fails(desk: Desk) -> None:
    """Slack refuses what is sent about the mail: that is a dead letter, and no new message for anybody."""
    desk.put()
    desk.email.order("settings")
    desk.slack.order("refuse")
    desk.flushes(20, every_s=1000)
    assert desk.box.names() == ("a1.email",) and len(desk.box.dead()) == 1


# ---- several at once


def test_a_channel_claimed_by_another_node_is_skipped(desk: Desk) -> None:
    desk.put()
    with claim(desk.box.claims, "email", "login9 1 x") as held:
        assert held is not None
        assert "another process" in (desk.flush().paused or {})["email"]
    assert len(desk.flush().sent) == 1


def expire(path: Path) -> None:
    past = time.time() - EXPIRES_S - 5
    os.utime(path, (past, past))


def test_a_claim_of_a_node_that_died_expires(desk: Desk) -> None:
    desk.put()
    with claim(desk.box.claims, "email", "login9 1 x"):
        expire(desk.box.claims / "email")
        assert len(desk.flush().sent) == 1


def test_a_claim_of_an_exited_process_of_this_node_is_taken_over(desk: Desk) -> None:
    desk.put()
    child = multiprocessing.get_context("fork").Process(target=int)
    child.start()
    child.join()
    with claim(desk.box.claims, "email", f"login1 {child.pid} x"):
        assert len(desk.flush().sent) == 1


@pytest.mark.parametrize("damage", ["file", "directory"])
def test_without_a_claim_messages_are_still_delivered(desk: Desk, damage: str) -> None:
    desk.put()
    if damage == "file":
        desk.box.claims.write_text("in the way")
    else:
        (desk.box.claims / "email").mkdir(parents=True)
        expire(desk.box.claims / "email")
    assert len(desk.flush().sent) == 1


def _flush_in_a_process(directory: Path, port: int, host: str, barrier: object) -> None:
    barrier.wait(30)  # type: ignore[attr-defined]
    box = an_outbox(directory)
    deadline = time.monotonic() + 60
    while box.names() and time.monotonic() < deadline:
        flush(box, {"tcp": lambda: (SocketChannel(port), None)}, system=make_system(directory, host=host))
        time.sleep(0.02)


def test_four_nodes_that_deliver_at_once_lose_nothing_and_hardly_repeat(tmp_path: Path) -> None:
    box = an_outbox(tmp_path)
    make_system(tmp_path)
    ids = [f"a{number}" for number in range(12)]
    with receiver() as received:
        for number, id in enumerate(ids):
            box.put(an_alert(id, time=NOW + number), "tcp", NOW)
        context = multiprocessing.get_context("fork")
        barrier = context.Barrier(4)
        nodes = [
            context.Process(target=_flush_in_a_process, args=(tmp_path, received.port, f"login{n}", barrier))
            for n in range(4)
        ]
        for node in nodes:
            node.start()
        for node in nodes:
            node.join(60)
        assert [node.exitcode for node in nodes] == [0] * 4
        assert sorted(set(received.lines)) == sorted(ids)
        assert len(received.lines) <= len(ids) + 1


# ---- killed at any moment


def _work(directory: Path, port: int) -> None:
    """One tick: an alert is queued and delivered. `sched_yield` marks the start of the work."""
    os.sched_yield()
    box = an_outbox(directory)
    box.put(an_alert(), "tcp", NOW)
    flush(box, {"tcp": lambda: (SocketChannel(port), None)}, system=make_system(directory))


def _campaign(tmp_path: Path, step: int) -> tuple[int, int]:
    """Kill a tick at every `step`th system call; return how many kills there were, and how many duplicates."""
    killed = repeated = 0
    preload = "from tests.alerts.test_delivery import _work"
    with receiver() as received, writer(tmp_path / "strace", preload) as process:
        (tmp_path / "probe").mkdir()
        probe = process.run(f"_work(Path({str(tmp_path / 'probe')!r}), {received.port})")
        points = list(_points(probe.calls))
        assert {"fsync", "rename", "link", "unlink"} <= {name for name, _ in points}
        for number, (name, count) in enumerate(points):
            if number % step or name in OF_THE_INTERPRETER:
                continue
            directory = tmp_path / f"{number}"
            directory.mkdir()
            received.lines.clear()
            request = f"_work(Path({str(directory)!r}), {received.port})"
            code = process.run(request, f"{name}:signal=SIGKILL:when={count}").code
            killed += code == -signal.SIGKILL
            _quiet(received)
            _work(directory, received.port)  # the next tick finds the same fault
            assert set(received.lines) == {"a1"}, f"lost by SIGKILL at {name} {count}"
            assert len(received.lines) <= 2, f"{len(received.lines)} times by SIGKILL at {name} {count}"
            repeated += len(received.lines) - 1
            assert an_outbox(directory).names() == ()
    return killed, repeated


def _points(calls: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """The calls of the work itself, as (name, its count among calls of that name)."""
    seen: dict[str, int] = {}
    begun = False
    for name in calls:
        seen[name] = seen.get(name, 0) + 1
        begun = begun or name == "sched_yield"
        if begun:
            yield name, seen[name]


def _quiet(received: Receiver) -> None:
    """A killed parent's child may still be sending."""
    before = -1
    while len(received.lines) != before:
        before = len(received.lines)
        time.sleep(0.03)


def test_sigkill_anywhere_in_a_tick_loses_nothing_and_repeats_at_most_once(tmp_path: Path) -> None:
    killed, repeated = _campaign(tmp_path, step=9)
    assert killed >= 10
    assert repeated <= killed / 2


@pytest.mark.soak
@pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="a long campaign (RESIL_SOAK=1, make soak)")
def test_sigkill_at_every_system_call_of_a_tick(tmp_path: Path) -> None:
    killed, repeated = _campaign(tmp_path, step=1)
    print(f"\nkilled {killed} times: 0 lost, {repeated} repeated once")
    assert killed >= 100


# ---- a long outage


def test_after_an_outage_of_three_days_each_channel_gets_one_digest(quick_desk: Desk) -> None:
    desk, routes = quick_desk, quick_desk.routes
    desk.email.order("down")
    desk.slack.order("down")
    largest = 0
    for number in range(4_000):
        came = number % 2 == 0
        incident = number // 2
        verdict = Verdict.CRITICAL if incident % 50 == 7 else Verdict.WARNING
        for channel in list(routes)[: 2 if number < 2 or number >= 3800 else 1]:
            desk.put(
                f"a{number}", channel, thread=f"e{incident % 400}", subject=f"/disk{incident % 400}",
                reason=Reason.FIRST if came or incident % 400 < 10 else Reason.RESOLVED, verdict=verdict,
                since=desk.clock.now(), evidence=("a line of a log " * 20,) * 5,
            )  # fmt: skip
        if number % 400 == 0:
            desk.flush()
            largest = max(largest, _size(desk.box))
        desk.clock.time += 72 * HOUR / 4_000
    assert max(largest, _size(desk.box)) < 10e6
    assert desk.email.taken == desk.slack.taken == []

    desk.email.order()
    desk.slack.order()
    done = desk.flush(after_s=HOUR)
    assert len(done.sent) == 2 and done.waiting == 0
    for stand_in, incidents in ((desk.email, 400), (desk.slack, 101)):
        (digest,) = stand_in.taken
        assert digest["total"] == incidents
        lasting = [said for said in digest["said"] if said.startswith("FIRST")]
        over = [said for said in digest["said"] if said.startswith("RESOLVED")]
        assert over and all("resolved after" in said for said in over)
        if stand_in is desk.email:
            assert "/disk7:" in lasting[0], "the oldest CRITICAL"
            assert len(lasting) == 10
    desk.put("after")
    desk.flush()
    assert desk.email.ids[-1] == "after", "and then as always"


def _size(box: Outbox) -> int:
    """Bytes in all its directories."""
    return sum(path.stat().st_size for path in box.claims.parent.rglob("*") if path.is_file())


def test_a_short_outage_ends_with_the_messages_themselves(desk: Desk) -> None:
    desk.email.order("down")
    for number in range(DIGEST_OVER):
        desk.put(f"a{number}")
    desk.flush()
    desk.email.order()
    desk.flush(after_s=2 * HOUR, deadline_s=60.0)
    assert desk.email.ids == [f"a{number}" for number in range(DIGEST_OVER)]


# ---- a dry run


def test_messages_can_be_previewed_without_sending(desk: Desk) -> None:
    desk.email.order("down")
    ((_, shown),) = compose_in_child({"email": DeliveryRequest(an_alert(), desk.email.route)})
    assert '"id": "a1"' in shown and desk.email.taken == []
    desk.email.order("settings")
    ((_, shown),) = compose_in_child({"email": DeliveryRequest(an_alert(), desk.email.route)})
    assert shown == "cannot be composed: the secret file may be read by others (try: chmod 600 it)"


def test_a_mail_is_shown_as_it_goes_out() -> None:
    from email.message import EmailMessage

    mail = EmailMessage()
    mail["Subject"] = "91% used"
    mail.set_content("words\n")
    assert "Subject: 91% used" in sending.readable(mail)
    assert sending.readable("as it is") == "as it is"
