"""`resil top` beside a real run of the embedded scheduler, in a real terminal emulator: tmux."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Shell
from tests.end_to_end.test_a_guarded_run import SETTINGS, TRAINING, begin

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux, for a terminal to look at")


class Tmux:
    """One window of tmux, with a server of its own."""

    def __init__(self, shell: Shell, socket: Path) -> None:
        self._base = ["tmux", "-S", str(socket), "-f", "/dev/null"]
        self._environment = shell.environment | {"TERM": "screen", "LC_ALL": "C.UTF-8"}
        self._shell = shell

    def __call__(self, *words: str) -> str:
        done = subprocess.run([*self._base, *words], env=self._environment, cwd=self._shell.directory,
                              capture_output=True, text=True, timeout=60)  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def begin(self, command: str, columns: int, rows: int) -> None:
        self("new-session", "-d", "-x", str(columns), "-y", str(rows), "sh")
        self("send-keys", "-l", command)
        self("send-keys", "Enter")

    def shown(self) -> list[str]:
        return self("capture-pane", "-p").rstrip("\n").split("\n")

    def until(self, pattern: str) -> list[str]:
        self._shell.until(lambda: re.search(pattern, "\n".join(self.shown())) is not None)
        return self.shown()


@pytest.fixture
def tmux(shell: Shell, tmp_path: Path) -> Iterator[Tmux]:
    made = Tmux(shell, tmp_path / "tmux")
    yield made
    made("kill-server")


def test_a_real_run_is_seen_saved_and_stopped_by_keys_and_the_terminal_is_as_before(shell: Shell, tmux: Tmux) -> None:
    shell.settings(SETTINGS.replace('beat_s = "200ms"', 'beat_s = "200ms"\nevery = "30m"'))
    (shell.directory / "train.py").write_text(TRAINING)
    (shell.directory / "steps").write_text("100000")
    begin(shell)
    shell.until(lambda: (shell.directory / "log").exists())
    top = shlex.join([sys.executable, "-m", "resilience", "top"])
    tmux.begin(f"stty -g > before; {top}; echo code=$?; stty -g > after", 80, 24)

    lines = tmux.until(r"gpt +running +[\d,]+ +[\d.]+ steps/s")
    assert lines[0].startswith("resil top  1 run") and max(map(len, lines)) <= 80 and len(lines) == 24
    assert " ".join(lines[-1].split()) == "s save k kill a ack l logs ? help q quit"
    tmux.until(r"RANKS  1 rank on 1 host\n +0 ·")
    tmux.until(r"[▁-█]{3,} +")
    tmux("resize-window", "-x", "60", "-y", "10")
    shell.until(lambda: len(tmux.shown()) == 10 and tmux.shown()[-1].startswith(" s save"))
    tmux("resize-window", "-x", "80", "-y", "24")

    tmux("send-keys", "s")
    tmux.until("save switch set")
    shell.until((shell.directory / "checkpoint.json").exists)
    tmux.until(r"saved: step \d+")
    tmux("send-keys", "k")
    tmux.until(r"stop gpt after a save\? y: yes")
    tmux("send-keys", "y")
    tmux.until("kill switch set")
    tmux.until(r"gpt +not queued|gpt +finished")

    tmux("send-keys", "q")
    tmux.until("code=0")
    assert not any("resil top  1 run" in line for line in tmux.shown()), "what was on the terminal comes back"
    shell.until((shell.directory / "after").exists)
    before, after = ((shell.directory / name).read_text() for name in ("before", "after"))
    assert before == after
    assert (shell.state_dir / "gpt" / "switches" / "kill").exists()
