"""From a fault to the message on somebody's phone: a tick each minute, real watchdogs, real servers on loopback."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measure import (
    BenchmarkError,
    Claim,
    Options,
    Program,
    Report,
    Row,
    Sample,
    Spread,
    interleave,
    interpreter_environment,
)
from benchmarks.start_up import installed_command
from resilience.demo.receivers import Inbox, receivers

TICK_S = 60.0
MOMENTS = 10_000
MOST_BEYOND_S = 5.0
MOST_WITH_NEWS, MOST_WITHOUT_NEWS = 4.0, 2.0
CRITICAL = 2
SETTINGS = """\
[run]
name = "gpt"
[alert]
channels = ["email", "slack"]
group_s = 0
[channel.email]
to = ["ada@example.org"]
host = "127.0.0.1"
port = {port}
[channel.slack]
webhook_variable = "BENCH_HOOK"
"""


@dataclass
class Stamps(list[str]):
    """Messages that a server took, and when."""

    times: list[float] = field(default_factory=list)

    def append(self, message: str) -> None:
        self.times.append(time.perf_counter())
        super().append(message)


def run(options: Options) -> Report:
    """Let faults happen, tick, and note when the messages arrive; then tick without news, with and without alerts."""
    with receivers() as inbox:
        directory = options.scratch
        (directory / "resil.toml").write_text(SETTINGS.format(port=inbox.smtp_port))
        (directory / "home").mkdir()
        env = interpreter_environment(
            HOME=str(directory / "home"), XDG_STATE_HOME=str(directory / "home"), BENCH_HOOK=inbox.slack_url
        )
        return _measure(options, directory, env, inbox)


def _measure(options: Options, directory: Path, env: dict[str, str], inbox: Inbox) -> Report:
    mails, posts = Stamps(), Stamps()
    inbox.subjects, inbox.texts = mails, posts
    names = (f"disk{number}" for number in itertools.count())
    mail_s: list[float] = []
    told = 0

    def news() -> float:
        nonlocal told
        began = _tick(directory / next(names), env)
        told += 1
        if len(mails) != told or len(posts) != told:
            raise BenchmarkError(f"{len(mails)} mails and {len(posts)} posts for {told} faults")
        mail_s.append(mails.times[-1] - began)
        return max(mails.times[-1], posts.times[-1]) - began

    news()
    lasting = [*installed_command(), "watch", "fs", str(directory / "disk0")]
    samples: dict[str, Sample] = {
        "news": news,
        "no news": _program(lasting, env),
        "looking": _program([*lasting, "--no-alert"], env),
    }
    spreads = interleave(samples, options.samples)
    if len(mails) != told:
        raise BenchmarkError("a fault that lasts was told again")
    delays = sorted(_delays(spreads["news"], random.Random(1)))
    looking = "resil watch fs --no-alert", spreads["looking"]
    return Report(
        "a fault until its mail and its Slack message have arrived, with a tick each minute",
        rows=(
            Row("from the tick's start to both messages", spreads["news"], *looking, MOST_WITH_NEWS),
            Row("a tick about a fault that was told", spreads["no news"], *looking, MOST_WITHOUT_NEWS),
        ),
        claims=(
            Claim("from the tick's start to the mail, median", Spread(tuple(mail_s)).median, float("nan"), "s"),
            Claim("fault to delivered alert, median", delays[len(delays) // 2], float("nan"), "s"),
            Claim("fault to delivered alert, p95", delays[len(delays) * 95 // 100], TICK_S, "s"),
            Claim("fault to delivered alert, at most", delays[-1], TICK_S + MOST_BEYOND_S, "s"),
        ),
        notes=(
            f"a fault comes at any moment of the minute before its tick: {MOMENTS} moments drawn, with the measured "
            "times from tick to arrival",
            "each tick is a process of its own, as cron starts it; the servers are real and on loopback",
        ),
    )


def _tick(path: Path, env: dict[str, str]) -> float:
    """A disk is gone, and the watchdog's tick finds it; return when the tick began."""
    began = time.perf_counter()
    _program([*installed_command(), "watch", "fs", str(path)], env)()
    return began


def _program(argv: list[str], env: dict[str, str]) -> Program:
    """A tick as cron starts it. `sh` makes an exit code of 2, which is what is to be found here, a success."""
    return Program(["/bin/sh", "-c", f'"$@"; test $? = {CRITICAL}', "tick", *argv], env)


def _delays(beyond: Spread, chance: random.Random) -> list[float]:
    """How long after a fault its message arrived, for faults at random moments between two ticks."""
    return [chance.uniform(0.0, TICK_S) + chance.choice(beyond.values) for _ in range(MOMENTS)]
