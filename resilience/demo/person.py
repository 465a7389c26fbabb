"""Who acts in `resil demo`: types commands as a person would, in a project of the demo, and says what they print."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilience.demo.receivers import Inbox
from resilience.errors import ResilError
from resilience.system.process import Completed
from resilience.system.world import Runner, World

COMMAND_S = 30.0
LINE = 110


class DemoFailed(ResilError):
    """The demo did not end as it must."""


def shorten(text: str) -> str:
    """What fits on a line, with the end of it, where the incident's id stands. Pure."""
    line = " ".join(text.split())
    return line if len(line) <= LINE else f"{line[: LINE - 15]} ... {line[-10:]}"


@dataclass(slots=True)
class Person:
    """One who acts, and what they were sent.

    Attributes:
        world: this machine, with the environment of the commands.
        folder: the project folder.
        inbox: where mail and Slack arrive.
        say: told each event, as a sentence.
    """

    world: World
    folder: Path
    inbox: Inbox
    say: Callable[[str], None]

    def resil(self, *words: str, quietly: bool = False) -> Completed:
        """Run a command line as a person would."""
        argv = [sys.executable, "-m", "resilience", *words]
        runner: Runner = self.world.runner
        done = runner.run(argv, timeout_s=COMMAND_S, env=self.world.environ, cwd=str(self.folder))
        if not quietly:
            self.show(words, done.stdout or done.stderr)
        return done

    def must(self, *words: str, quietly: bool = False) -> Completed:
        """Run one that has to go well. Raise DemoFailed with what it said if it does not."""
        done = self.resil(*words, quietly=quietly)
        if done.returncode != 0:
            raise DemoFailed(f"resil {shlex.join(words)} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        return done

    def show(self, words: Sequence[str], output: str) -> None:
        """The command line and the first line that it printed."""
        self.say(f"$ resil {shlex.join(words)}")
        if output:
            self.say(f"  {shorten(output.splitlines()[0].partition(' | ')[0])}")

    def incidents(self) -> list[dict[str, Any]]:
        """Every incident of the night, as `resil alert list --json` has them."""
        done = self.resil("alert", "list", "--all", "--json", quietly=True)
        try:
            return list(json.loads(done.stdout)["incidents"])
        except (ValueError, LookupError):
            raise DemoFailed(f"resil alert list says: {done.stdout[:200]} {done.stderr.strip()[:200]}") from None

    def looks(self, patience_s: float, pause_s: float) -> Iterator[None]:
        """As many looks as patience allows."""
        clock = self.world.clock
        deadline = clock.monotonic() + patience_s
        while clock.monotonic() < deadline:
            yield
            clock.sleep(pause_s)

    def tell_news(self, before: int) -> None:
        """What has arrived since there were `before` mails."""
        for subject in self.inbox.subjects[before:]:
            self.say(f"  mail: {shorten(subject)}")
        for text in self.inbox.texts[before : len(self.inbox.subjects)]:
            self.say(f"  Slack: {shorten(text)}")
