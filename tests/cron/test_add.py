"""What `resil cron add` writes means what was typed, to the scheduler's reader and a real shell, or is not written."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from resilience.cron.edit import Added, NewEntry, add, read_crontab
from resilience.cron.project import CronProject, open_cron
from resilience.cron.records import Entry, Kind
from resilience.errors import ResilError, UsageError
from tests.lab.fakes import make_project

HARD = (
    "it's",
    "a  b",
    "$HOME",
    "*",
    "",
    '"quoted"',
    "back\\slash",
    "100%",
    "a\\%b",
    "#not a comment",
    "`id`",
    "é",
    "~",
)
"""Words that a shell, a crontab or a parser could take for something else."""
SAY = (sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))")


@pytest.fixture
def cron(tmp_path: Path) -> CronProject:
    made = open_cron(make_project(tmp_path, environ={"PATH": os.environ["PATH"]}))
    made.directory.parent.chmod(0o755)
    return made


def wanted(name: str = "backup", *command: str, **given: object) -> NewEntry:
    return NewEntry(**{"name": name, "command": command or ("true",), **given})  # type: ignore[arg-type]


def entry_of(cron: CronProject, added: Added) -> Entry:
    return next(entry for entry in cron.read_table().entries if entry.name == added.name)


def said(entry: Entry) -> tuple[str, ...]:
    """The words that the program of an entry was started with."""
    done = subprocess.run(
        entry.argv, capture_output=True, text=True, env={"PATH": "/bin", "LANG": "C.UTF-8"}, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return tuple(json.loads(done.stdout))


def refused(cron: CronProject, entry: NewEntry) -> UsageError:
    with pytest.raises(UsageError) as raised:
        add(cron, entry)
    return raised.value


# ---- drop-ins


def test_a_drop_in_runs_exactly_the_words_that_were_typed(cron: CronProject) -> None:
    added = add(cron, wanted("say", *SAY, *HARD, "two\nlines", directories=("hourly",)))
    entry = entry_of(cron, added)
    assert entry.kind is Kind.RUN and entry.argv == (str(cron.directory / "cron.hourly" / "say"),)
    assert said(entry) == (*HARD, "two\nlines")


def test_a_drop_in_is_executable_whatever_the_umask_and_says_whose_it_is(cron: CronProject) -> None:
    before = os.umask(0o077)
    try:
        added = add(cron, wanted("backup", "true", directories=("daily",), options={"timeout": "5m", "rerun": ""}))
    finally:
        os.umask(before)
    assert stat.S_IMODE(added.path.stat().st_mode) == 0o755
    assert stat.S_IMODE(added.path.parent.stat().st_mode) == 0o755
    lines = added.path.read_text().splitlines()
    assert lines[0] == "#!/bin/sh" and "by `resil cron add backup`" in lines[1] and "login1" in lines[1]
    options = entry_of(cron, added).options
    assert options.timeout_s == 300 and options.rerun
    assert not list(added.path.parent.glob(".*")), "no half-written file stays"


def test_a_limit_that_follows_from_the_period_is_told(cron: CronProject) -> None:
    added = add(cron, wanted("often", "true", schedule="*/10 * * * *"))
    assert any("may take 10 min" in note for note in added.notes)
    for entry in (wanted("a", directories=("hourly",)), wanted("b", schedule="@hourly", options={"timeout": "5m"})):
        assert not any("may take" in note for note in add(cron, entry).notes)


def test_a_program_is_written_in_full(cron: CronProject) -> None:
    script = cron.directory.parent / "my script"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    added = add(cron, wanted("mine", "./my script", directories=("hourly",)))
    assert f"exec '{script}'" in added.text
    assert "exec /" in add(cron, wanted("found", "true", directories=("hourly",))).text


def test_a_shell_line_runs_in_a_shell(cron: CronProject) -> None:
    added = add(cron, wanted("pipe", "echo a b | wc -w; exit 3", directories=("hourly",), shell=True))
    done = subprocess.run([str(added.path)], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.returncode) == ("2", 3)


def test_a_submitted_drop_in_is_a_batch_script_that_takes_the_options_of_the_settings(cron: CronProject) -> None:
    options = {"timeout": "90s", "overlap": "allow"}
    added = add(cron, wanted("eval", "true", directories=("hourly",), submit=True, options=options))
    entry = entry_of(cron, added)
    assert added.name == "cron.hourly/eval.slurm" and entry.kind is Kind.SUBMIT
    assert entry.options.takes_cron_sbatch and entry.options.overlap == "allow"
    head, _, command = added.text.partition("exec ")
    assert head.splitlines()[0] == "#!/bin/bash" and command, "sbatch stops at the first command"
    assert {"#SBATCH --job-name=eval", "#SBATCH --no-requeue", "#SBATCH --time=2"} <= set(head.splitlines())
    forever = add(cron, wanted("long", "true", directories=("hourly",), submit=True, options={"timeout": "none"}))
    assert "#SBATCH --time=0\n" in forever.text


# ---- lines of the crontab


def test_a_line_means_exactly_the_words_that_were_typed(cron: CronProject) -> None:
    added = add(cron, wanted("say", *SAY, *HARD, schedule="*/10 7-18 * * 1-5", options={"ok": "0-3"}))
    entry = entry_of(cron, added)
    assert said(entry) == HARD and entry.options.ok == (0, 1, 2, 3)
    assert entry.name == "crontab/say" and entry.schedule == "*/10 7-18 * * 1-5"


def test_a_line_for_a_shell_is_written_as_typed(cron: CronProject) -> None:
    added = add(cron, wanted("pipe", "date +%s | wc -c", schedule="@hourly", shell=True))
    assert "@hourly  date +\\%s | wc -c  #" in added.text
    assert entry_of(cron, added).argv == ("/bin/sh", "-c", "date +%s | wc -c")


def test_existing_crontab_lines_stay_and_keep_their_meaning(cron: CronProject) -> None:
    before = (
        "# mine\nMAILTO=ada@example.org\nCRON_TZ=Asia/Tokyo\nSHELL=/bin/bash\n0 8 * * *  true | cat  # resil: name=tea"
    )
    cron.directory.mkdir(mode=0o755)
    (cron.directory / "crontab").write_text(before)
    tea = cron.read_table().entries
    added = add(cron, wanted("say", *SAY, *HARD, schedule="0 8 * * *"))
    assert (cron.directory / "crontab").read_text().startswith(before + "\n")
    entries = {entry.name: entry for entry in cron.read_table().entries}
    assert entries["crontab/tea"] == tea[0]
    mine = entries["crontab/say"]
    assert mine.zone == "", "eight o'clock here, not in Tokyo"
    assert mine.argv[:2] == ("/bin/bash", "-c") and said(mine) == HARD
    assert mine.mail_to == "ada@example.org" and any("MAILTO" in note for note in added.notes)


@pytest.mark.parametrize("word", ["two\nlines", "a # resil: timeout=1s", "bell\x07"])
def test_characters_that_no_line_can_express_are_refused(cron: CronProject, word: str) -> None:
    error = refused(cron, wanted("odd", "echo", word, schedule="@hourly"))
    assert "drop-in" in error.hint and read_crontab(cron.directory / "crontab") == b""


def test_a_crontab_that_is_a_link_stays_one_and_keeps_its_mode(cron: CronProject) -> None:
    cron.directory.mkdir(mode=0o755)
    real = cron.directory.parent / "my-crontab"
    real.write_text("# mine\n")
    real.chmod(0o640)
    (cron.directory / "crontab").symlink_to(real)
    add(cron, wanted("probe", "true", schedule="@hourly"))
    assert (cron.directory / "crontab").is_symlink() and "name=probe" in real.read_text()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_a_concurrent_change_is_not_lost(cron: CronProject, monkeypatch: pytest.MonkeyPatch) -> None:
    from resilience.cron import edit as cron_add

    cron.directory.mkdir(mode=0o755)
    (cron.directory / "crontab").write_text("# mine\n")
    parse = cron_add.parse

    def edited(*given: object) -> object:
        (cron.directory / "crontab").write_text("# mine\n# and a word more\n")
        return parse(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(cron_add, "parse", edited)
    with pytest.raises(ResilError, match="changed in the meantime"):
        add(cron, wanted("probe", "true", schedule="@hourly"))
    assert (cron.directory / "crontab").read_text() == "# mine\n# and a word more\n"


# ---- what cannot be meant


def test_nothing_is_overwritten(cron: CronProject) -> None:
    add(cron, wanted("backup", "true", directories=("hourly",)))
    assert "resil cron remove" in refused(cron, wanted("backup", "true", directories=("hourly",))).hint
    assert "resil cron remove" in refused(cron, wanted("backup", "true", directories=("hourly",), submit=True)).hint
    (cron.directory / "cron.hourly" / "dead").symlink_to("/nowhere")
    assert "resil cron remove" in refused(cron, wanted("dead", "true", directories=("hourly",))).hint
    add(cron, wanted("probe", "true", schedule="@hourly"))
    assert "resil cron remove crontab/probe" in refused(cron, wanted("probe", "true", schedule="@daily")).hint


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (wanted("a.b", directories=("hourly",)), "name"),
        (wanted("", directories=("hourly",)), "name"),
        (wanted("../x", directories=("hourly",)), "name"),
        (wanted("x" * 65, directories=("hourly",)), "name"),
        (wanted("x"), "no schedule given"),
        (wanted("x", directories=("hourly", "daily")), "more than one"),
        (wanted("x", directories=("hourly",), schedule="@daily"), "more than one"),
        (wanted("x", schedule="61 * * * *"), ""),
        (wanted("x", schedule="* * * *"), ""),
        (wanted("x", schedule="@hurly"), ""),
        (NewEntry(name="x", command=(), directories=("hourly",)), "no command given"),
        (wanted("x", "no-such-program-anywhere", directories=("hourly",)), "not on your PATH"),
        (wanted("x", "./not-there", directories=("hourly",)), "does not exist"),
        (wanted("x", directories=("hourly",), options={"overlap": "sometimes"}), "overlap"),
        (wanted("x", directories=("hourly",), options={"timeout": "soon"}), "timeout"),
        (wanted("x", directories=("hourly",), options={"timeout": "1m rerun"}), "blank"),
        (wanted("x", schedule="@hourly", submit=True), "not submitted"),
    ],
)
def test_an_invalid_request_is_refused_with_a_hint(cron: CronProject, entry: NewEntry, reason: str) -> None:
    error = refused(cron, entry)
    assert reason in error.message and error.hint
    assert not cron.directory.exists(), "nothing was written"


def test_a_file_that_may_not_be_executed_is_refused(cron: CronProject) -> None:
    (cron.directory.parent / "notes").write_text("x")
    assert "chmod +x" in refused(cron, wanted("x", "./notes", directories=("hourly",))).hint


def test_a_directory_that_the_policy_refuses_gets_no_drop_in(cron: CronProject) -> None:
    directory = cron.directory / "cron.hourly"
    directory.mkdir(parents=True)
    cron.directory.chmod(0o755)
    directory.chmod(0o777)
    error = refused(cron, wanted("backup", "true", directories=("hourly",)))
    assert "chmod" in error.hint and not list(directory.iterdir())


def test_a_crontab_that_the_policy_refuses_stays_as_it_was(cron: CronProject) -> None:
    cron.directory.mkdir(mode=0o755)
    crontab = cron.directory / "crontab"
    crontab.write_text("# mine\n")
    crontab.chmod(0o666)
    error = refused(cron, wanted("probe", "true", schedule="@hourly"))
    assert "world-writable" in error.message and "chmod o-w" in error.hint and crontab.read_text() == "# mine\n"


def test_a_dry_run_writes_nothing(cron: CronProject) -> None:
    for entry in (wanted("a", directories=("hourly",)), wanted("b", schedule="@hourly")):
        added = add(cron, entry, dry_run=True)
        assert added.text and len(added.next) == 3
    assert not cron.directory.exists()
