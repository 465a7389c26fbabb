"""What `resil cron remove` takes away, and that it takes nothing else."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from resilience.cron.edit import NewEntry, add, remove
from resilience.cron.project import CronProject, open_cron
from resilience.errors import ResilError, UsageError
from resilience.settings.cron_settings import CronSettings
from tests.lab.fakes import make_project

CRONTAB = """\
# My table. Do not lose this.
MAILTO=ada@example.org

# Tea
# resil: timeout=5m
0 8 * * *  /bin/true tea  # resil: name=tea
# resil: name=coffee rerun
0 9 * * *  /bin/true coffee
*/5 * * * *  /bin/true same
*/5 * * * *  /bin/true same
# The end, without a newline"""


@pytest.fixture
def cron(tmp_path: Path) -> CronProject:
    made = open_cron(make_project(tmp_path, environ={"PATH": os.environ["PATH"]}))
    made.directory.mkdir()
    for directory in (made.directory, made.directory.parent):
        directory.chmod(0o755)
    (made.directory / "crontab").write_text(CRONTAB)
    (made.directory / "crontab").chmod(0o644)
    return made


def text(cron: CronProject) -> str:
    return (cron.directory / "crontab").read_text()


def names(cron: CronProject) -> list[str]:
    return [entry.name for entry in cron.read_table().entries]


def test_only_that_line_goes_with_the_options_that_stand_above_it(cron: CronProject) -> None:
    (gone,) = remove(cron, ["tea"])
    assert text(cron) == CRONTAB.replace("# resil: timeout=5m\n0 8 * * *  /bin/true tea  # resil: name=tea\n", ""), (
        "its options would have been the next line's"
    )
    assert gone.place == "cron/crontab:6" and "tea" in gone.text
    assert "crontab/coffee" in names(cron) and "crontab/tea" not in names(cron)


def test_lines_written_by_add_are_removed_completely(cron: CronProject) -> None:
    before = text(cron)
    add(cron, NewEntry(name="probe", command=("true",), schedule="@hourly"))
    remove(cron, ["crontab/probe"])
    assert text(cron) == before + "\n", "as it was, but for the newline that was missing"


def test_of_two_lines_that_are_the_same_one_goes(cron: CronProject) -> None:
    first, second = [name for name in names(cron) if name not in ("crontab/tea", "crontab/coffee")]
    remove(cron, [first])
    assert text(cron).count("/bin/true same") == 1 and first in names(cron) and second not in names(cron)


def test_several_go_in_one_call_though_their_lines_move(cron: CronProject) -> None:
    remove(cron, ["tea", "coffee", "tea"])
    assert "coffee" not in text(cron) and "tea " not in text(cron).lower().replace("# tea", "")
    assert text(cron).startswith("# My table. Do not lose this.\nMAILTO=ada@example.org\n\n# Tea\n*/5")


def test_windows_line_ends_stay(cron: CronProject) -> None:
    raw = CRONTAB.replace("\n", "\r\n").encode()
    (cron.directory / "crontab").write_bytes(raw)
    remove(cron, ["coffee"])
    left = (cron.directory / "crontab").read_bytes()
    assert left == raw.replace(b"# resil: name=coffee rerun\r\n0 9 * * *  /bin/true coffee\r\n", b"")


def test_a_drop_in_goes_and_of_a_link_the_link_alone(cron: CronProject) -> None:
    directory = cron.directory / "cron.hourly"
    directory.mkdir(mode=0o755)
    real = cron.directory.parent / "real"
    real.write_text("#!/bin/sh\n")
    real.chmod(0o755)
    (directory / "linked").symlink_to(real)
    (directory / "plain").write_text("#!/bin/sh\n")
    (directory / "plain").chmod(0o755)
    linked, plain = remove(cron, ["linked", "cron.hourly/plain"])
    assert real.exists() and not list(directory.iterdir())
    assert linked.is_link and linked.text == str(real) and not plain.is_link


def test_an_unknown_name_removes_nothing_not_even_the_known_ones(cron: CronProject) -> None:
    with pytest.raises(UsageError) as raised:
        remove(cron, ["tea", "cofee"])
    assert raised.value.hint == "did you mean crontab/coffee?" and text(cron) == CRONTAB


def test_an_ignored_file_is_reported_as_such(cron: CronProject) -> None:
    directory = cron.directory / "cron.hourly"
    directory.mkdir(mode=0o755)
    (directory / "draft").write_text("#!/bin/sh\n")
    with pytest.raises(UsageError, match="is not an entry") as raised:
        remove(cron, ["cron.hourly/draft"])
    assert "rm " in raised.value.hint and (directory / "draft").exists()
    (cron.directory / "crontab").write_text("61 * * * * /bin/true\n")
    with pytest.raises(UsageError, match="is not an entry") as raised:
        remove(cron, ["crontab:1"])
    assert "rm " not in raised.value.hint, "a line is no file"


def test_a_line_that_moved_meanwhile_costs_no_other_line(cron: CronProject, monkeypatch: pytest.MonkeyPatch) -> None:
    from resilience.cron import edit as cron_remove

    edited = "# one more line above all\n" + CRONTAB

    def read(path: Path) -> bytes:
        path.write_text(edited)
        return edited.encode()

    monkeypatch.setattr(cron_remove, "read_crontab", read)
    remove(cron, ["coffee"])
    assert text(cron) == edited.replace("# resil: name=coffee rerun\n0 9 * * *  /bin/true coffee\n", "")


def test_a_line_that_is_gone_meanwhile_costs_no_other_line(cron: CronProject, monkeypatch: pytest.MonkeyPatch) -> None:
    from resilience.cron import edit as cron_remove

    monkeypatch.setattr(cron_remove, "read_crontab", lambda path: b"0 8 * * *  /bin/true other\n")
    with pytest.raises(ResilError, match="another process removed it"):
        remove(cron, ["coffee"])
    assert text(cron) == CRONTAB


def test_an_entry_that_a_setting_defines_stays(cron: CronProject) -> None:
    with pytest.raises(UsageError, match="is defined by") as raised:
        remove(replace(cron, settings=CronSettings(digest_at="08:00")), ["digest"])
    assert "resil.toml" in raised.value.hint and text(cron) == CRONTAB


def test_a_dry_run_removes_nothing(cron: CronProject) -> None:
    (gone,) = remove(cron, ["tea"], dry_run=True)
    assert "tea" in gone.text and text(cron) == CRONTAB
