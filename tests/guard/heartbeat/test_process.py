"""The process beside the ranks shows what is true, hurts nobody, and is gone when they are."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resilience.base.files import replace_file
from resilience.guard.heartbeat.beat import Progress, RankBeat
from resilience.guard.heartbeat.connection import socket_name
from resilience.guard.heartbeat.process import MOST_LINES, Files, refresh_directory
from resilience.guard.rank_info import RankInfo
from tests.guard.guarded import Launch, a_launch
from tests.guard.guards import make_run
from tests.guard.ranks import REPOSITORY, Node, a_node
from tests.lab.disks import fill, needs_fuse, small_disk
from tests.lab.hung import hung_directory
from tests.lab.waiting import until
from tests.system.people import NOBODY, needs_root


def shows(node: Node, rank: int, **fields: object) -> bool:
    told = node.beats().get("rank", {}).get(str(rank), {})
    return all(told.get(name) == value for name, value in fields.items())


def wait_for(node: Node, rank: int = 0, **fields: object) -> None:
    until(lambda: shows(node, rank, **fields))


def step_to(node: Node, rank: int, step: int) -> None:
    """Let a rank do its step, and wait until the beats show it."""
    node.ranks[rank].do(f"slot.words[0] = {step}")
    wait_for(node, rank, step=step)


@pytest.fixture
def launch(node: Node, tmp_path: Path) -> Iterator[Launch]:
    """Two ranks with whole guards, on the node; they may be killed as early as possible."""
    with a_launch(tmp_path / "launch", node.run, 2) as launch:
        yield launch


def test_the_first_steps_are_shown_at_once_whatever_the_interval(node: Node) -> None:
    for rank in range(2):
        node.start(rank, beat_s=1000.0)
    for rank in range(2):
        wait_for(node, rank, step=0)
    for rank in range(2):
        step_to(node, rank, 1)
    step_to(node, 0, 2)


def address_of(node: Node) -> list[Path]:
    return list((node.run / "agreement").glob("12-*"))


def wait_for_all(node: Node, launch: Launch) -> None:
    """Wait until all is as it is in the middle of a training."""
    launch.wait_for_steps()
    until(lambda: address_of(node) and len(node.beats().get("rank", {})) == 2)


def test_the_ranks_of_a_node_share_one_process_which_shows_them_all(node: Node) -> None:
    ranks = [node.start(rank, world=3) for rank in range(3)]
    for number, rank in enumerate(ranks):
        rank.do(f"slot.words[0] = {100 - number}")
        rank.do(f"slot.set_phase('phase {number}')")
    until(lambda: all(shows(node, number, step=100 - number, phase=f"phase {number}") for number in range(3)))
    told = node.beats()
    assert (told["attempt"], told["host"], told["step"]) == (3, "n1", 98)
    assert [told["rank"][str(number)]["pid"] for number in range(3)] == [rank.process.pid for rank in ranks]
    assert len(node.mirrors()) == 1


def test_ranks_may_come_in_any_order(node: Node) -> None:
    second = node.start(1)
    assert node.mirrors() == []
    node.start(0)
    second.do("slot.words[0] = 7")
    until(lambda: shows(node, 1, step=7) and shows(node, 0, step=0))


def test_nothing_but_the_beats_file_is_left_of_a_training_that_was_killed(node: Node) -> None:
    temporary = set(Path("/tmp").glob("*resil*")) | set(Path("/dev/shm").glob("*resil*"))
    ranks = [node.start(rank) for rank in range(2)]
    step_to(node, 0, 41)
    step_to(node, 1, 42)
    for rank in ranks:
        rank.do("slot.words[0] = 43")
    for rank in ranks:
        rank.process.kill()
    killed = time.monotonic()
    for rank in ranks:
        rank.process.wait()
    until(lambda: not node.mirrors(), timeout_s=15.0)
    assert time.monotonic() - killed < 20.0
    assert shows(node, 0, step=43, gone=True) and shows(node, 1, step=43, gone=True)
    assert {path.name for path in node.run.rglob("*") if path.is_file()} == {"12.n1", "12.progress.jsonl"}
    assert set(Path("/tmp").glob("*resil*")) | set(Path("/dev/shm").glob("*resil*")) <= temporary


def test_nothing_but_beats_and_journal_is_left_of_guards_with_an_agreement_that_were_killed(
    node: Node, launch: Launch
) -> None:
    shared = set(Path("/dev/shm").iterdir())
    wait_for_all(node, launch)
    until(lambda: not list((node.run / "beats").glob(".*")))
    launch.kill()
    until(lambda: not node.mirrors(), timeout_s=20.0)
    assert list((node.run / "agreement").iterdir()) == []
    left = {str(path.relative_to(node.run)) for path in node.run.rglob("*") if path.is_file()}
    assert left <= {f"journal/12.{whose}.jsonl" for whose in ("0", "1", "progress")} | {"beats/12.n1"}
    assert {path.name for path in launch.directory.iterdir()} <= {"stderr.0", "stderr.1", "steps.0", "steps.1"}
    assert {path for path in set(Path("/dev/shm").iterdir()) - shared if "resil" in path.name} == set()


def test_the_address_goes_however_early_all_ranks_are_killed(node: Node, launch: Launch) -> None:
    """The mirror process may just be starting: what the ranks told it is read nevertheless."""
    until(lambda: address_of(node))
    launch.kill()
    until(lambda: list((node.run / "agreement").iterdir()) == [])


def test_the_address_of_another_launch_under_the_same_name_is_left_alone(node: Node, launch: Launch) -> None:
    wait_for_all(node, launch)
    [file] = address_of(node)
    another = {**json.loads(file.read_text()), "pid": os.getpid(), "token": "another"}
    replace_file(file, json.dumps(another), mode=0o600)
    launch.kill()
    until(lambda: not node.mirrors(), timeout_s=20.0)
    assert json.loads(file.read_text()) == another


def test_as_long_as_a_rank_lives_the_address_stays(node: Node, launch: Launch) -> None:
    """Rank 0 may be started again, and the others have what they need until it is."""
    wait_for_all(node, launch)
    launch.kill(0)
    wait_for(node, 0, gone=True)
    assert len(list((node.run / "agreement").iterdir())) == 1
    launch.kill(1)
    until(lambda: not node.mirrors(), timeout_s=20.0)
    assert list((node.run / "agreement").iterdir()) == []


@pytest.mark.parametrize("killed", [0, 1], ids=["the one that started the mirror", "another"])
def test_a_rank_whose_process_is_gone_is_marked_and_the_others_go_on(node: Node, killed: int) -> None:
    ranks = [node.start(rank) for rank in range(2)]
    until(lambda: shows(node, 0, step=0) and shows(node, 1, step=0))
    ranks[killed].kill()
    wait_for(node, killed, gone=True)
    step_to(node, 1 - killed, 9)
    assert "gone" not in node.beats()["rank"][str(1 - killed)]


def test_a_rank_that_left_is_not_called_gone(node: Node) -> None:
    ranks = [node.start(rank) for rank in range(2)]
    wait_for(node, 1, step=0)
    ranks[1].leave()
    wait_for(node, 1, left=True)
    ranks[0].leave()
    until(lambda: not node.mirrors())
    assert shows(node, 0, left=True)
    assert all("gone" not in told for told in node.beats()["rank"].values())


@pytest.mark.parametrize(
    "hang",
    ["ctypes.PyDLL(None).sleep(1000)", "time.sleep(1000)", "os.kill(os.getpid(), 19)"],
    ids=["the GIL is held", "the main thread sleeps", "the process is stopped"],
)
def test_a_hang_shows_as_time_that_goes_on_while_the_step_stands_still(node: Node, hang: str) -> None:
    rank = node.start(0)
    step_to(node, 0, 5)
    rank.begin(hang)
    advanced = node.beats()["rank"]["0"]["advanced"]
    until(lambda: node.beats()["time"] > advanced + 1.0)
    assert shows(node, 0, step=5, advanced=advanced)


def test_signals_meant_for_the_training_do_not_reach_it_from_the_first_moment(node: Node) -> None:
    storm = (
        "import signal\nstart = connection.start_process\n"
        "def start_in_a_storm(*args):\n"
        "    pid = start(*args)\n"
        "    for _ in range(300):\n"
        "        for name in ('USR1', 'USR2', 'HUP', 'INT', 'TERM'):\n"
        "            os.kill(pid, getattr(signal, 'SIG' + name))\n"
        "        time.sleep(0.001)\n"
        "    return pid\n"
        "connection.start_process = start_in_a_storm"
    )
    rank = node.start(0, first=storm)
    step_to(node, 0, 3)
    assert rank.ask("writer._line._starts") == 1
    assert rank.said() == []


def test_it_holds_open_nothing_of_the_training(node: Node, tmp_path: Path) -> None:
    path = str(tmp_path / "pipe")
    rank = node.start(0, first=f"os.mkfifo({path!r}); os.set_inheritable(os.open({path!r}, os.O_RDWR), True)")
    wait_for(node, 0, step=0)
    [pid] = node.mirrors()
    opened = [str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()]
    assert opened.count("/dev/null") == 3
    assert {name.partition(":")[0] for name in opened} <= {"/dev/null", "socket", "anon_inode", "/memfd"}
    assert str(Path(f"/proc/{pid}/cwd").readlink()) == "/"
    assert rank.process.poll() is None


def test_a_reader_of_the_trainings_output_does_not_wait_for_it(node: Node) -> None:
    first = node.start(0)
    node.start(1)
    wait_for(node, 1, step=0)
    first.process.kill()
    assert first.process.stdout is not None
    assert first.process.stdout.read() == ""  # `| tee` ends
    assert len(node.mirrors()) == 1


def test_the_batch_shell_can_find_it_by_its_environment(node: Node) -> None:
    node.start(0)
    wait_for(node, 0, step=0)
    [pid] = node.mirrors()
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert {b"RESIL_ATTEMPT=3", b"SLURM_JOB_ID=12", f"RESIL_RUN_DIR={node.run}".encode()} <= set(words)


def test_it_is_small_and_quiet(node: Node) -> None:
    for rank in range(4):
        node.start(rank, world=4, beat_s=1.0)
    until(lambda: len(node.beats().get("rank", {})) == 4)
    [pid] = node.mirrors()

    def cpu_s() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before, began = cpu_s(), time.monotonic()
    time.sleep(3.0)
    assert (cpu_s() - before) / (time.monotonic() - began) < 0.02
    status = Path(f"/proc/{pid}/status").read_text()
    assert int(status.partition("VmHWM:")[2].split()[0]) <= 15 * 1024


def test_a_mirror_that_was_killed_is_started_again(node: Node) -> None:
    ranks = [node.start(rank) for rank in range(2)]
    wait_for(node, 1, step=0)
    [pid] = node.mirrors()
    os.kill(pid, signal.SIGKILL)
    for rank in range(2):
        step_to(node, rank, 8)
    assert len(node.mirrors()) == 1 and node.mirrors() != [pid]
    assert ranks[0].said() == []


def test_a_worker_that_outlives_its_rank_does_not_keep_it_alive(node: Node) -> None:
    rank = node.start(0, first="os.register_at_fork(after_in_child=lambda: None)")
    wait_for(node, 0, step=0)
    worker = rank.ask("[os.getpid(), os.fork()][1] or time.sleep(30) or os._exit(0)")
    rank.process.kill()
    rank.process.wait()
    try:
        until(lambda: not node.mirrors(), timeout_s=20.0)
        assert shows(node, 0, gone=True)
        os.kill(worker, 0)  # it still lives, and holds a copy of the rank's socket
    finally:
        os.kill(worker, signal.SIGKILL)


def test_a_forked_child_that_forgets_does_not_say_good_bye_for_its_parent(node: Node) -> None:
    rank = node.start(0)
    wait_for(node, 0, step=0)
    child = "writer.after_fork_in_child(), slot.words.__setitem__(0, 99), os._exit(0)"
    rank.do(f"pid = os.fork(); pid or ({child}); os.waitpid(pid, 0)")
    step_to(node, 0, 4)
    assert "left" not in node.beats()["rank"]["0"]


def test_what_is_out_of_the_routine_on_another_rank_is_written_for_it(node: Node) -> None:
    node.start(0)
    second = node.start(1)
    second.do("recorder.event('start'); recorder.event('phase', phase='train'); recorder.event('save')")
    second.do("recorder.event('request', trigger='host_memory', why='95 %'); recorder.warn('odd')")
    second.do("recorder.event('error', error=float('nan'))")
    until(lambda: len(node.journal(1)) == 3)
    assert [line["event"] for line in node.journal(1)] == ["request", "warning", "error"]
    assert node.journal(1)[2]["error"] == "nan"
    assert all(line["rank"] == 1 for line in node.journal(1))


def ask_for_stacks(node: Node) -> None:
    """As the batch shell does."""
    (node.run / "switches" / "stacks.12").unlink(missing_ok=True)
    (node.run / "switches" / "stacks.12").touch()


@pytest.mark.parametrize("hang", ["time", "ctypes.PyDLL(None)"], ids=["waits", "holds the GIL"])
def test_every_rank_writes_its_stacks_when_the_batch_shell_asks_for_them(node: Node, hang: str) -> None:
    first = f"def collective():\n    while True: {hang}.sleep(1000)"  # which a signal ends, in C
    ranks = [node.start(rank, first=first) for rank in range(2)]
    files = [node.run / "journal" / f"12.{rank}.stacks" for rank in range(2)]

    def written() -> list[int]:
        return [file.read_text().count("in collective") if file.exists() else 0 for file in files]

    for rank in ranks:
        rank.begin("collective()")
    until(lambda: len(node.beats().get("rank", {})) == 2)
    for times in (1, 2):
        ask_for_stacks(node)
        until(lambda times=times: written() == [times] * 2)  # type: ignore[misc]
    assert [file.read_text().split()[3].rstrip(":") for file in files] == [str(rank.process.pid) for rank in ranks]


def test_a_stopped_rank_is_said_not_to_answer(node: Node) -> None:
    rank = node.start(0)
    until(lambda: node.beats().get("rank"))
    rank.process.send_signal(signal.SIGSTOP)
    try:
        ask_for_stacks(node)
        file = node.run / "journal" / "12.0.stacks"
        until(lambda: file.exists() and "it did not answer" in file.read_text())
    finally:
        rank.process.send_signal(signal.SIGCONT)


def test_a_signal_that_the_training_uses_itself_is_left_to_it(node: Node) -> None:
    rank = node.start(0, first="import signal; signal.signal(signal.SIGRTMIN + 9, lambda *_: None)")
    assert rank.ask("writer.stacks.signal") == 0
    until(lambda: node.beats().get("rank"))
    ask_for_stacks(node)
    rank.do("time.sleep(0.5)")
    assert rank.ask("1 + 1") == 2, "it lives"


def test_the_address_of_rank_0_is_handed_over_and_only_a_private_file_is_believed(node: Node) -> None:
    node.start(0)
    second = node.start(1)
    locate = "(lambda a: a and [a.host, a.port, a.token])(writer.locate())"
    assert second.ask(locate) is None
    file = node.address_file()
    file.write_text('{"host": "10.0.0.1", "port": 4711, "token": "abc"}')
    file.chmod(0o644)
    until(lambda: second.ask("writer._line._is_welcome"))
    assert second.ask(locate) is None
    file.chmod(0o600)
    assert second.ask(locate) == ["10.0.0.1", 4711, "abc"]
    file.write_text("{")
    assert second.ask(locate) is None


def test_where_an_address_is_missing_the_directory_is_written_to_so_that_nfs_looks_again(node: Node) -> None:
    node.start(0)
    second = node.start(1)
    directory = node.run / "agreement"
    until(lambda: second.ask("writer.locate()") is None and directory.exists())
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    until(lambda: not list(directory.iterdir()))


@pytest.mark.parametrize(("directory", "file"), [(0o700, 0o600), (0o2770, 0o660)])
def test_the_beat_has_the_runs_mode(node: Node, directory: int, file: int) -> None:
    node.run.chmod(directory)
    node.start(0)
    until(lambda: node.beats())
    assert stat.S_IMODE((node.run / "beats" / "12.n1").stat().st_mode) == file


def test_a_full_disk_costs_one_warning_and_the_beat_comes_back(tmp_path: Path) -> None:
    with small_disk(tmp_path / "demo") as run, a_node(make_run(run)) as node:
        no_journal = "m.RunDirectoryWriter._write_lines = lambda self: False"
        rank = node.start(0, first=f"from resilience.guard.heartbeat import run_directory as m; {no_journal}")
        until(lambda: node.beats())
        ballast = fill(run)
        until(lambda: rank.said())
        rank.do("slot.words[0] = 6")
        time.sleep(0.5)  # several beats that fail
        assert len(rank.said()) == 1 and "No space left" in rank.said()[0]
        assert node.beats()["step"] == 0
        assert not list((run / "beats").glob(".*"))
        ballast.unlink()
        until(lambda: node.beats()["step"] == 6)


def test_a_run_directory_that_goes_and_comes_back_is_not_made_anew_by_us(node: Node) -> None:
    rank = node.start(0)
    until(lambda: node.beats())
    away = node.run.with_name("away")
    node.run.rename(away)
    rank.do("slot.words[0] = 6")
    rank.do("recorder.event('save', step=6)")
    until(lambda: rank.said())
    assert not node.run.exists()
    away.rename(node.run)
    until(lambda: node.beats().get("step") == 6 and node.journal(0))
    assert "save" in [line["event"] for line in node.journal(0)]


@needs_fuse
def test_a_dead_file_system_neither_holds_the_ranks_nor_keeps_the_process_alive(tmp_path: Path) -> None:
    with hung_directory(tmp_path / "hung") as run, a_node(run) as node:
        first = "import threading; threading.Thread.start = lambda self: None"  # no work(): its file access would hang
        ranks = [node.start(rank, first=first) for rank in range(2)]
        until(lambda: ranks[1].ask("writer._line.maintain() or writer._line._is_welcome"))
        began = time.monotonic()
        assert ranks[1].ask("writer.locate()") is None
        assert time.monotonic() - began < 20.0
        assert len(node.mirrors()) == 1
        for rank in ranks:
            rank.process.kill()
        until(lambda: not node.mirrors(), timeout_s=20.0)


@needs_fuse
def test_a_dead_file_system_is_reported_to_one_rank_once(tmp_path: Path) -> None:
    with hung_directory(tmp_path / "hung") as run, a_node(run) as node:
        first = (
            "import threading; threading.Thread.start = lambda self: None\n"
            "connection.PROGRAM = connection.PROGRAM.replace("
            "'main(', 'import resilience.guard.heartbeat.process as m; m.HUNG_S = 0.2; main(', 1)"
        )
        rank = node.start(0, first=first)
        until(lambda: rank.ask("writer._line.maintain()") or rank.said())
        assert "no answer for 0.2 s" in rank.said()[0] and "The training continues" in rank.said()[0]
        time.sleep(0.5)
        rank.do("writer._line.maintain()")
        assert len(rank.said()) == 1


def socket_name_of(run: Path) -> bytes:
    meeting = f"12-{run.parent.name}"
    return socket_name(RankInfo(run_dir=str(run), job_id="12", attempt=3, host="n1", launch_id=meeting))


@needs_root
def test_another_user_can_neither_serve_nor_be_served(run: Path) -> None:
    name = socket_name_of(run)
    squat = (
        "import os, socket, sys, time\nos.setgid(65534); os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        f"s.{{}}({name!r})\n{{}}"
    )
    assert NOBODY == 65534
    squatter = subprocess.Popen(
        [sys.executable, "-c", squat.format("bind", "s.listen(9); print(1, flush=True); time.sleep(100)")],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert squatter.stdout is not None
    try:
        squatter.stdout.readline()
        with a_node(run) as node:
            rank = node.start(0, first="connection.CONNECT_S = 0.5")
            until(lambda: rank.said())
            assert "belongs to user 65534" in rank.said()[0] and "writes the heartbeat itself" in rank.said()[0]
            rank.do("slot.words[0] = 2")
            wait_for(node, 0, step=2)
            assert node.mirrors() == []
    finally:
        squatter.kill()
        squatter.wait()
        squatter.stdout.close()
    with a_node(run) as node:
        node.start(0)
        until(lambda: node.mirrors())
        talk = "print(s.recv(100))"
        stranger = subprocess.run(
            [sys.executable, "-c", squat.format("connect", talk)], capture_output=True, text=True, timeout=30
        )
        assert stranger.stdout == "b''\n" or "ConnectionReset" in stranger.stderr


def test_garbage_costs_its_sender_the_connection_and_nobody_else(node: Node) -> None:
    node.start(0)
    wait_for(node, 0, step=0)
    name = socket_name_of(node.run)
    for packet in (b"{", b"[]", b"5", b"\xff" * 1000, b'{"hello": 3}', b'{"bye": 1}', b'{"journal": "x"}', b"[" * 5000):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sender:
            sender.connect(name)
            sender.send(packet)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sender, open("/dev/null") as no_memory:
        sender.connect(name)
        socket.send_fds(sender, [b'{"hello": 1, "pid": 5}'], [no_memory.fileno()])
    step_to(node, 0, 6)
    assert list(node.beats()["rank"]) == ["0"]


def test_it_ends_when_no_rank_ever_comes() -> None:
    program = (
        "import json, socket, sys; from resilience.guard.heartbeat import process as m\n"
        "m.FIRST_RANK_S = 0.2\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "s.bind(b'\\0resil-test-' + m.os.urandom(8).hex().encode())\n"
        "order = {'beat_s': 0.1, 'run_dir': '/nonexistent', 'job_id': '1', 'attempt': 1, 'host': 'n1'}\n"
        "s.listen(1); m.WriterProcess(s, order).serve()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=20, cwd=REPOSITORY)


@pytest.fixture
def files(run: Path) -> Iterator[Files]:
    files = make_files(run)
    yield files
    files.finish(20.0)


def make_files(run: Path, beat_s: float = 0.05) -> Files:
    address = str(run / "agreement" / "12")
    return Files(
        {"run_dir": str(run), "job_id": "12", "attempt": 3, "host": "n1", "beat_s": beat_s, "address": address}
    )


def beats(run: Path) -> dict[str, Any]:
    return tomllib.loads((run / "beats" / "12.n1").read_text())


def test_a_rank_is_shown_soon_after_it_came_and_nothing_before(files: Files, run: Path) -> None:
    assert not list((run / "beats").iterdir())
    files.admit(0, RankBeat(77, Progress(5.0)))
    until((run / "beats" / "12.n1").exists)
    assert beats(run)["rank"]["0"]["pid"] == 77


def test_what_a_killed_mirror_left_beside_the_beats_is_removed(files: Files, run: Path) -> None:
    (run / "beats" / ".12.n1.abc.tmp").touch()
    os.utime(run / "beats" / ".12.n1.abc.tmp", (1000.0, 1000.0))
    files.admit(0, RankBeat(77, Progress(5.0)))
    until(lambda: [path.name for path in (run / "beats").iterdir()] == ["12.n1"])


def test_lines_wait_for_the_run_directory_in_bounded_number(files: Files, run: Path) -> None:
    shutil.rmtree(run)
    for number in range(MOST_LINES + 10):
        files.add_line(1, json.dumps({"number": number}).encode() + b"\n")
    files.add_line(2, b"{}\n")
    until(lambda: files.writer.error)
    assert "No such file" in files.writer.error and str(run) in files.writer.error
    make_run(run)
    files.add_line(2, b"{}\n")
    until(lambda: not files.writer.error)
    until(lambda: (run / "journal" / "12.2.jsonl").exists())
    numbers = [json.loads(line)["number"] for line in (run / "journal" / "12.1.jsonl").read_text().splitlines()]
    assert numbers == list(range(10, MOST_LINES + 10))
    assert (run / "journal" / "12.2.jsonl").read_text() == "{}\n{}\n"


def test_the_last_words_are_written_before_the_end(run: Path) -> None:
    files = make_files(run, beat_s=1000.0)
    progress = Progress(5.0)
    files.admit(0, RankBeat(77, progress))
    until((run / "beats" / "12.n1").exists)
    progress.update((41, 0, "train"), 6.0)
    files.add_line(0, b"{}\n")
    files.finish(20.0)
    assert beats(run)["step"] == 41
    assert (run / "journal" / "12.0.jsonl").read_text() == "{}\n"


def test_every_asker_hears_the_address_or_that_there_is_none(files: Files, run: Path) -> None:
    heard: list[list[Any]] = [[], []]
    files.query(0, "address", heard[0].append)
    until(lambda: heard[0] == [{"address": None}])
    refresh_directory(str(run / "agreement" / "12"))
    file = run / "agreement" / "12"
    file.touch(mode=0o600)
    file.write_text("told")
    for answers in heard:
        files.query(0, "address", answers.append)
    until(lambda: all(answers[-1:] == [{"address": "told"}] for answers in heard))


def test_a_rank_hears_what_it_had_learned_and_no_other(files: Files, run: Path) -> None:
    heard: list[list[Any]] = [[], []]
    files.keep_learned(1, "{}\n")
    until((run / "learned" / "1.json").exists)
    for rank, answers in enumerate(heard):
        files.query(rank, "learned", answers.append)
    until(lambda: heard == [[{"learned": None}], [{"learned": "{}\n"}]])


def test_looking_again_makes_only_the_one_directory_and_leaves_no_file(run: Path) -> None:
    refresh_directory(str(run / "gone" / "deeper" / "file"))
    assert not (run / "gone").exists()
    refresh_directory(str(run / "agreement" / "12"))
    assert list((run / "agreement").iterdir()) == []


def test_the_windows_of_a_rank_are_shown(node: Node) -> None:
    """A step, four looks and one of them inside a collective every 10 ms."""
    training = (
        "slot.set_phase('train')\nfor n in range(10_000):\n    slot.words[0] = n\n    time.sleep(0.01)\n"
        "    for look in range(4): slot.note_look((n, look == 0), time.time())"
    )
    node.start(0, first=f"def train():\n    exec({training!r}, globals())").begin("train()")
    until(lambda: len(node.beats().get("rank", {}).get("0", {}).get("windows", [])) >= 3)
    for end, length, steps, looks, inside, seconds in node.beats()["rank"]["0"]["windows"]:
        assert end % length == 0 and seconds > 0.1
        # The words of a window are read one after the other, and the rank goes on meanwhile: a busy machine adds steps.
        assert looks == pytest.approx(4 * steps, rel=0.5) and inside == pytest.approx(looks / 4, rel=0.5)
