"""A crontab is read as crontab(5) has it; a bad line is told, and never takes a good one with it."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resilience.cron.records import EntryOptions, Ignored, Kind, Overlap, Table
from resilience.cron.table.crontab_file import LONGEST_LINE, command_of, parse_crontab, program_of, split_input
from resilience.cron.table.expression import parse_schedule
from resilience.cron.table.options import OptionError
from resilience.settings.cron_settings import CronSettings
from tests.cron.drivers.real_cron import USER, a_cron_daemon, a_user_with_a_crontab, requirements
from tests.cron.table.debian_cron import command_and_input

GOOD = b"7 3 * * * good\n"

SETTINGS = r"""
A = b
A='b c'
A="b'c"
A=b'c'
A=""
A=b # c
"A"=b=c
A=$HOME/x
A	=	b
A='b' 
A='  a"b'
A=b"c
A=%x\%
A=\\n
""".strip("\n").splitlines()  # fmt: skip  # noqa: W291

# Commands whose `%`, quotes and blanks cron reads in a way of its own.
COMMANDS = r"""
echo "$HOME" ~ && echo x | tr x y; echo *
cd / && pwd >> /dev/null; A=b sh -c 'echo $A'
ls {a,b} 2>&1 | wc -l & wait
echo a # comment
echo 'two  blanks'	'a tab'
echo \* \$HOME a\\b "it's"
date +\%F%input
cat%one%two\%x%
cat%
cat%a\b\\c\\%d\
cat%\%%\\%\x
cat%a%%b%%
cat %  lead
printf '<\%s>' 'a\%b'
printf '<\%s>' 'a\\%b'
printf '<\%s>' 'a\''\%b'
wc -c; cat%abc
%only
\%
echo 'unbalanced
exit 3
""".strip().splitlines()


def read(text: str | bytes, **settings_: object) -> Table:
    return parse_crontab(text, "cron/crontab", CronSettings(**settings_))  # type: ignore[arg-type]


def commands(table: Table) -> list[str]:
    return [command_of(entry.argv) for entry in table.entries]


def only_fault(table: Table) -> Ignored:
    (ignored,) = table.ignored
    assert ignored.is_fault
    return ignored


def test_a_line_is_an_entry() -> None:
    (entry,) = read("# nightly\n\n30 4 * * MON-FRI\t./backup --all  'my disk'\n").entries
    assert entry.name.startswith("crontab/")
    assert len(entry.name) == len("crontab/") + 8
    assert (entry.place, entry.schedule, entry.kind) == ("cron/crontab:3", "30 4 * * MON-FRI", Kind.RUN)
    assert entry.argv == ("/bin/sh", "-c", "./backup --all  'my disk'")
    assert (entry.path, entry.zone, entry.mail_to, dict(entry.environment)) == ("", "", None, {})
    assert entry.options == EntryOptions(timeout_s=3600, catch_up=1, jitter_s=0)


@pytest.mark.parametrize(
    "line",
    ["@hourly x", "@every 90s x", "@reboot x", "@daily\tx", "*/5 * * * * x", "  0 0 1 * 1   x", "\t0\t0\t*\t*\t7\tx"],
)
def test_every_way_to_write_a_schedule_is_read(line: str) -> None:
    (entry,) = read(line).entries  # no newline at the end either: Debian's cron refuses the whole file for that
    assert entry.argv == ("/bin/sh", "-c", "x")
    parse_schedule(entry.schedule)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_line_does_what_cron_does(command: str) -> None:
    (entry,) = read(f"0 1 * * * {command}").entries
    meant, given = command_and_input(command)
    theirs = subprocess.run(["/bin/sh", "-c", meant], input=given, capture_output=True, text=True, timeout=60)
    environ = {**os.environ, **entry.environment}
    ours = subprocess.run(entry.argv, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.text(alphabet=st.sampled_from("ab \t'\"\\|&;<>()$`*?[~#{},=%\u00e9-0/."), max_size=30))
def test_percent_signs_and_backslashes_are_read_as_by_cron(text: str) -> None:
    command, given = split_input(text)
    assert (command, given or "") == command_and_input(text)


def test_the_input_of_a_command_is_shown_to_no_other_user() -> None:
    (entry,) = read("SHELL=/bin/bash\n0 1 * * * mysql -p%my secret%x").entries
    assert command_of(entry.argv) == "mysql -p%..." and program_of(entry.argv) == "mysql"
    assert "secret" not in str(entry.argv) and entry.environment["RESIL_CRON_INPUT"] == "my secret\nx\n"
    said = ("/bin/sh", *entry.argv[1:4], "test -z $RESIL_CRON_INPUT; cat")
    ran = subprocess.run(said, env=dict(entry.environment), capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == "my secret\nx\n"


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("cron")
@pytest.mark.skipif(
    os.environ.get("RESIL_SOAK") != "1", reason="waits for a full minute of the real cron: set RESIL_SOAK=1"
)
def test_the_model_does_what_the_cron_installed_here_does(tmp_path: Path) -> None:
    if missing := requirements("cron"):
        pytest.skip(missing)
    with tempfile.TemporaryDirectory() as name, a_user_with_a_crontab(USER) as user:
        os.chmod(name, 0o777)  # noqa: PTH101
        lines = [f"* * * * * exec >{name}/{n}; {command}" for n, command in enumerate(COMMANDS)]
        for number, setting in enumerate(SETTINGS):
            lines += [setting, f"* * * * * env | grep ^A= >{name}/A{number}"]
        table = "\n".join(['MAILTO=""', *lines, f"* * * * * sleep 3; touch {name}/done", ""])
        assert user.run(["crontab", "-"], timeout_s=60, stdin=table).returncode == 0
        # Afterwards: cron does not notice a table that is written in the second in which it starts.
        with a_cron_daemon(tmp_path / "log"):
            deadline = time.monotonic() + 200
            while not Path(name, "done").exists() and time.monotonic() < deadline:
                time.sleep(0.5)
        for number, command in enumerate(COMMANDS):
            meant, given = command_and_input(f"exec >{tmp_path}/{number}; {command}")
            argv = ["/bin/sh", "-c", meant]
            subprocess.run(
                argv, input=given, text=True, timeout=60, env={"HOME": f"/home/{USER}"}, check=False, cwd="/"
            )
            theirs, ours = (Path(where, str(number)) for where in (name, tmp_path))
            assert theirs.exists() == ours.exists(), command
            assert not ours.exists() or "*" in command or theirs.read_text() == ours.read_text(), command
        told = [Path(name, f"A{number}").read_text() for number in range(len(SETTINGS))]
        entries = read(table).entries[len(COMMANDS) : -1]
        assert told == [f"A={entry.environment['A']}\n" for entry in entries]


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("./backup --all", "./backup"),
        ("python3 x.py | tail", "python3"),
        ("cd /x && ./y", "cd"),
        ("A=b backup", ""),
        ("'my program' x", ""),
        ("$HOME/bin/x", ""),
    ],
)
def test_the_program_of_a_simple_command_is_known(command: str, program: str) -> None:
    for entry in read(f"0 1 * * * {command}\n0 1 * * * {command} %input\n").entries:
        assert program_of(entry.argv) == program
        assert command_of(entry.argv).removesuffix(" %...") == command


def test_a_user_of_this_machine_is_no_command() -> None:
    table = parse_crontab("0 1 * * * ada ./backup", "cron/crontab", CronSettings(), users={"root", "ada"})
    assert "like the user column" in only_fault(table).reason
    assert commands(read("0 1 * * * ada ./backup")) == ["ada ./backup"]
    assert commands(read("0 1 * * * root")) == ["root"]


def test_a_name_stays_while_schedule_and_command_do() -> None:
    (first,) = read("0 4 * * * backup\n").entries
    (moved,) = read("# a comment\nA=b\n\n  0 4 * * *   backup   # resil: timeout=1m\n").entries
    (other,) = read("0 5 * * * backup\n").entries
    assert first.name == moved.name != other.name


def test_settings_count_for_the_lines_below_them() -> None:
    table = read(
        "0 1 * * * a\n"
        'MAILTO=ada@example.org\nCRON_TZ=Europe/Paris\nGREETING = "hello  "\n'
        "0 2 * * * b\n"
        "MAILTO=\"\"\nCRON_TZ=\nX=it's fine\nY='a \"b\" c'\nEMPTY=\n'Z'=1\n"
        "0 3 * * * c\n"
    )
    assert table.ignored == ()
    a, b, c = table.entries
    assert (a.mail_to, a.zone, dict(a.environment)) == (None, "", {})
    assert (b.mail_to, b.zone, dict(b.environment)) == ("ada@example.org", "Europe/Paris", {"GREETING": "hello  "})
    assert (c.mail_to, c.zone) == ("", "")
    assert dict(c.environment) == {"GREETING": "hello  ", "X": "it's fine", "Y": 'a "b" c', "EMPTY": "", "Z": "1"}


def test_the_shell_is_sh_unless_another_is_set() -> None:
    table = read("0 1 * * * a | b\nSHELL=/bin/bash\n0 2 * * * a | b > c 2>&1\nSHELL=\n0 3 * * * a | b\n")
    assert table.ignored == ()
    assert [entry.argv for entry in table.entries] == [
        ("/bin/sh", "-c", "a | b"), ("/bin/bash", "-c", "a | b > c 2>&1"), ("/bin/sh", "-c", "a | b")
    ]  # fmt: skip
    assert [entry.environment.get("SHELL") for entry in table.entries] == [None, "/bin/bash", None]


def test_options_stand_behind_a_line_or_above_it() -> None:
    table = read(
        "0 1 * * * a  # resil: timeout=10m name=nightly\n"
        "#resil: overlap=allow ok=0-3\n# and why: it is quick\n0 2 * * * b\n"
        "## resil: rerun\n0 3 * * * c # resil: jitter=30s\n"
        "SHELL=/bin/sh\n0 4 * * * d | e # resil: catch_up=none\n"
    )
    assert table.ignored == ()
    a, b, c, d = table.entries
    assert (a.name, a.options.timeout_s) == ("crontab/nightly", 600)
    assert (b.options.overlap, b.options.ok, b.options.timeout_s) == (Overlap.ALLOW, (0, 1, 2, 3), 3600)
    assert (c.options.rerun, c.options.jitter_s, c.options.overlap) == (True, 30, Overlap.SKIP)
    assert (d.options.catch_up, d.argv) == (0, ("/bin/sh", "-c", "d | e"))


@pytest.mark.parametrize("after", ["", "\n0 1 * * * x\n", "A=b\n0 1 * * * x\n", "# resil: timeout=1m\n0 1 * * * x\n"])
def test_options_without_a_line_are_reported(after: str) -> None:
    table = read("# resil: rerun\n" + after)
    assert "belong to no line" in only_fault(table).reason
    assert table.ignored[0].place == "cron/crontab:1"
    assert all(not entry.options.rerun for entry in table.entries)


def test_a_line_with_an_unknown_option_does_not_run() -> None:
    table = read("0 1 * * * a # resil: timout=1m\n0 2 * * * b\n")
    assert commands(table) == ["b"]
    assert only_fault(table).hint == "did you mean timeout?"


def test_a_duplicate_line_runs_twice_under_two_names() -> None:
    first, second = read("0 1 * * * a\n0 1 * * * a\n").entries
    assert second.name == first.name + "-2"


def test_the_same_line_in_two_zones_has_two_names() -> None:
    first, second = read("CRON_TZ=UTC\n0 1 * * * a\nCRON_TZ=Asia/Tokyo\n0 1 * * * a\n").entries
    assert first.name != second.name
    assert not second.name.endswith("-2")


def test_a_name_is_given_once() -> None:
    table = read("0 1 * * * a # resil: name=x\n0 2 * * * b # resil: name=x\n0 3 * * * c\n")
    assert commands(table) == ["a", "c"]
    assert only_fault(table).reason == "the name 'x' is taken by cron/crontab:1"


def test_in_an_unknown_zone_nothing_runs_at_the_wrong_time() -> None:
    table = read("0 1 * * * a\nCRON_TZ=Europe/Pariss\n0 2 * * * b\nCRON_TZ=UTC\n0 3 * * * c\n")
    assert commands(table) == ["a", "c"]
    zone, line = table.ignored
    assert (zone.place, zone.hint) == ("cron/crontab:2", "did you mean Europe/Paris?")
    assert (line.place, line.reason) == ("cron/crontab:3", "its time zone is invalid: see cron/crontab:2")


BAD_LINES = [
    (b"* * * *", "expected five fields and a command"),
    (b"* * * * *", "expected five fields and a command"),
    (b"@daily", "@daily and a command"),
    (b"@every 90s", "@every and a command"),
    (b"@fortnightly x", "is not a schedule"),
    (b"61 * * * * x", "61 is not between 0 and 59"),
    (b"5-1 * * * * x", "ends before it begins"),
    (b"0 0 31 2 * x", "never matches"),
    (b"0 0 * * * * x", "sixth field"),
    (b"0 0 * * * root /bin/x", "like the user column"),
    (b"0 0 * * * 0 backup", "sixth field"),
    (b"0 0 * * * jobs/night.slurm", "is a batch script, and would run here"),
    (b"hello system", "found 2 words"),
    (b"A-B=c", "'A-B' is not a variable name"),
    (b"=c", "found 1 word"),
    (b"A='b", "unbalanced quotes around the value of A"),
    (b'A="b" c', "unbalanced quotes around the value of A"),
    (b"SHELL=bash", "SHELL=bash is not an absolute path"),
    (b"PATH=$HOME/bin:$PATH", "`$...`"),
    (b"CRON_TZ='UTC", "unbalanced quotes around the value of CRON_TZ"),
    (b"0 0 * * * x\x00y", "control character U+0000"),
    (b"0 0 * * * x\x1b[2Jy", "control character U+001B"),
    (b"0 0 * * * x\ry", "control character U+000D"),
    (b"0 0 * * * caf\xe9", "byte 14 of the line is not UTF-8"),
    (b"0 0 * * * " + b"x" * 2**20, f"the line is {2**20 + 10} bytes long"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_LINES)
def test_an_invalid_line_is_reported_and_does_not_affect_valid_ones(line: bytes, reason: str) -> None:
    after = b"CRON_TZ=UTC\n" if line.startswith(b"CRON_TZ") else b""
    table = read(GOOD + line + b"\n" + after + b"9 3 * * * better\n")
    assert commands(table) == ["good", "better"]
    fault = only_fault(table)
    assert fault.place == "cron/crontab:2"
    assert reason in fault.reason
    assert fault.hint


def test_values_are_read_literally_as_in_cron() -> None:
    (entry,) = read("PATH=/opt/bin:/bin\nSECRET=a$b\nHERE=$HOME\n0 1 * * * a\n").entries
    assert dict(entry.environment) == {"PATH": "/opt/bin:/bin", "SECRET": "a$b", "HERE": "$HOME"}


def test_variables_that_cron_protects_are_reported_and_no_fault() -> None:
    (ignored,) = read("LOGNAME=ada\n").ignored
    assert not ignored.is_fault


@pytest.mark.parametrize(
    "text",
    [
        b"7 3 * * * good\r\n# c\r\n\r\nA=b\r\n8 3 * * * fine\r\n",
        b"\xef\xbb\xbf7 3 * * * good\n8 3 * * * fine",
        b"\n\n \t\n7 3 * * * good\n# caf\xe9 \x00 in a comment\n8 3 * * * fine\n"
        + b"# "
        + b"x" * (2 * LONGEST_LINE)
        + b"\n",
        b"7 3 * * * good\n\t# indented comment\n   8  3\t* * *  fine   ",
    ],
)
def test_line_ends_byte_order_marks_and_comments_are_accepted(text: bytes) -> None:
    table = read(text)
    assert table.ignored == ()
    assert commands(table) == ["good", "fine"]


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-le"])
def test_another_coding_is_named(coding: str) -> None:
    mark = b"\xff\xfe" if coding == "utf-16-le" else b""
    assert "UTF-16" in only_fault(read(mark + "7 3 * * * good\n".encode(coding))).reason


def test_an_empty_crontab_is_an_empty_table() -> None:
    assert read(b"") == read(b"\n\n") == read(b"# only this") == Table()


def test_invalid_settings_are_reported_before_anything_runs() -> None:
    with pytest.raises(OptionError, match="catch_up=never"):
        read(GOOD, catch_up="never")


def test_megabytes_of_anything_are_read_in_no_time() -> None:
    started = time.process_time()
    read(b"x" * 2**22)
    read(b"=" * 2**20 + b"\n" + b"* " * 2**19 + b"\n" + b"'" * 2**20)
    read(b"\n" * 2**18)
    assert time.process_time() - started < 10


@settings(max_examples=200, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40).filter(lambda raw: b"\n" not in raw),
            st.sampled_from([line for line, _ in BAD_LINES[:-6]]),
            st.text(alphabet="*/0123456789-,@=# '\"abresil:%\\\t\r", max_size=30).map(str.encode),
        ),
        max_size=8,
    )
)
def test_valid_lines_run_whatever_else_the_crontab_contains(lines: list[bytes]) -> None:
    text = b"\n".join([b"CRON_TZ=UTC", *lines, b"", b"CRON_TZ=UTC", b"SHELL=", b"7 3 * * * good --really"])
    table = read(text)
    assert [
        entry
        for entry in table.entries
        if entry.argv == ("/bin/sh", "-c", "good --really") and entry.schedule == "7 3 * * *"
    ]
    for entry in table.entries:
        parse_schedule(entry.schedule, entry.zone)
        assert len(entry.argv) in (3, 5)
    assert len({entry.key for entry in table.entries}) == len(table.entries)
    assert all(ignored.reason for ignored in table.ignored)
