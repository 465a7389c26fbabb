"""A machine with the programs that drivers use, as stand-ins that behave as recorded, and can be told to fail.

Each stand-in runs `<directory>/<program>.fault` first, a piece of sh, when there is one.
"""

from __future__ import annotations

import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from resilience.cron.records import Installation
from resilience.cron.state_directory import CronDirectory
from resilience.runs.context import Context
from resilience.runs.project import Project
from resilience.submission import Submission, Submitted
from resilience.watch.watchdogs import context_of
from tests.cron.drivers.slurm_programs import DOWN as NO_ANSWER
from tests.cron.drivers.slurm_programs import Programs
from tests.lab.fakes import DOWN, ME, NOW, FakeScheduler, make_project

# As Debian's: a carriage return is listed as the two characters `\\r`, and only an editor sees the file as it is.
CRONTAB = """\
table="$SITE/crontab.table"
case "$1" in
  -l) [ -e "$table" ] || { echo "no crontab for $LOGNAME" >&2; exit 1; }; LC_ALL=C sed 's/\\r/\\\\r/g' "$table" ;;
  -e) new=$(mktemp "$SITE/tmp.XXXXXX"); cat "$table" >"$new"; sh -c "$VISUAL $new" || exit 1
    if cmp -s "$new" "$table"; then echo "No modification made" >&2; rm "$new"; else mv "$new" "$table"; fi ;;
  -r) [ -e "$table" ] || { echo "no crontab for $LOGNAME" >&2; exit 1; }; rm "$table" ;;
  -) new=$(mktemp "$SITE/tmp.XXXXXX"); cat >"$new"; mv "$new" "$table" ;;
  *) echo "crontab: usage error: $*" >&2; exit 1 ;;
esac
"""

SYSTEMCTL = """\
shift 2  # --user --no-pager
units="$XDG_CONFIG_HOME/systemd/user"
case "$1" in
  is-system-running) echo "$(cat "$SITE/manager" 2>/dev/null || echo offline)"; [ -e "$SITE/manager" ] ;;
  daemon-reload) [ -e "$SITE/manager" ] && touch "$SITE/reloaded" ;;
  enable) [ -e "$units/$3" ] || { echo "Failed to enable unit: Unit file $3 does not exist." >&2; exit 1; }
    touch "$SITE/active.$3" ;;
  disable) shift 2; for unit; do rm -f "$SITE/active.$unit"; done ;;
  show) [ -e "$SITE/manager" ] || { echo "Failed to connect to bus: No medium found" >&2; exit 1; }
    if [ -e "$units/$2" ]; then echo LoadState=loaded; else echo LoadState=not-found; fi
    if [ -e "$SITE/active.$2" ]; then echo ActiveState=active; else echo ActiveState=inactive; fi ;;
  *) echo "Unknown command verb $1." >&2; exit 1 ;;
esac
"""

PROGRAMS = {"crontab": CRONTAB, "systemctl": SYSTEMCTL, "loginctl": "exit 1\n"}
SCRONTAB = Path(__file__).with_name("scrontab_stand_in.py")


class Queue(FakeScheduler):
    """The scheduler of every project. Jobs are called as they ask to be, as SLURM does it."""

    def submit(self, submission: Submission) -> Submitted:
        """As FakeScheduler.submit."""
        submitted = super().submit(submission)
        name = submission.options.get("job-name") or submission.run
        self.records[-1] = replace(self.records[-1], name=name)
        return submitted


class Site:
    """The machine, and projects on it.

    Attributes:
        directory: where the stand-ins keep what they are told.
        queue: the scheduler of every project.
        slurm: the programs of the same queue, as the keeper of the chain calls them.
    """

    def __init__(self, directory: Path, host: str = "login1") -> None:
        self.directory, self.host = directory, host
        self.bin = directory / "bin"
        self.queue, self.slurm = Queue(), Programs(directory / "slurm")
        if not self.bin.exists():
            self.bin.mkdir()
            for name, text in PROGRAMS.items():
                self.write_program(name, text)
            self.write_program("scrontab", f'exec {sys.executable} -I -S {SCRONTAB} "$@"\n')
            (directory / "manager").write_text("running\n")
            (directory / "linger").mkdir()
            (directory / "linger" / ME).touch()

    def write_program(self, name: str, text: str) -> None:
        """Put a program of this name, a piece of sh, where it is found first."""
        path = self.bin / name
        path.write_text(f'#!/bin/sh\nif [ -e "$SITE/{name}.fault" ]; then . "$SITE/{name}.fault"; fi\n{text}')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def break_program(self, name: str, fault: str) -> None:
        """Have a program do that first: `exit 1`, `exec sleep 1000` ..."""
        (self.directory / f"{name}.fault").write_text(fault + "\n")

    def stop_controller(self) -> None:
        """No program of SLURM gets an answer."""
        self.queue.trouble = DOWN
        self.slurm.fault("squeue", NO_ANSWER)

    def mend(self, name: str) -> None:
        """It works again."""
        (self.directory / f"{name}.fault").unlink()

    def environ(self) -> dict[str, str]:
        """What a person's shell has."""
        return {
            "PATH": f"{self.bin}:{self.slurm.directory}:/usr/bin:/bin",
            "HOME": str(self.directory / "home"),
            "LOGNAME": ME,
            "SITE": str(self.directory),
            "XDG_CONFIG_HOME": str(self.directory / "config"),
        }

    def project(
        self, name: str = "one", settings: str = "", more: Mapping[str, str] | None = None, **ports: Any
    ) -> Project:
        """A project on this machine."""
        parent = self.directory / name
        parent.mkdir(exist_ok=True)
        text = f'[run]\nname = "gpt"\n{settings}'
        return make_project(parent, self.queue, text, {**self.environ(), **(more or {})}, host=self.host, **ports)

    def context(self, name: str = "one") -> Context:
        """What a driver sees of a project."""
        return context_of(self.project(name))

    def directory_of(self, name: str = "one") -> CronDirectory:
        """The state directory of a project's cron."""
        return CronDirectory(self.context(name).state_dir)

    def table(self, name: str = "crontab") -> bytes | None:
        """The bytes of a person's table."""
        path = self.directory / f"{name}.table"
        return path.read_bytes() if path.exists() else None

    def write_table(self, table: bytes, name: str = "crontab") -> None:
        """What a person's table had before."""
        (self.directory / f"{name}.table").write_bytes(table)

    def snapshot(self) -> dict[str, bytes]:
        """Every file outside the state directories: tables, units, the person's home."""
        return {
            str(path.relative_to(self.directory)): path.read_bytes()
            for path in sorted(self.directory.rglob("*"))
            if path.is_file() and not {".resil", "slurm"} & set(path.parts) and path.name not in ("calls", "reloaded")
        }


def an_installation(context: Context, driver: str, token: str = "0123456789abcdef", mode: str = "") -> Installation:
    """As `resil cron install` makes one."""
    host = context.system.host
    return Installation(
        driver=driver,
        token=token,
        time=NOW,
        by=host.user,
        host=host.name,
        project=str(context.project),
        python=sys.executable,
        mode=mode,
        facts={"$PATH": context.system.environ.get("PATH", "/usr/bin:/bin"), "$HOME": str(host.home)},
    )


@contextmanager
def a_python_that_says_what_it_was_told(directory: Path) -> Iterator[Path]:
    """A program that writes its words, its environment and its directory into told.json beside it."""
    directory.mkdir(parents=True)
    python = directory / "python"
    told = directory / "told.json"
    python.write_text(
        f"#!{sys.executable}\nimport json, os, sys\nprint('on standard output')\n"
        f"json.dump([sys.argv[1:], dict(os.environ), os.getcwd()], open({str(told)!r}, 'w'))\n"
    )
    python.chmod(0o755)
    yield python
