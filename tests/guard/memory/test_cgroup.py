"""Which memory limits hold for a process: found through mounts, namespaces and SLURM's own binds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from resilience.base.mounts import parse_mountinfo
from resilience.guard.memory.cgroup import (
    CgroupMemory,
    below,
    describe_owner,
    find_directories,
    parse_limit,
    parse_memberships,
    parse_stat,
    visible,
)
from tests.guard.memory.memory_cgroups import MIB, RECORDED, Machine, RealCgroup

# ---- what is parsed -------------------------------------------------------------------------------------------------


def test_a_recorded_mountinfo_gives_the_memory_mount() -> None:
    mounts = parse_mountinfo((RECORDED / "v1_mountinfo.txt").read_text())
    (memory,) = [mount for mount in mounts if "memory" in mount.super_options]
    assert (memory.ident, memory.parent, memory.device, memory.root) == (35, 31, "0:32", "/")
    assert (memory.point, memory.type) == ("/sys/fs/cgroup/memory", "cgroup")
    assert [mount.point for mount in mounts if mount.type == "cgroup2"] == ["/sys/fs/cgroup/unified"]


def test_memberships_are_read_by_controller() -> None:
    found = parse_memberships((RECORDED / "v1_cgroup.txt").read_text())
    assert found["memory"] == "/slurm/uid_1000/job_12/step_0/task_0"
    assert found[""] == "/"
    assert parse_memberships("7:cpu,memory:/a:b:c\n")["memory"] == "/a:b:c"
    assert parse_memberships("0::/gone (deleted)\n") == {"": "/gone"}
    assert parse_memberships("garbage\n1:2\n") == {}


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("max\n", None),
        ("9223372036854771712\n", None),
        ("9223372036854710272\n", None),  # with pages of 64 KiB
        ("18446744073709551615\n", None),  # before Linux 4.1
        ("209715200\n", 209715200),
        ("0\n", 0),
        ("", None),
        ("-1\n", None),
        ("٣\n", None),
    ],
)
def test_a_limit_is_a_number_or_none(text: str, limit: int | None) -> None:
    assert parse_limit(text) == limit


def test_file_cache_on_both_lists_and_half_of_the_inodes_are_reclaimable_but_shared_memory_is_not() -> None:
    stat = parse_stat((RECORDED / "v2_memory.stat").read_text(), 2)
    assert stat.reclaimable_bytes == 41943040 + 17825792 + 6291456 // 2
    assert stat.shared_bytes == 10485760
    assert stat.above_bytes is None


def test_version_1_counts_descendants_in_its_totals() -> None:
    stat = parse_stat((RECORDED / "v1_memory.stat").read_text(), 1)
    values = dict(line.split() for line in (RECORDED / "v1_memory.stat").read_text().splitlines())
    assert stat.reclaimable_bytes == int(values["total_inactive_file"]) + int(values["total_active_file"])
    assert stat.reclaimable_bytes > int(values["inactive_file"]) + int(values["active_file"])
    assert (stat.above_bytes, stat.above_with_swap_bytes) == (None, None)
    assert parse_stat("hierarchical_memory_limit 209715200\n", 1).above_bytes == 209715200


@pytest.mark.parametrize(
    ("path", "root", "found"),
    [
        ("/docker/4f/job", "/docker/4f", "/job"),
        ("/docker/4f", "/docker/4f", "/"),
        ("/slurmlab/lab1/job_1", "/slurmlab/lab1", "/job_1"),
        ("/a", "/", "/a"),
        ("/", "/", "/"),
        ("/", "/..", None),  # one down from the mount's root, under a name that is not told
        ("/job", "/../..", None),
        ("/../other", "/..", "/other"),
        ("/../x", "/", None),
        ("/..", "/", None),
        ("/docker/4f", "/docker/4", None),
        ("/a", "/other", None),
    ],
)
def test_a_place_in_a_mount_is_given_by_names_or_not_at_all(path: str, root: str, found: str | None) -> None:
    assert below(path, root) == found


def test_a_mount_that_is_under_another_is_not_seen() -> None:
    """Clusters bind a part of the hierarchy over the hierarchy: `mount --bind X/slurmlab/lab1 X`."""
    text = (
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "90 35 0:32 /slurmlab/lab1 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    )
    assert [mount.ident for mount in visible(parse_mountinfo(text))] == [90]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/slurm/uid_1000/job_12", "the job's cgroup /slurm/uid_1000/job_12"),
        ("/slurm/uid_1000/job_12/step_0", "the step's cgroup /slurm/uid_1000/job_12/step_0"),
        ("/slurm/uid_1000", "the user's cgroup /slurm/uid_1000"),
        ("/user.slice/user-1000.slice", "the user's cgroup /user.slice/user-1000.slice"),
        ("/system.slice", "the cgroup /system.slice"),
        ("/", "the container's cgroup"),
    ],
)
def test_people_read_whose_cgroup_it_is(path: str, said: str) -> None:
    assert describe_owner(path) == said


# ---- what is found --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_all_ancestors_are_found_from_the_task_upwards(machine: Machine, version: int) -> None:
    machine.slurm(version, used=MIB, limits={"job_12": 200 * MIB})
    found = find_directories(str(machine.root))
    names = [directory.path.rpartition("/")[2] for directory in found]
    middle = ["task_0", "step_0", "job_12"] if version == 1 else ["task_0", "user", "step_0", "job_12"]
    assert names[: len(middle)] == middle
    assert all(directory.version == version for directory in found)
    assert found[-1].path == "/"


def test_a_tree_bound_over_the_tree_is_walked_from_the_bind(machine: Machine) -> None:
    mounts = (
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "90 35 0:32 /slurmlab/lab1 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    )
    machine.proc("4:memory:/slurmlab/lab1/slurm_n1/job_1\n", mounts)
    machine.cgroup("/sys/fs/cgroup/memory/slurm_n1/job_1", version=1, used=MIB, limit=9 * MIB)
    machine.cgroup("/sys/fs/cgroup/memory/slurm_n1", version=1, used=MIB, limit=None)
    machine.cgroup("/sys/fs/cgroup/memory", version=1, used=MIB, limit=None)
    found = find_directories(str(machine.root))
    assert [directory.path for directory in found] == [
        "/slurmlab/lab1/slurm_n1/job_1",
        "/slurmlab/lab1/slurm_n1",
        "/slurmlab/lab1",
    ]
    assert found[0].directory == str(machine.root / "sys/fs/cgroup/memory/slurm_n1/job_1")


def test_a_recorded_task_of_srun_finds_its_job_under_the_bind(machine: Machine) -> None:
    machine.proc(*[(RECORDED / f"slurm_22.05_v1_{name}.txt").read_text() for name in ("cgroup", "mountinfo")])
    job = "/sys/fs/cgroup/memory/slurm_n1/uid_1001/job_2"
    machine.cgroup(job, version=1, used=MIB, limit=200 * MIB)
    machine.cgroup(f"{job}/step_0/task_0", version=1, used=MIB, limit=None)
    found = find_directories(str(machine.root))
    assert [directory.directory.removeprefix(str(machine.root)) for directory in found[:3]] == [
        f"{job}/step_0/task_0",
        f"{job}/step_0",
        job,
    ]
    assert CgroupMemory(found[2]).owner == "the job's cgroup /slurm/lab/slurm_n1/uid_1001/job_2"


def test_in_a_container_the_mounts_root_is_its_own_cgroup(machine: Machine) -> None:
    machine.proc("0::/\n", "32 23 0:28 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n")
    machine.cgroup("/sys/fs/cgroup", version=2, used=MIB, limit=64 * MIB)
    (found,) = find_directories(str(machine.root))
    assert describe_owner(found.path) == "the container's cgroup"
    assert CgroupMemory(found).limit_bytes == 64 * MIB


def test_a_container_of_version_1_shows_its_part_of_the_tree(machine: Machine) -> None:
    mounts = "35 31 0:32 /docker/4f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    machine.proc("4:memory:/docker/4f\n", mounts)
    machine.cgroup("/sys/fs/cgroup/memory", version=1, used=MIB, limit=64 * MIB)
    (found,) = find_directories(str(machine.root))
    assert (found.path, CgroupMemory(found).limit_bytes) == ("/docker/4f", 64 * MIB)


def test_a_process_is_searched_by_its_number_where_a_namespace_hides_names(machine: Machine) -> None:
    texts = [(RECORDED / f"v1_namespace_{name}.txt").read_text() for name in ("cgroup", "mountinfo")]
    machine.proc(*texts)
    job = machine.cgroup("/sys/fs/cgroup/memory/x/job_12", version=1, used=MIB, limit=64 * MIB)
    machine.cgroup("/sys/fs/cgroup/memory/x/job_13", version=1, used=MIB, limit=1)
    (job / "step_0" / "task_0").mkdir(parents=True)
    (job / "step_0" / "task_0" / "cgroup.procs").write_text("17\n4242\n")
    found = find_directories(str(machine.root), pid=4242)
    assert [directory.path for directory in found] == [
        "/x/job_12/step_0/task_0",
        "/x/job_12/step_0",
        "/x/job_12",
        "/x",
        "/",
    ]


def test_where_a_process_cannot_be_found_the_outermost_cgroup_still_holds(machine: Machine) -> None:
    machine.proc("0::/\n", "32 23 0:28 /../.. /sys/fs/cgroup ro - cgroup2 cgroup rw\n")
    machine.cgroup("/sys/fs/cgroup", version=2, used=MIB, limit=64 * MIB)
    (found,) = find_directories(str(machine.root), pid=4242)
    assert CgroupMemory(found).limit_bytes == 64 * MIB


def test_a_path_that_is_not_there_gives_no_foreign_cgroup(machine: Machine) -> None:
    machine.proc("0::/../elsewhere\n", "32 23 0:28 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n")
    machine.cgroup("/sys/fs/cgroup/elsewhere", version=2, used=MIB, limit=1)
    assert find_directories(str(machine.root), pid=4242) == []


def test_in_a_hybrid_tree_the_version_with_the_memory_controller_counts(machine: Machine) -> None:
    machine.slurm(1, used=MIB, limits={"job_12": 200 * MIB})
    machine.cgroup("/sys/fs/cgroup/unified", version=2, used=1, limit=1)  # says 0::/ in the recorded file
    assert {directory.version for directory in find_directories(str(machine.root))} == {1}


def test_without_proc_it_cannot_be_found_out(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        find_directories(str(tmp_path))


# ---- one cgroup -----------------------------------------------------------------------------------------------------


def test_memory_high_counts_when_it_is_lower(machine: Machine) -> None:
    machine.proc("0::/\n", "32 23 0:28 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n")
    machine.cgroup("/sys/fs/cgroup", version=2, used=MIB, limit=64 * MIB, memory__high=f"{48 * MIB}\n")
    assert CgroupMemory(find_directories(str(machine.root))[0]).limit_bytes == 48 * MIB


def test_a_cgroup_without_memory_files_is_none(machine: Machine) -> None:
    """A leaf below a directory whose subtree_control lacks `memory`, and the root of version 2."""
    machine.proc("0::/a\n", "32 23 0:28 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n")
    path = machine.root / "sys/fs/cgroup/a"
    path.mkdir(parents=True)
    (path / "cgroup.procs").write_text("")
    with pytest.raises(FileNotFoundError):
        CgroupMemory(find_directories(str(machine.root))[0])


# ---- real -----------------------------------------------------------------------------------------------------------

SHOW = """
import os, sys
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
from resilience.guard.memory.cgroup import find_directories, CgroupMemory
for directory in find_directories():
    try:
        print(directory.path.rpartition("/")[2], CgroupMemory(directory).limit_bytes)
    except OSError as error:
        print(directory.path, error.strerror)
"""


def test_a_real_tasks_limit_is_found_at_the_job(real: RealCgroup) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHOW, str(real.task)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[:3] == ["task_0 None", "step_0 None", f"job_12 {200 * MIB}"], done.stdout


def test_a_real_cgroup_namespace_hides_neither_the_place_nor_the_limit(real: RealCgroup) -> None:
    """The process enters a namespace in step_0, where its cgroup is called `/`, then moves down to `/task_0`."""
    shell = f'echo $$ > {real.task.parent}/cgroup.procs; exec unshare --cgroup "$@"'
    command = ["sh", "-c", shell, "sh", sys.executable, "-c", SHOW, str(real.task)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode and "unshare" in done.stderr:
        pytest.skip(f"needs cgroup namespaces: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:3] == ["task_0 None", "step_0 None", f"job_12 {200 * MIB}"], done.stdout


def test_a_cgroup_that_is_removed_says_so_and_a_new_one_of_its_name_is_read(real: RealCgroup) -> None:
    extra = real.job / "gone"
    extra.mkdir()
    found = next(directory for directory in find_directories() if directory.version == 1)
    cgroup = CgroupMemory(type(found)(str(extra), "/gone", 1))
    assert cgroup.raw_bytes() >= 0
    extra.rmdir()
    with pytest.raises(OSError, match=r"No such (file|device)"):
        cgroup.raw_bytes()
    extra.mkdir()  # a new one of the same name is read again
    assert cgroup.raw_bytes() >= 0
    extra.rmdir()
