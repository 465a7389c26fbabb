"""What lies beside the crontab and the directories of drop-ins is told; a slip of the finger is a fault."""

from __future__ import annotations

import stat

import pytest

from resilience.cron.table.strangers import judge_unknown

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
    assert (told.is_fault, told.reason) == (False, "it is a directory that nothing runs from")


@pytest.mark.parametrize(
    "name", ["Crontab", "crontab.txt", "crontab.conf", "cron_tab", "cron.tab", "crontabs", "cron.d"]
)
@pytest.mark.parametrize("mode", [FILE, FOLDER])
def test_another_name_for_the_crontab_is_a_fault(name: str, mode: int) -> None:
    told = judge_unknown(name, f"cron/{name}", mode)
    assert told is not None
    assert (told.is_fault, told.hint) == (True, "did you mean crontab?")


@pytest.mark.parametrize(("name", "mode"), [("backup", PROGRAM), ("x.slurm", FILE), ("x.sbatch", FILE)])
def test_what_was_dropped_beside_the_directories_is_a_fault(name: str, mode: int) -> None:
    told = judge_unknown(name, f"cron/{name}", mode)
    assert told is not None
    assert (told.is_fault, told.hint) == (True, f"move it, for instance: mv cron/{name} cron/cron.hourly/")


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("notes", FILE),
        ("*.slurm", FILE),
        ("crontab~", FILE),
        ("lost", None),
        ("fifo", stat.S_IFIFO | 0o755),
        ("hourly", FILE),
    ],
)
def test_anything_else_is_told_and_no_fault(name: str, mode: int | None) -> None:
    told = judge_unknown(name, f"cron/{name}", mode)
    assert told is not None
    assert (told.is_fault, told.hint) == (False, "")
    assert told.reason.startswith("it is nothing that runs")


def test_what_is_hidden_is_not_spoken_of() -> None:
    assert judge_unknown(".git", "cron/.git", FOLDER) is None
