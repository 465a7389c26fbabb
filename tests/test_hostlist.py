"""Hostlists expand and fold as SLURM's own do, and nobody fills our memory with them."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience import hostlist
from resilience.errors import HostlistError
from resilience.hostlist import MAX_HOSTS, expand, fold

BYTES_OF_A_NAME = 80  # a short str and its place in a list


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("", []),
        ("  ", []),
        ("login", ["login"]),
        ("n[1-2,05],login", ["n1", "n2", "n05", "login"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[009-10]", ["n009", "n010"]),
        ("n[8-011]", ["n8", "n9", "n10", "n11"]),
        ("r[1-2]n[3-4]", ["r1n3", "r1n4", "r2n3", "r2n4"]),
        ("n[1,1]", ["n1", "n1"]),
        ("[1-2]", ["1", "2"]),
        ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
        ("n[1-2],", ["n1", "n2"]),
        ("n1 n2", ["n1", "n2"]),
        ("n1, n2", ["n1", "n2"]),
    ],
)
def test_a_hostlist_expands_in_the_order_written(expression: str, names: list[str]) -> None:
    assert expand(expression) == names


@pytest.mark.parametrize(
    "expression",
    ["n[1", "n1]", "n]1[", "n[[1]]", "n[]", "n[-1]", "n[1-]", "n[3-1]", "n[a-c]", "n[1-2-3]", "n1,,n2", ",n1", ",",
     "n[\u0661-\u0663]", "n[" + "9" * 5000 + "]", "n[1 - 2]"],
)  # fmt: skip
def test_a_broken_hostlist_is_refused(expression: str) -> None:
    with pytest.raises(HostlistError) as caught:
        expand(expression)
    assert len(caught.value.message) < 250


@pytest.mark.parametrize(
    "expression", ["n[0-999999999]", f"n[0-{MAX_HOSTS}]", f"n[1-{MAX_HOSTS}],login", "n[1-257][1-256]"]
)
def test_more_hosts_than_the_largest_cluster_are_refused(expression: str) -> None:
    with pytest.raises(HostlistError, match="more than 65536 names"):
        expand(expression)


@pytest.mark.parametrize(
    "expression",
    ["n[0-999999999]", "n[0-4096]", "n[1-80][1-80]", "n[1-4096][1-4096][1-4096]",
     "n[" + ",".join(["1-4000"] * 2000) + "]", "x[1-9]n[" + ",".join(["1-4000"] * 2000) + "]",
     ",".join(["n[1-4000]"] * 1000)],
    ids=lambda text: text[:30],
)  # fmt: skip
def test_a_bomb_is_refused_before_it_is_expanded(expression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostlist, "MAX_HOSTS", 4096)  # tracemalloc takes long for more
    tracemalloc.start()
    try:
        with pytest.raises(HostlistError, match="more than 4096 names"):
            expand(expression)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 3 * 4096 * BYTES_OF_A_NAME, "names beyond the limit were made"


def test_the_largest_cluster_still_expands() -> None:
    names = expand(f"n[1-{MAX_HOSTS}]")
    assert (len(names), names[-1]) == (MAX_HOSTS, "n65536")
    assert fold(names) == "n[1-65536]"


@pytest.mark.parametrize(
    ("names", "expression"),
    [
        ([], ""),
        (["login"], "login"),
        (["n7"], "n7"),
        (["n2", "n1", "n3", "n1"], "n[1-3]"),
        (["n09", "n10"], "n[09-10]"),
        (["n099", "n100", "n101"], "n[099-101]"),
        (["n9", "n10"], "n[9-10]"),
        (["n1", "n3", "n4"], "n[1,3-4]"),
        (["n08", "n09", "n10", "n8", "n9"], "n[08-09,8-10]"),
        (["b1", "a1", "a2"], "a[1-2],b1"),
        (["n1-ib", "n2-ib"], "n1-ib,n2-ib"),
    ],
)
def test_names_fold_into_a_short_hostlist(names: list[str], expression: str) -> None:
    assert fold(names) == expression


def test_n9_and_n09_are_two_hosts() -> None:
    assert set(expand(fold(["n9", "n09"]))) == {"n9", "n09"}


@pytest.mark.parametrize("name", ["", "n[1", "n1,n2", "n 1", "n1\n"])
def test_what_is_no_name_is_not_folded_into_other_hosts(name: str) -> None:
    with pytest.raises(HostlistError):
        fold(["n1", name])


ORDINARY = st.from_regex(r"[a-z]{1,2}-?[0-9]{0,3}", fullmatch=True)
ODD = st.text(st.characters(exclude_characters="[],", exclude_categories=["Cs", "Zs", "Zl", "Zp", "Cc"]), min_size=1)


@given(st.sets(ORDINARY | ODD, max_size=30))
def test_what_is_folded_expands_to_the_same_hosts(names: set[str]) -> None:
    expanded = expand(fold(names))
    assert set(expanded) == names
    assert len(expanded) == len(names)


@given(st.text(alphabet="n0123456789[],-\u0663 ", max_size=40) | st.text(max_size=20))
def test_no_text_raises_anything_but_a_hostlist_error(text: str) -> None:
    try:
        names = expand(text)
    except HostlistError as error:
        assert error.exit_code == 2
    else:
        assert len(names) <= MAX_HOSTS


def random_expression(source: random.Random) -> str:
    def piece() -> str:
        low = source.randrange(0, 120)
        width = source.choice([0, 2, 3, 4])
        high = low + source.randrange(0, 15)
        return f"{low:0{width}d}" if source.random() < 0.3 else f"{low:0{width}d}-{high:0{width}d}"

    def host() -> str:
        word = source.choice(["n", "node-", "gpu", "r1c", "x7y"])
        if source.random() < 0.2:
            return word + str(source.randrange(100))
        brackets = source.choice([1, 1, 1, 2])
        return word + "c".join(
            "[" + ",".join(piece() for _ in range(source.randrange(1, 4))) + "]" for _ in range(brackets)
        )

    return ",".join(host() for _ in range(source.randrange(1, 4)))


@pytest.fixture(scope="module")
def slurm_conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("scontrol") is None:
        pytest.skip("needs scontrol (apt-get install slurm-client)")
    path = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    path.write_text("ClusterName=x\nSlurmctldHost=localhost\nNodeName=n1\nPartitionName=p Nodes=n1\n")
    return path


def scontrol(*argv: str, conf: Path) -> list[str]:
    done = subprocess.run(
        ["scontrol", "show", *argv], env={"SLURM_CONF": str(conf), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


def test_scontrol_expands_every_expression_alike(slurm_conf: Path) -> None:
    source = random.Random(20261120)
    for _ in range(250 if "RESIL_SOAK" in os.environ else 20):
        expression = ",".join(random_expression(source) for _ in range(4))
        assert expand(expression) == scontrol("hostnames", expression, conf=slurm_conf), expression


def test_scontrol_reads_our_folded_lists_as_the_same_hosts(slurm_conf: Path) -> None:
    source = random.Random(7)
    for _ in range(150 if "RESIL_SOAK" in os.environ else 17):
        names = set(expand(",".join(random_expression(source) for _ in range(3))))
        assert sorted(scontrol("hostnames", fold(names), conf=slurm_conf)) == sorted(names)
