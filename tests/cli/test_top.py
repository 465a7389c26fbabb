"""`--top` as people see it: a table, what the figures are worth, and never a traceback."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from resilience.cli.show_top import age, bar, shortened, show_top
from resilience.watch.scan import scan
from resilience.watch.scan.scan import Progress
from resilience.watch.scan.tree import Record
from resilience.watch.scan.worker import Worker
from tests.lab.fakes import NOW, FakeClock, make_project
from tests.lab.hung import hung_directory as hung_disk
from tests.lab.shell import SETTINGS, Shell
from tests.system.people import NOBODY, acting_as, needs_root, open_the_way
from tests.watch.scan.trees import a_tree, du, settle, write

DAY = 86400


def top(directory: Path, *paths: str | Path, clock: FakeClock | None = None, **options: object) -> int:
    """Run it with a clock set by hand."""
    project = make_project(directory, clock=clock or FakeClock())
    given = {"limit": 10, "deadline_s": None, "as_json": False, "by": "bytes", **options}
    return show_top(project, tuple(map(str, paths)), **given)  # type: ignore[arg-type]


def test_the_largest_and_the_fastest_growing_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "tree"
    write(root / "runs" / "gpt" / "checkpoint-100" / "model.safetensors", 2**20)
    write(root / "runs" / "gpt" / "logs" / "train.log", 2**16)
    write(root / "data" / "shard", 2**19)
    settle(root)
    for file in root.rglob("*.*"):
        os.utime(file, (NOW - 2 * DAY, NOW - 2 * DAY))
    assert top(tmp_path, root, clock=FakeClock(NOW - DAY / 2)) == 0
    first = capsys.readouterr()
    assert "growth: unknown until the next scan" in first.out
    assert "FASTEST" not in first.out
    write(root / "runs" / "gpt" / "checkpoint-200" / "model.safetensors", 2**21)
    os.utime(root / "runs" / "gpt" / "checkpoint-200" / "model.safetensors", (NOW - 60, NOW - 60))
    assert top(tmp_path, root) == 0
    said = capsys.readouterr()
    assert said.err == ""  # no progress bar where nobody looks
    lines = [re.split(r"\s{2,}", line.strip()) for line in said.out.splitlines()]
    assert ["SIZE", "SHARE", "FILES", "GREW", "PER DAY", "NEWEST", "DIRECTORY"] in lines
    assert ["2.0 MiB", "56%", "1", "+2.0 MiB", "+4.0 MiB", "1 min ago", "runs/gpt/checkpoint-200"] in lines
    assert ["1.0 MiB", "28%", "1", "0 B", "0 B", "2 d ago", "runs/gpt/checkpoint-100"] in lines
    assert "checkpoints: 3.0 MiB in 2 directories" in said.out
    assert "growth: since the scan of 12 h ago" in said.out
    assert "not looked at" not in said.out


def test_an_old_file_that_grew_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = a_tree(tmp_path / "tree")
    assert top(tmp_path, root, clock=FakeClock(NOW - DAY / 2)) == 0
    with open(root / "t2" / "s3" / "f1", "ab") as file:
        file.write(bytes(3 * 2**20))
    capsys.readouterr()
    assert top(tmp_path, root) == 0
    said = capsys.readouterr().out
    assert re.search(r"FASTEST GROWING by bytes\n.*\n.*\+3.0 MiB .* t2/s3\n", said)


def test_growth_that_cannot_be_known_is_not_denied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "SMALL", -1)  # this tree stands for a large one
    root = a_tree(tmp_path / "tree", tops=5, subs=20, files=30)
    for number in range(1000):
        write(root / "other" / str(number % 20) / str(number), 20_000)
    settle(root)
    assert top(tmp_path, root, clock=FakeClock(NOW - DAY / 2)) == 0
    for path in root.glob("t*/s*/f*"):
        with path.open("ab") as file:
            file.write(bytes(10_000))
    settle(root)
    capsys.readouterr()
    assert top(tmp_path, root) == 0
    said = capsys.readouterr().out
    if "FASTEST" not in said:
        assert "growth: none found since" in said
    assert "nothing grew" not in said
    assert re.search(r"not looked at: [\d,]+ of 4,000 files, in directories where no file was added or removed", said)
    assert "--fresh reads all now" in said
    assert top(tmp_path, root, fresh=True) == 0
    said = capsys.readouterr().out
    assert "not looked at" not in said
    assert re.search(r"FASTEST GROWING by bytes\n.*\n.*\+", said)


def test_the_totals_are_those_of_du(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = a_tree(tmp_path / "tree")
    assert top(tmp_path, root, as_json=True) == 0
    (directory,) = json.loads(capsys.readouterr().out)["folders"]
    assert directory["bytes"] == du(root) * 1024
    assert (directory["files"], directory["folders"], directory["complete"]) == (60, 25, True)
    for row in directory["largest"]:
        assert row["bytes"] == du(Path(row["path"])) * 1024


def test_without_paths_it_is_the_project_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert top(tmp_path) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'project'}: ")


def test_one_directory_that_cannot_be_looked_at_keeps_nobody_from_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = a_tree(tmp_path / "tree")
    file = write(tmp_path / "file")
    assert top(tmp_path, tmp_path / "missing", file, root) == 3
    said = capsys.readouterr().out
    assert f"{tmp_path / 'missing'}: could not be scanned: does not exist" in said
    assert f"{file}: could not be scanned: is a file, not a directory" in said
    assert "60 files" in said


def test_a_deadline_that_was_too_short_is_said_plainly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = a_tree(tmp_path / "tree", tops=24, subs=2, files=1)

    def crawl(worker: Worker, path: bytes) -> Record:
        if path and b"/" not in path:
            time.sleep(0.3)
        return read(worker, path)

    read = Worker.read
    with monkeypatch.context() as patch:
        patch.setattr(Worker, "read", crawl)
        assert top(tmp_path, root, deadline_s=0.9) == 0
    said = capsys.readouterr().out
    assert re.search(
        r"! \d+ of \d+ directories unfinished \(the deadline\): the figures are lower bounds; run the command again",
        said,
    )
    assert "at least" in said
    assert top(tmp_path, root) == 0
    again = capsys.readouterr().out
    assert "unfinished" not in again
    assert "48 files" in again


@needs_root
def test_directories_that_may_not_be_read_are_counted_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = a_tree(tmp_path / "tree")
    (root / "t2").chmod(0o700)
    open_the_way(root / "t0")
    project = make_project(tmp_path)
    with acting_as(NOBODY):
        assert show_top(project, (str(root),), limit=5, deadline_s=None, as_json=False, by="bytes") == 0
    said = capsys.readouterr().out
    assert "! 1 directory could not be read (Permission denied), their contents are not counted: t2" in said
    assert "the next scan starts from scratch" in said  # the cache could not be written either


def test_hostile_names_do_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "tree"
    write(root / "x\x1b[2J\x9b\r\u202e\n" / "file")
    write(root / os.fsdecode(b"caf\xe9") / "file")
    assert top(tmp_path, root) == 0
    said = capsys.readouterr().out
    assert not set("\x1b\x9b\r\u202e") & set(said)
    assert "caf?" in said
    assert top(tmp_path, root, as_json=True) == 0
    rows = json.loads(capsys.readouterr().out)["folders"][0]["largest"]
    assert any(os.fsencode(row["path"]).endswith(b"caf\xe9") for row in rows)


@pytest.mark.parametrize(
    ("progress", "wanted"),
    [
        (Progress(25, 1000, 0), "25 directories, 1,000 stat calls, 3 s: /scratch"),
        (Progress(50, 10, 100), "[############............] 50 of about 100 directories, 10 stat calls, 3 s: /scratch"),
        (Progress(150, 10, 100), f"[{'#' * 24}] 150 of about 100 directories, 10 stat calls, 3 s: /scratch"),
    ],
)
def test_the_bar_shows_how_far_it_is_where_that_is_known(progress: Progress, wanted: str) -> None:
    assert bar(progress, 3.2, "/scratch") == wanted


@pytest.mark.parametrize(
    ("ago_s", "wanted"), [(0, "0 s ago"), (90, "1 min ago"), (2.5 * DAY, "2 d ago"), (-3600, "in the future")]
)
def test_the_newest_change_is_told_in_one_unit(ago_s: float, wanted: str) -> None:
    assert age(int(NOW - ago_s), NOW) == wanted


def test_the_command_line_leads_here(shell: Shell) -> None:
    write(shell.directory / "runs" / "file")
    settle(shell.directory / "runs")
    said = shell.resil("watch", "fs", "--top", "runs", "--json")
    assert said.code == 0
    assert said.json["folders"][0]["files"] == 1
    by_count = shell.resil("watch", "inodes", "--top", "--limit", "3")
    assert by_count.code == 0
    assert "LARGEST by inodes" in by_count.out


PROGRAM = """
import sys, time
from pathlib import Path
from resilience.watch.scan import worker
read = worker.Worker.read
def slowly(self, path):
    time.sleep(0.05)
    return read(self, path)
worker.Worker.read = slowly
from resilience.cli.entry import run
sys.exit(run(["watch", "fs", "--top", sys.argv[1]]))
"""


def test_on_a_terminal_a_line_tells_how_far_it_has_come_and_ctrl_c_shows_what_is_known(tmp_path: Path) -> None:
    root = a_tree(tmp_path / "tree", tops=10, subs=20, files=1)
    (tmp_path / "resil.toml").write_text('[run]\nname = "gpt"\n')
    mine, theirs = pty.openpty()
    env = {**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "TERM": "xterm"}
    env["PYTHONPATH"] = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, root], stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, env=env,
        cwd=tmp_path, start_new_session=True, preexec_fn=lambda: __import__("fcntl").ioctl(0, 0x540E, 0),
    ) as process:  # fmt: skip
        os.close(theirs)
        seen = b""
        while seen.count(b"directories") < 3:
            seen += os.read(mine, 4096)
        os.write(mine, b"\x03")  # the terminal sends SIGINT to the foreground process group
        assert process.stdout is not None
        said = process.stdout.read().decode()
        code = process.wait(20)
    os.close(mine)
    assert b"stat calls" in seen
    assert code == 130
    assert "unfinished (interrupted)" in said
    assert list((tmp_path / "cache" / "resil" / "scan").glob("*.scan"))


@pytest.mark.parametrize(("end", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_scan_that_a_signal_ends_prints_what_is_known_and_exits_with_its_number(
    tmp_path: Path, end: signal.Signals, code: int
) -> None:
    root = a_tree(tmp_path / "tree", tops=10, subs=20, files=1)
    env = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    program = f"import sys\nsys.stderr.isatty = lambda: True\n{PROGRAM}"
    with subprocess.Popen(
        [sys.executable, "-c", program, root], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=tmp_path
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stderr.read(1)  # the line of progress
        process.send_signal(end)
        said = process.communicate(timeout=30)[0].decode()
    assert process.returncode == code and "unfinished (interrupted)" in said


def test_a_directory_that_hangs_is_reported_after_the_deadline_of_the_settings(shell: Shell) -> None:
    shell.settings(f"{SETTINGS}[watch]\ndeadline_s = 1\n")
    with hung_disk(shell.directory / "dead"):
        began = time.monotonic()
        said = shell.resil("watch", "fs", "--top", "dead")
        assert time.monotonic() - began < 20
    assert said.code == 3 and "could not be scanned: no response" in said.out


def test_of_a_path_that_fills_screens_both_ends_are_shown() -> None:
    assert shortened("runs/gpt/checkpoints") == "runs/gpt/checkpoints"
    text = shortened("begin/" + "x/" * 3000 + "end")
    assert text.startswith("begin/x/") and text.endswith("/x/end") and len(text) < 200
