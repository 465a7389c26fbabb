"""Our lines come and go, every other byte stays, and one process at a time edits a table."""

from __future__ import annotations

import fcntl
import os
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from resilience.cron.drivers import ProgramFailed, ProgramUnavailable, _tables
from resilience.cron.drivers._tables import (
    LOCK_S,
    Lines,
    TableDriver,
    change,
    disabled,
    error_of,
    headline,
    mark,
    ours,
    project_name,
    run_program,
    tokens_of,
    with_ours,
    without_ours,
)
from resilience.cron.drivers.crontab import without_header
from resilience.cron.records import Installation
from resilience.errors import ResilError
from resilience.runs.context import Context
from resilience.settings.cron_settings import CronSettings
from resilience.system.process import Completed
from tests.cron.drivers.site import Site, an_installation
from tests.lab.descriptors import count_descriptors

TOKEN, OTHER = "0123456789abcdef", "fedcba9876543210"
STATE = Path("/p/one/.resil")
HEAD = f"# {mark(TOKEN)} {project_name(STATE)}: the ticks of /p/one; `resil cron install` wrote these lines"
LINE = f"* * * * * /bin/sh -c ': {mark(TOKEN)}; exec true'"
SCRON = f"#SCRON --job-name={project_name(STATE)} --comment={mark(TOKEN)} --time=5"
LINES = (HEAD, LINE)

TABLES = {
    "nothing": b"",
    "an empty line": b"\n",
    "one entry": b"0 3 * * * /bin/true\n",
    "no newline at the end": b"0 3 * * * /bin/true",
    "carriage returns": b"# a\r\n0 3 * * * /bin/true\r\n\r\n",
    "bytes that are no text": b"# \xff\xfe\x80\n0 3 * * * /bin/true # \xe9\n",
    "line ends of other worlds": b"# a\x0b\x0c\x1c\x1d\x1e\x85\xc2\x85\xe2\x80\xa8b\n* * * * * true\n",
    "settings": b"MAILTO=a@b\nSHELL=/bin/csh\nPATH=/x\n\n@hourly x\n",
    "blanks at the ends": b"  * * * * * true  \n\t\n   ",
    "a mark of somebody's own": f"# see {mark(TOKEN)} below\n* * * * * echo {mark(TOKEN)}\n".encode(),
    "another project": f"# {mark(OTHER)} resil-cron-00000000: the ticks of /p\n* * * * * : {mark(OTHER)}; x\n".encode(),
    "ten thousand lines": b"".join(b"%d 3 * * * /bin/true %d\n" % (i % 60, i) for i in range(10_000)),
}


@pytest.mark.parametrize("name", TABLES)
def test_editing_and_removing_restores_every_byte(name: str) -> None:
    before = TABLES[name].decode("utf-8", "surrogateescape")
    table = with_ours(before, LINES, {TOKEN})
    assert table.endswith(before) and table != before
    assert with_ours(table, LINES, {TOKEN}) == table, "twice is once"
    assert without_ours(table, {TOKEN}).encode("utf-8", "surrogateescape") == TABLES[name]
    assert without_ours(before, {TOKEN}) == before, "nothing of ours, nothing to take out"


def test_any_bytes_survive() -> None:
    rng = random.Random(5)
    for _ in range(300):
        raw = bytes(rng.choice(b"\n\n\r# *\x00\xff%\\'aSCRON") for _ in range(rng.randrange(60)))
        before = raw.decode("utf-8", "surrogateescape")
        table = with_ours(before, (HEAD, SCRON, LINE), {TOKEN})
        assert without_ours(table, {TOKEN}).encode("utf-8", "surrogateescape") == raw


def test_our_lines_stand_first_so_that_no_setting_and_no_dangling_option_reaches_them() -> None:
    assert with_ours("MAILTO=a\n#SCRON --mem=1T\n", LINES, {TOKEN}).startswith(f"{HEAD}\n{LINE}\nMAILTO")


def test_lines_that_moved_are_left_where_they_are() -> None:
    table = f"MAILTO=a\n{HEAD}\n{LINE}\nrest\n"
    assert with_ours(table, LINES, {TOKEN}) == table


def test_an_older_line_of_ours_is_replaced() -> None:
    old = f"a\n{HEAD}\n{LINE.replace('true', 'false')}\nb\n"
    assert with_ours(old, LINES, {TOKEN}) == f"{HEAD}\n{LINE}\na\nb\n"


def test_an_unrecorded_installation_is_found_by_its_project() -> None:
    table = f"a\n{HEAD}\n{LINE}\nb\n"
    assert tokens_of(table, STATE) == {TOKEN}
    assert tokens_of(f"#DISABLED: {table[2:]}", STATE) == {TOKEN}
    assert tokens_of(table, Path("/p/two/.resil")) == frozenset()


@pytest.mark.parametrize(
    "line",
    [
        HEAD,
        LINE,
        SCRON,
        f"#{LINE}",
        f"# {LINE}",
        f"#DISABLED: {LINE}",
        f"#DISABLED: {SCRON}",
        f"*/15 * * * * : {mark(TOKEN)}; x",
    ],
)
def test_a_line_of_ours_is_known_even_when_it_was_disabled(line: str) -> None:
    assert ours(line, {TOKEN}) == (line,)


@pytest.mark.parametrize(
    "line",
    [
        f"# see {mark(TOKEN)}",
        f"* * * * * echo {mark(TOKEN)};",
        f"* * * * * true; {LINE}",
        f"#SCRON --comment={mark(TOKEN)}",
        LINE.replace(TOKEN, TOKEN + "0"),
        HEAD.replace(TOKEN, OTHER),
        "",
    ],
)
def test_a_line_that_only_mentions_our_mark_is_foreign(line: str) -> None:
    assert not ours(line, {TOKEN})


def test_it_is_seen_that_a_line_is_disabled() -> None:
    assert disabled(f"{HEAD}\n{SCRON}\n{LINE}\n", {TOKEN}) == ()
    assert disabled(f"{HEAD}\n#{LINE}\n", {TOKEN}) == (f"#{LINE}",)
    assert len(disabled(f"{HEAD}\n#DISABLED: {SCRON}\n#DISABLED: {LINE}\n", {TOKEN})) == 2
    assert ours(f"x\n{HEAD}\n{LINE}", {TOKEN}) == (HEAD, LINE)


def test_the_header_that_some_crons_write_at_each_installation_does_not_pile_up() -> None:
    header = (
        "# DO NOT EDIT THIS FILE - edit the master and reinstall.\n"
        "# (- installed on Fri Nov 20 19:00:00 2026)\n"
        "# (Cron version V5.0 -- $Id: crontab.c $)\n"
    )
    assert without_header(f"{header}a\n") == "a\n"
    assert without_header(f"{header}{header}a\n") == f"{header}a\n", "the second is somebody's bytes"
    for table in ("", "a", "# DO NOT EDIT THIS FILE - edit the master and reinstall.\n# mine\n# too\na\n"):
        assert without_header(table) == table


def test_the_headline_names_the_project_and_is_known(tmp_path: Path) -> None:
    context = Site(tmp_path).context()
    line = headline(an_installation(context, "crontab"), context.state_dir)
    assert ours(line, {TOKEN}) and str(context.project) in line and "resil cron uninstall" in line
    assert tokens_of(f"{line}\n", context.state_dir) == {TOKEN}


# ---- programs


class Table(TableDriver):
    """A table in memory."""

    name = f"test-table-{os.getpid()}"

    def __init__(self, table: str | None = None) -> None:
        self.table, self.writes = table, 0

    def read(self, context: Context) -> str | None:
        return self.table

    def replace(self, table: str, context: Context) -> Completed:
        self.table, self.writes = table, self.writes + 1
        return Completed((), 0, "", "")

    def run(self, context: Context, *words: str, stdin: str = "", env: Mapping[str, str] | None = None) -> Completed:
        assert words == ("-r",)
        self.table = None
        return Completed((), 0, "", "")

    def lines(self, installation: Installation, settings: CronSettings, context: Context) -> Lines:
        return (), ""

    def pause_s(self, installation: Installation, settings: CronSettings) -> float:
        return 60.0


@pytest.fixture(autouse=True)
def no_lock_file_stays() -> Iterator[None]:
    yield
    Path("/tmp", f"resil-{os.getuid()}", f"{Table.name}.lock").unlink(missing_ok=True)


def lock_of(context: Context) -> Path:
    return Path("/tmp", f"resil-{context.system.host.uid}", f"{Table.name}.lock")


def test_an_unchanged_table_is_not_written(tmp_path: Path) -> None:
    table = Table("a\n")
    assert not change(table, lambda text: text, Site(tmp_path).context())
    assert table.writes == 0


def test_a_table_of_which_nothing_is_left_is_removed(tmp_path: Path) -> None:
    table = Table("ours\n")
    assert change(table, lambda text: text.replace("ours\n", ""), Site(tmp_path).context())
    assert table.table is None and table.writes == 0


def test_the_lock_is_given_back_whatever_happens(tmp_path: Path) -> None:
    context = Site(tmp_path).context()

    def fail(_: str) -> str:
        with open(lock_of(context)) as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        raise ResilError("no")

    with pytest.raises(ResilError, match="no"):
        change(Table("a\n"), fail, context)
    with open(lock_of(context)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_lock_that_is_never_given_back_is_waited_for_and_then_done_without(tmp_path: Path) -> None:
    context = Site(tmp_path).context()
    table = Table("a\n")
    change(table, lambda text: text, context)
    with open(lock_of(context)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert change(table, lambda text: text if text.startswith("b") else f"b\n{text}", context)
    assert table.table == "b\na\n"
    assert context.system.clock.monotonic() >= LOCK_S


def test_without_a_lock_file_it_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tables, "own_directory", lambda path: None)
    table = Table("a\n")
    assert change(table, lambda text: text if text.startswith("b") else f"b\n{text}", Site(tmp_path).context())


def test_no_descriptor_is_left_behind(tmp_path: Path) -> None:
    context = Site(tmp_path).context()
    change(Table("a\n"), lambda text: text, context)
    before = count_descriptors()
    for _ in range(5):
        change(Table("a\n"), lambda text: text, context)
    assert count_descriptors() <= before


def test_a_program_that_is_missing_will_be_missing_tomorrow_and_one_that_hangs_may_not(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with pytest.raises(ProgramUnavailable):
        run_program(site.context(), ["no-such-program"])
    site.write_program("slow", "exec sleep 1000\n")
    with pytest.raises(ProgramFailed) as caught:
        run_program(site.context(), ["slow"], timeout_s=0.2)
    assert caught.value.transient and not isinstance(caught.value, ProgramUnavailable)


def test_a_program_speaks_plain_english(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write_program("speak", 'echo "$LC_ALL"\n')
    context = site.context()
    assert run_program(context, ["speak"]).stdout == "C\n"


def test_the_error_of_a_program_fits_in_a_line() -> None:
    assert error_of(Completed(("x",), 1, "out\n", " a \n\n b\n")) == "a; b"
    assert error_of(Completed(("x",), 1, "out\n", "")) == "out"
    assert error_of(Completed(("x",), 3, "", "")) == "exit code 3, no output"
    assert len(error_of(Completed(("x",), 1, "", "y" * 10_000))) == 300
