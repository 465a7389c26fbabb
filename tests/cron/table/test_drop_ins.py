"""What a name in cron.hourly means; nothing is passed over in silence."""

from __future__ import annotations

import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from resilience.cron.records import Entry, EntryOptions, Ignored, Kind
from resilience.cron.table.drop_ins import HEAD_BYTES, SCHEDULES, Found, judge, judge_unknown, shown, without_duplicates
from resilience.cron.table.expression import parse_schedule
from resilience.cron.table.policy import Refusal
from resilience.settings.cron_settings import CronSettings

SETTINGS = CronSettings()
DEFAULT = EntryOptions(jitter_s=20)
SCRIPT = b"#!/bin/sh\nexit 0\n"


def found(name: str = "backup", **seen: object) -> Found:
    head = seen.get("head", SCRIPT)
    assert isinstance(head, bytes)
    base = Found(
        name=name,
        directory="cron.hourly",
        path=f"/p/cron/cron.hourly/{name}",
        place=f"cron/cron.hourly/{name}",
        mode=stat.S_IFREG | 0o755,
        is_executable=True,
        size_bytes=len(head),
        head=head,
    )
    return base._replace(**seen)  # type: ignore[arg-type]


def entry(one: Found) -> Entry:
    judged = judge(one, SETTINGS)
    assert isinstance(judged, Entry), judged
    return judged


def ignored(one: Found) -> Ignored:
    judged = judge(one, SETTINGS)
    assert isinstance(judged, Ignored), judged
    assert judged.place == one.place
    assert judged.reason
    return judged


def test_an_executable_with_a_clean_name_runs() -> None:
    one = entry(found("back-up_2"))
    assert (one.name, one.kind, one.schedule) == ("cron.hourly/back-up_2", Kind.RUN, "@hourly")
    assert one.argv == (one.path,) == ("/p/cron/cron.hourly/back-up_2",)
    assert (one.key, one.options) == ("cron.hourly+back-up_2", DEFAULT)


def test_an_elf_program_runs() -> None:
    assert entry(found(head=b"\x7fELF\x02\x01" + b"# resil: rerun\n")).options == DEFAULT


@pytest.mark.parametrize("name", ["a.slurm", "a.sbatch", "A-b_1.2.slurm"])
@pytest.mark.parametrize("is_executable", [True, False])
def test_a_job_is_submitted_executable_or_not(name: str, is_executable: bool) -> None:
    mode = stat.S_IFREG | (0o755 if is_executable else 0o644)
    one = entry(found(name, is_executable=is_executable, mode=mode))
    assert (one.name, one.kind, one.argv) == (f"cron.hourly/{name}", Kind.SUBMIT, (one.path,))


def test_of_a_program_and_a_job_of_one_name_only_the_job_runs() -> None:
    judged = [judge(found(name), SETTINGS) for name in ("x", "x.slurm", "y")]
    job, y = [one for one in without_duplicates(judged) if isinstance(one, Entry)]
    assert (job.name, y.name) == ("cron.hourly/x.slurm", "cron.hourly/y")
    (told,) = [one for one in without_duplicates(judged) if isinstance(one, Ignored)]
    assert (told.place, told.is_fault) == ("cron/cron.hourly/x", True)
    assert told.reason == "x.slurm in the same directory is submitted instead"


def test_every_directory_has_a_schedule() -> None:
    day = 1767225600  # Thursday, 2026-01-01 00:00 UTC
    gaps = {name: parse_schedule(text, "UTC").next_after(day) for name, text in SCHEDULES.items()}
    assert {name: (slot or 0) - day for name, slot in gaps.items()} == {
        "cron.minutely": 60,
        "cron.quarter_hourly": 900,
        "cron.hourly": 3600,
        "cron.daily": 86400,
        "cron.weekly": 3 * 86400,  # Sunday
        "cron.monthly": 31 * 86400,
    }


def test_options_stand_among_the_first_lines() -> None:
    head = b"#!/bin/bash\n#SBATCH --time=10\n  # resil: ok=0-3 timeout=5m\n#resil: rerun\nbody # resil: jitter=1s\n"
    for name in ("watch", "watch.slurm"):
        options = entry(found(name, head=head)).options
        assert (options.ok, options.timeout_s, options.rerun, options.jitter_s) == ((0, 1, 2, 3), 300, True, 20)


def test_options_far_down_or_cut_in_the_middle_are_not_read() -> None:
    assert entry(found(head=SCRIPT + b"\n" * 40 + b"# resil: rerun\n")).options == DEFAULT
    cut = (SCRIPT + b"x" * (HEAD_BYTES - len(SCRIPT) - 17) + b"\n# resil: timeout=10m\n")[:HEAD_BYTES]
    assert entry(found(head=cut)).options == DEFAULT


@pytest.mark.parametrize(
    ("line", "reason"),
    [(b"timout=1m", "unknown option 'timout=1m'"), (b"name=x", "the name of a drop-in is its file name")],
)
def test_a_bad_option_keeps_a_drop_in_from_running(line: bytes, reason: str) -> None:
    one = ignored(found(head=SCRIPT + b"# resil: " + line + b"\n"))
    assert reason in one.reason
    assert one.is_fault
    assert one.hint


@pytest.mark.parametrize(
    ("name", "reason", "is_fault"),
    [
        ("ok.sh", "other than letters, digits, `-` and `_`", True),
        ("resil-check.py", "other than letters", True),
        ("my job", "other than letters", True),
        ("caf\u00e9", "other than letters", True),
        (".hid", "hidden", False),
        (".backup.swp", "editor's swap file", False),
        (".nfs000000000001", "hidden", False),
        ("backup~", "left behind", False),
        ("#backup#", "left behind", False),
        ("x.dpkg-old", "left behind", False),
        ("x.rpmsave", "left behind", False),
        ("x.bak", "left behind", False),
        ("README", "documentation", False),
        ("README.md", "documentation", False),
        ("backup.off", "disabled by its name", False),
        ("*.slurm", "an unexpanded shell pattern", False),
        ("*.sbatch", "unexpanded shell pattern", False),
        ("x.SLURM", "only `.slurm` and `.sbatch`", True),
        ("my job.slurm", "may only contain letters, digits", True),
        ("-x.slurm", "may only contain letters, digits", True),
        ("x" * 230, "longer than 200", True),
    ],
)
def test_a_name_that_does_not_run_is_reported(name: str, reason: str, is_fault: bool) -> None:
    one = ignored(found(name))
    assert reason in one.reason
    assert one.is_fault is is_fault


def test_a_better_name_is_offered() -> None:
    assert ignored(found("ok.sh")).hint == "rename it: ok"
    assert ignored(found("my job v1.2.py")).hint == "rename it: my-job-v1-2"


def test_names_are_accepted_as_by_run_parts(tmp_path: Path) -> None:
    run_parts = shutil.which("run-parts")
    if run_parts is None:
        pytest.skip("no run-parts here (it is Debian's)")
    names = [
        "a",
        "B_2",
        "x-y",
        "-z",
        "ok.sh",
        ".hid",
        "b~",
        "#c#",
        "d e",
        "x.dpkg-old",
        "caf\u00e9",
        "f.slurm",
        "g.bak",
        "9",
    ]
    for name in names:
        (tmp_path / name).write_bytes(SCRIPT)
        (tmp_path / name).chmod(0o755)
    listed = subprocess.run(
        [run_parts, "--test", str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    theirs = {Path(line).name for line in listed.stdout.splitlines()}
    judged = {name: judge(found(name), SETTINGS) for name in names}
    assert {name for name, one in judged.items() if isinstance(one, Entry) and one.kind is Kind.RUN} == theirs


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        (stat.S_IFDIR | 0o755, "a directory"),
        (stat.S_IFIFO | 0o777, "a FIFO"),
        (stat.S_IFSOCK | 0o777, "a socket"),
        (stat.S_IFCHR | 0o777, "a device"),
        (stat.S_IFBLK | 0o777, "a device"),
    ],
)
@pytest.mark.parametrize("name", ["backup", "backup.slurm"])
def test_only_files_run(name: str, mode: int, reason: str) -> None:
    assert reason in ignored(found(name, mode=mode)).reason


def test_without_its_x_bit_a_file_waits() -> None:
    one = ignored(found(is_executable=False, mode=stat.S_IFREG | 0o644))
    assert one.reason == "it is not executable"
    assert one.hint == "to run it: chmod +x /p/cron/cron.hourly/backup"
    assert not one.is_fault
    assert "chmod +x" in ignored(found("ok.sh", is_executable=False, mode=stat.S_IFREG | 0o644)).hint


def test_an_ineffective_x_bit_is_reported() -> None:
    one = ignored(found(is_executable=False))
    assert "noexec" in one.reason
    assert one.is_fault


@pytest.mark.parametrize(
    ("name", "head", "reason", "hint"),
    [
        ("x", b"", "it is empty", "remove"),
        ("x.slurm", b"", "it is empty", "remove"),
        ("x", b"echo hello\n", "does not begin with `#!`", "#!/bin/sh"),
        ("x", b"#!\n", "names no interpreter", "#!/bin/sh"),
        ("x", b"#!/bin/sh\r\necho\r\n", "Windows line endings", "sed -i 's/\\r$//' /p/cron/cron.hourly/x"),
        ("x", b"\xef\xbb\xbf#!/bin/sh\n", "byte order mark", "sed -i"),
        ("x.slurm", b"#SBATCH -n1\n", "sbatch rejects", "#!/bin/bash"),
        ("x.slurm", b"#!/bin/bash\n#SBATCH -n1\r\n", "Windows line endings, so sbatch", "sed -i"),
        ("x.slurm", b"\x7fELF", "sbatch rejects", "#!/bin/bash"),
    ],
)
def test_files_that_the_kernel_or_sbatch_would_reject_are_reported_before(
    name: str, head: bytes, reason: str, hint: str
) -> None:
    one = ignored(found(name, head=head))
    assert reason in one.reason
    assert hint in one.hint
    assert one.is_fault


def test_the_fixes_offered_do_fix(tmp_path: Path) -> None:
    for head in (b"#!/bin/sh\r\necho done\r\n", b"\xef\xbb\xbf#!/bin/sh\necho done\n"):
        path = tmp_path / "x y"
        path.write_bytes(head)
        path.chmod(0o755)
        fix = ignored(found("x", head=head, path=str(path))).hint
        subprocess.run(["/bin/sh", "-c", fix], check=True, timeout=60)
        ran = subprocess.run([str(path)], capture_output=True, check=True, timeout=60)
        assert ran.stdout == b"done\n"


def test_a_refusal_and_an_error_are_reported() -> None:
    one = ignored(found(refusal=Refusal("everybody can write it", "chmod o-w it")))
    assert (one.reason, one.hint, one.is_fault) == ("everybody can write it", "chmod o-w it", True)
    one = ignored(found(problem="it is a broken symbolic link", hint="rm it"))
    assert (one.reason, one.hint, one.is_fault) == ("it is a broken symbolic link", "rm it", True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a\nb", "a\\nb"),
        ("a\x1b[2J", "a\\x1b[2J"),
        ("caf\u00e9", "caf\u00e9"),
        ("\udcff", "\\xff"),
        ("\u202e", "\\u202e"),
    ],
)
def test_no_name_moves_the_readers_cursor(name: str, text: str) -> None:
    assert shown(name) == text


FOLDER, FILE, PROGRAM = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o644, stat.S_IFREG | 0o755


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("cron.houry", "cron.hourly"),
        ("cron.hourly.d", "cron.hourly"),
        ("cron-weekly", "cron.weekly"),
        ("cron.month", "cron.monthly"),
        ("cron.quarter-hourly", "cron.quarter_hourly"),
        ("cron.quarterhourly", "cron.quarter_hourly"),
        ("Daily", "cron.daily"),
        ("cron.Daily", "cron.daily"),
        ("cron_daily", "cron.daily"),
        ("hourly", "cron.hourly"),
        ("quarter-hourly", "cron.quarter_hourly"),
        ("minutely", "cron.minutely"),
        ("dayly", "cron.daily"),
        ("cron.fortnightly", "cron."),
    ],
)
def test_a_directory_whose_name_nearly_means_something_is_a_fault(name: str, meant: str) -> None:
    told = judge_unknown(name, f"cron/{name}", FOLDER)
    assert told is not None
    assert told.is_fault
    assert told.hint.startswith(f"did you mean {meant}")
    assert "cron.quarter_hourly" in told.reason  # all that there are


@pytest.mark.parametrize("name", ["lib", "slurm", "scripts", "data", "early", "day", "old", "friendly"])
def test_any_other_directory_is_no_fault(name: str) -> None:
    told = judge_unknown(name, f"cron/{name}", FOLDER)
    assert told is not None
    assert (told.is_fault, told.reason) == (False, "it is not a drop-in directory")


@pytest.mark.parametrize(
    "name", ["Crontab", "crontab.txt", "crontab.conf", "cron_tab", "cron.tab", "crontabs", "cron.d"]
)
@pytest.mark.parametrize("mode", [FILE, FOLDER])
def test_another_name_for_the_crontab_is_a_fault(name: str, mode: int) -> None:
    told = judge_unknown(name, f"cron/{name}", mode)
    assert told is not None
    assert (told.is_fault, told.hint) == (True, "did you mean crontab?")


@pytest.mark.parametrize(("name", "mode"), [("backup", PROGRAM), ("x.slurm", FILE), ("x.sbatch", FILE)])
def test_a_file_outside_the_directories_is_a_fault(name: str, mode: int) -> None:
    told = judge_unknown(name, f"cron/{name}", mode)
    assert told is not None
    assert (told.is_fault, told.hint) == (True, f"move it, for instance: mv cron/{name} cron/cron.hourly/")


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("notes", FILE),
        ("README.md", FILE),
        ("*.slurm", FILE),
        ("crontab~", FILE),
        ("lost", None),
        ("fifo", stat.S_IFIFO | 0o755),
        ("hourly", FILE),
    ],
)
def test_anything_else_is_reported_and_no_fault(name: str, mode: int | None) -> None:
    told = judge_unknown(name, f"cron/{name}", mode)
    assert told is not None
    assert (told.is_fault, told.hint) == (False, "")
    assert told.reason.startswith(("it is neither", "it is a broken symbolic link"))


def test_hidden_files_are_not_reported() -> None:
    assert judge_unknown(".git", "cron/.git", FOLDER) is None
