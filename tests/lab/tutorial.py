"""Types the tutorial as it stands: each command of its console blocks, in order, waiting where a person would."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.docs.markdown import page
from tests.lab.waiting import until

PATIENCE_S = 240.0
Typed = Callable[[list[str]], "subprocess.CompletedProcess[str]"]


def commands() -> Iterator[list[str]]:
    """What follows `$ ` in the tutorial's console blocks."""
    for block in page("docs/tutorial/first-night.md").blocks("console"):
        yield from (shlex.split(line[2:]) for line in block.splitlines() if line.startswith("$ "))


def training() -> str:
    """The tutorial's train.py."""
    [source] = page("docs/tutorial/first-night.md").blocks("python")
    return source


@dataclass
class Typist:
    """Somebody with the tutorial in front of them.

    Attributes:
        resil: runs a command line of resil in the project.
        write: writes a file of the project.
        project: the project directory.
    """

    resil: Typed
    write: Callable[[str, str], None]
    project: Path

    def type_all(self) -> list[str]:
        """Type everything; return the lines of the last `resil watch --all`. Assert what the tutorial claims."""
        self.write("train.py", training())
        typed = list(commands())
        submits, watched = 0, ""
        for number, words in enumerate(typed):
            if words[0] != "resil":
                continue  # cd, cat
            match words[1:]:
                case ["logs", "-f"]:
                    words = ["resil", "logs"]  # which would wait for ever
                case ["clear"]:
                    self.hasten()
                case ["status", "--all"]:
                    self.until(lambda: self.say("status").startswith("tiny  finished"), "the end of the training")
                case ["status", "--fresh", "--all"]:
                    self.until(lambda: "not queued" in self.say("status", "--fresh"), "the end of the killed jobs")
                case ["status"]:
                    self.until(lambda: re.search(r"saved: step \d", self.say("status")), "the first save")
                case ["logs", "--lines", _]:
                    self.until(lambda: "resuming at step" in self.say("logs"), "the log of the second job")
            done = self.resil(words[1:])
            is_refused = words[1:] == ["submit"] and typed[number - 1][1:] != ["clear"]
            if words[1:] == ["doctor"]:
                assert "CRITICAL" not in done.stdout, done
            elif is_refused:
                assert done.returncode != 0 and "already live" in done.stderr, done
            else:
                assert done.returncode == 0, done
            submits += words[1] == "submit" and not is_refused
            if words[1:] == ["watch", "--all"]:
                watched = done.stdout
                assert healthy(watched) == [], watched
        assert submits == 3, "the preview, the first submit and the one after `clear`"
        return watched.splitlines()

    def hasten(self) -> None:
        """End the training soon after it resumes: a person goes to bed meanwhile."""
        done = int((self.project / "checkpoint.json").read_text().partition(":")[2].strip(" }"))
        self.write("train.py", training().replace("= 3000, 0.1", f"= {done + 100}, 0.1"))

    def say(self, *words: str) -> str:
        return self.resil(list(words)).stdout

    def until(self, is_so: Callable[[], object], what: str) -> None:
        until(is_so, what, PATIENCE_S, every_s=0.3)


def healthy(watched: str) -> list[str]:
    """The watchdogs that are not OK. A disk of this machine that is full by itself is no fault of the tutorial."""
    rows = [line for line in watched.splitlines()[1:] if not re.match(r"[A-Z]+ OK - ", line)]
    is_full = any(shutil.disk_usage(path).used > 0.8 * shutil.disk_usage(path).total for path in ("/", "/tmp"))
    return [row for row in rows if not (is_full and row.startswith(("FS ", "INODES ")))]
