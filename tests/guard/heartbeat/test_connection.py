"""A rank that finds no mirror process does without, and says so once; the name of the socket keeps launches apart."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from resilience.guard.heartbeat.connection import socket_name
from resilience.guard.rank_info import RankInfo
from tests.guard.ranks import Node
from tests.lab.waiting import until


def test_every_launch_on_every_node_has_a_name_of_its_own() -> None:
    places = [
        RankInfo(run_dir="/s/demo", host="n1", launch_id="12-0"),
        RankInfo(run_dir="/s/demo", host="n2", launch_id="12-0"),
        RankInfo(run_dir="/s/demo", host="n1", launch_id="12-1"),
        RankInfo(run_dir="/s/other", host="n1", launch_id="12-0"),
        RankInfo(run_dir="/s/demo", host="n1", launch_id="12-0", attempt=2),
        RankInfo(run_dir="/s/" + "x" * 5000, host="n" * 300, launch_id="m" * 300),
    ]
    names = {socket_name(place) for place in places}
    assert len(names) == len(places)
    assert all(name[0] == 0 and len(name) <= 108 for name in names)
    assert all(f"/{os.geteuid()}/".encode() in name for name in names)


@pytest.mark.parametrize("fault", ["sys.executable = ''", "sys.executable = '/bin/false'", "sys.executable = '/gone'"])
def test_without_a_mirror_process_rank_0_writes_its_beat_itself(node: Node, fault: str) -> None:
    rank = node.start(0, first=f"{fault}; connection.CONNECT_S = 3.0")
    rank.do("slot.words[0] = 5")
    until(lambda: node.beats().get("step") == 5)
    until(lambda: len(rank.said()) == 1)
    assert "cannot use the mirror process on n1" in rank.said()[0] and "writes the heartbeat itself" in rank.said()[0]
    time.sleep(0.3)
    assert len(rank.said()) == 1
    assert node.journal(0)[0]["event"] == "warning"


def test_another_rank_waits_for_a_while_and_then_reads_the_address_itself(node: Node) -> None:
    rank = node.start(1, first="connection.CONNECT_S = 0.5")
    file = node.address_file()
    file.touch(mode=0o600)
    file.write_text('{"host": "10.0.0.1", "port": 4711, "token": "abc"}')
    assert rank.ask("writer.locate()") is None
    until(lambda: rank.said())
    assert "its heartbeat is not written" in rank.said()[0]
    assert rank.ask("writer.locate().port") == 4711
    assert node.mirrors() == []


def test_where_nobody_knows_the_local_rank_one_process_is_started_all_the_same(node: Node) -> None:
    first = "import resilience.guard.rank_info as p; RankInfo = lambda **f: p.RankInfo(**{**f, 'local_rank': -1})"
    begun = [node.start(rank, world=3, first=f"{first}\n") for rank in range(3)]
    assert len(begun) == 3
    until(lambda: len(node.beats().get("rank", {})) == 3)
    assert len(node.mirrors()) == 1


def test_a_mirror_that_dies_again_and_again_is_given_up(node: Node) -> None:
    rank = node.start(0)
    for _ in range(3):
        until(lambda: node.mirrors())
        for pid in node.mirrors():
            os.kill(pid, 9)
        until(lambda: not node.mirrors() or rank.said())
    until(lambda: rank.said())
    assert "the process ended 3 times" in rank.said()[0]
    rank.do("slot.words[0] = 5")
    until(lambda: node.beats().get("step") == 5)


def test_the_start_of_a_training_waits_for_nothing(tmp_path: Path) -> None:
    program = (
        "import time, sys\n"
        "from resilience.guard.heartbeat.beat import SharedProgress\n"
        "from resilience.guard.heartbeat.writer import start_writer\n"
        "from resilience.guard.rank_info import RankInfo\n"
        "from resilience.guard.recorder import Recorder\n"
        "from resilience.guard.settings import GuardSettings\n"
        f"place = RankInfo(world=2, local_rank=0, run_dir={str(tmp_path)!r}, job_id='12', launch_id='x{os.getpid()}')\n"
        "import resilience.guard.heartbeat.connection, resilience.guard.agreement.rendezvous\n"
        "began = time.perf_counter()\n"
        "writer = start_writer(place, GuardSettings(), SharedProgress(), Recorder(place))\n"
        "print(time.perf_counter() - began)\n"
        "writer.stop(5.0)"
    )
    seconds = []
    for _ in range(20):  # on a busy machine the processor is waited for
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        seconds.append(float(done.stdout))
        if seconds[-1] < 0.02:
            break
    assert min(seconds) < 0.02


def test_strange_packets_from_the_process_are_passed_over(node: Node) -> None:
    fake = (
        "import socket\n"
        "def pretend(listener, order):\n"
        "    def serve(copy):\n"
        "        while True:\n"
        "            sock, _ = copy.accept()\n"
        "            for packet in (b'{', b'5', b'[]', b'{\"address\": 5}', b'{\"welcome\": 1}'): sock.send(packet)\n"
        "            kept.append(sock)\n"
        "    kept = []\n"
        "    threading.Thread(target=serve, args=(listener.dup(),), daemon=True).start()\n"
        "    return 0\n"
        "connection.start_process = pretend"
    )
    rank = node.start(0, first=fake)
    until(lambda: rank.ask("writer._line._is_welcome"))
    assert rank.ask("writer.locate()") is None
    assert rank.said() == []
