"""The pair test by all-reduces of the training's torch: real gloo, and a stand-in for what is hard to have here."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from resilience.errors import ProbeError
from resilience.nodes import check as module
from resilience.nodes.check import ALL_REDUCE, EXCHANGE, Asked, ask_nodes, load_checks
from resilience.nodes.checks import Expected, Outcome
from resilience.nodes.pairs import judge_pairs
from resilience.nodes.torch_child import TorchChild
from tests.nodes.test_check import HOSTS, SRUN

real = pytest.mark.skipif(
    find_spec("torch") is None, reason="torch is not installed: pip install torch (extra `torch`)"
)

TORCH = """\
import os, time
float16 = float32 = 0
class cuda:
    is_available = staticmethod(lambda: False)
class Ones:
    def __matmul__(self, other):
        time.sleep(0.01 if os.environ.get("SLURMD_NODENAME") == "n3" else 0.001)
def ones(*_, **__):
    return Ones()
def set_num_threads(count):
    pass
"""
DISTRIBUTED = """\
import os, time
class TCPStore:
    port = 7
    def __init__(self, *_, **__):
        pass
class PrefixStore(TCPStore):
    pass
class ReduceOp:
    MAX = 0
def init_process_group(backend, store, rank, world_size, timeout):
    assert backend == "gloo" and 0 <= rank < world_size <= 3
    if os.path.exists("unable"):
        raise RuntimeError("Unable to find interface for: [0.0.0.0]")
def all_reduce(values, op):
    time.sleep(0.03 if os.environ["SLURMD_NODENAME"] == "n3" else 0.001)
def destroy_process_group():
    pass
"""
"""n3 is slower than the others."""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(TORCH)
    (tmp_path / "torch" / "distributed.py").write_text(DISTRIBUTED)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(module.__file__).parents[2]}")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ask(directory: Path, *checks: str, is_idle: bool = True) -> Asked:
    return ask_nodes(SRUN, HOSTS, load_checks(checks), Expected(directory=str(directory), is_idle=is_idle))


def test_the_node_whose_all_reduces_are_slow_is_named(stand_in: Path) -> None:
    asked = ask(stand_in, "memory")
    assert asked.how == ALL_REDUCE and len(asked.rounds) == 2
    faults = judge_pairs(asked.rounds, asked.how)
    assert faults["n3"].outcome is Outcome.WARN and faults["n3"].why.startswith(
        "an all-reduce with other nodes takes 3"
    )


def test_products_of_matrices_are_figures_of_each_node(stand_in: Path) -> None:
    asked = ask(stand_in, "compute").nodes
    seconds = {one.host: one.readings["compute"]["matmul_s"] for one in asked}  # type: ignore[index]
    assert min(seconds.values()) >= 0.001 and seconds["n3"] >= 0.01


def test_where_torch_finds_no_network_data_are_exchanged_without_it(stand_in: Path) -> None:
    (stand_in / "unable").touch()
    asked = ask(stand_in, "memory")
    assert asked.how == EXCHANGE and len(asked.rounds) == 2
    assert all(seconds is not None for times in asked.rounds for seconds in times.values())


def test_beside_a_training_nothing_is_computed_with_torch(stand_in: Path) -> None:
    asked = ask(stand_in, "compute", is_idle=False)
    assert asked.how == EXCHANGE and [*asked.nodes[0].readings["compute"]] == ["compute_s"]  # type: ignore[misc]


def test_a_node_without_torch_does_not_keep_the_others_from_the_test(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANT_n2", "mkdir -p no; ln -sf /bin/false no/python; PATH=$PWD/no:$PATH")
    asked = ask(stand_in, "memory")
    assert asked.how == EXCHANGE and all(seconds is not None for times in asked.rounds for seconds in times.values())


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[TorchChild]]:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with TorchChild(dict(os.environ)) as one, TorchChild(dict(os.environ)) as other:
        yield [one, other]


@real
def test_real_torch_multiplies_and_reduces_in_two_rounds_and_a_missing_partner_is_an_error(
    children: list[TorchChild],
) -> None:
    for child in children:
        child.wait_ready(120)
        assert child.device
        assert all(0 < seconds < 60 for seconds in child.products(60).values())
    if children[0].device == "cuda":
        pytest.skip("NCCL refuses two ranks on one GPU")
    for token, order in (("first", (0, 1)), ("second", (1, 0))):
        found: dict[int, float] = {}

        def reduce(rank: int, child: TorchChild, store: list[object], token: str, found: dict[int, float]) -> None:
            found[rank] = child.all_reduce(rank, 2, store, token, 60)

        pair = [children[index] for index in order]
        store: list[object] = ["127.0.0.1", pair[0].port]
        threads = [threading.Thread(target=reduce, args=(rank, child, store, token, found))
                   for rank, child in enumerate(pair)]  # fmt: skip
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 2 and all(0 < seconds < 60 for seconds in found.values())
    with pytest.raises(ProbeError):
        children[0].all_reduce(0, 2, ["127.0.0.1", children[0].port], "third", 1)


def test_without_torch_the_child_is_not_ready(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to("/bin/false")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with TorchChild(dict(os.environ)) as child:
        child.wait_ready(30)
        assert child.device == "" and child.products(30) == {}
