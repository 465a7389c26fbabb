"""Each quota tool is run for its file systems; if one fails, the next is run, and the failure is reported."""

from __future__ import annotations

import grp
import os
import time
from pathlib import Path
from typing import Any

import pytest

from resilience.base.mounts import Mount
from resilience.errors import ProbeError, SettingsError
from resilience.system.ports import SystemClock
from resilience.watch.checks._filesystem import sources
from resilience.watch.checks._filesystem.quota import du_command, parse_du
from resilience.watch.checks._filesystem.reading import BYTES, INODES, Amount
from resilience.watch.checks._filesystem.sources import Sources, parse_site, query_quota, site_command, statvfs_amounts
from resilience.watch.checks._filesystem.task import Task, check_site
from resilience.watch.checks.fs import FsSettings
from tests.lab.fakes import ME, make_system

RECORDED = Path(__file__).parents[3] / "recorded" / "quota"
TASK = Task(BYTES, FsSettings())


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """Create a directory that is the whole PATH, for programs of real sites."""
    directory = tmp_path / "bin"
    directory.mkdir()
    return directory


def a_tool(tools: Path, name: str, body: str) -> None:
    (tools / name).write_text(f'#!/bin/bash\nPATH=/usr/bin:/bin\necho "$*" >> {tools}/calls\n{body}\n')
    (tools / name).chmod(0o755)


def asking(tools: Path, mount: Mount, *paths: Path, seconds: float = 5.0) -> Sources:
    system = make_system(tools.parent, {"PATH": str(tools)}, clock=SystemClock())
    asked = Sources(system, time.monotonic() + seconds)
    query_quota(asked, TASK, [str(path) for path in paths] or [str(tools)], mount)
    return asked


LUSTRE = Mount("/scratch", "lustre", "x@o2ib:/s")


def calls(tools: Path) -> list[str]:
    return (tools / "calls").read_text().splitlines()


def scopes(asked: Sources) -> list[str]:
    return [amount.scope for amount in asked.amounts if amount.kind == BYTES]


def test_lustre_is_queried_for_user_group_and_project(tools: Path) -> None:
    answers = {"quota -u": "lfs_quota_user", "quota -g": "lfs_quota_wrapped", "quota -p": "lfs_quota_two",
               "project -d": "lfs_project"}  # fmt: skip
    cases = "".join(f'"{words}") cat {RECORDED}/{name}.txt;; ' for words, name in answers.items())
    a_tool(tools, "lfs", f'case "$1 $2" in {cases} esac')
    asked = asking(tools, Mount("/scratch", "lustre", "10.0.0.1@o2ib:/scratch"))
    assert sorted(scopes(asked)) == ["group lab", "project 1000", "user alice"]
    group = grp.getgrgid(tools.stat().st_gid).gr_name
    assert calls(tools) == [
        f"project -d {tools}", f"quota -u {ME} {tools}", f"quota -g {group} {tools}", f"quota -p 1000 {tools}",
        "pool_list /scratch",
    ]  # fmt: skip


def test_lustre_is_queried_for_the_limits_in_ost_pools(tools: Path) -> None:
    a_tool(
        tools,
        "lfs",
        f"""case "$*" in
        "pool_list "*) cat {RECORDED}/lfs_pool_list.txt;;
        "quota -u "*flash*) cat {RECORDED}/lfs_quota_pool.txt;;
        quota*) cat {RECORDED}/lfs_quota_wrapped.txt | sed 's/ 4194304 / 0 /';;
        *) echo "    0 - {tools}";; esac""",
    )
    asked = asking(tools, Mount("/scratch", "lustre", "10.0.0.1@o2ib:/scratch"))
    (pool,) = (item for item in asked.amounts if "pool" in item.scope)
    assert (pool.scope, pool.kind, pool.limit) == ("user alice in pool flash", BYTES, 100 * 2**30)
    assert f"quota -u {ME} --pool capacity /scratch" in calls(tools)
    a_tool(
        tools,
        "lfs",
        f"""case "$*" in
        pool_list*) echo "unknown command" >&2; exit 1;;
        quota*) cat {RECORDED}/lfs_quota_user.txt;; *) echo "    0 - {tools}";; esac""",
    )
    asked = asking(tools, Mount("/scratch", "lustre", "10.0.0.1@o2ib:/scratch"))  # Lustre before 2.14
    assert scopes(asked) == ["user alice"]


def test_beegfs_8_is_queried_by_its_new_command_and_earlier_ones_by_the_old_one(tools: Path) -> None:
    a_tool(tools, "beegfs", f"sed 's/alice/{ME}/' {RECORDED}/beegfs_8.txt")
    asked = asking(tools, Mount("/mnt/beegfs", "beegfs", "beegfs_nodev"))
    assert scopes(asked)[:2] == [f"user {ME}", f"user {ME} in pool nvme"]
    assert calls(tools) == ["quota list-usage --mount /mnt/beegfs --raw --output ndjson"]


def test_mmlsquota_is_found_where_storage_scale_installs_it(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scale = tools / "mmfs"
    scale.mkdir()
    monkeypatch.setattr(sources, "TOOL_DIRECTORIES", (str(scale),))
    a_tool(scale, "mmlsattr", f"cat {RECORDED}/mmlsattr_L.txt")
    a_tool(scale, "mmlsquota", f"cat {RECORDED}/mmlsquota_Y.txt")
    assert scopes(asking(tools, Mount("/gpfs", "gpfs", "/dev/gpfs0")))[:2] == ["user alice", "group lab"]


def test_gpfs_is_queried_for_the_users_quotas_and_the_filesets(tools: Path) -> None:
    a_tool(tools, "mmlsattr", f"cat {RECORDED}/mmlsattr_L.txt")
    a_tool(tools, "mmlsquota", f"cat {RECORDED}/mmlsquota_Y.txt")
    asked = asking(tools, Mount("/gpfs", "gpfs", "/dev/gpfs0"))
    assert scopes(asked)[:2] == ["user alice", "group lab"]
    assert calls(tools) == [f"-L {tools}", "-Y", "-Y -j work gpfs0"]


def test_beegfs_is_queried_on_its_mount(tools: Path) -> None:
    a_tool(tools, "beegfs-ctl", f"sed 's/alice/{ME}/' {RECORDED}/beegfs_csv.txt")
    asked = asking(tools, Mount("/mnt/beegfs", "beegfs", "beegfs_nodev"))
    assert f"user {ME}" in scopes(asked)
    assert calls(tools)[0] == f"--mount=/mnt/beegfs --getquota --uid {ME}"


def test_the_exit_code_of_quota_for_an_exceeded_limit_is_no_failure(tools: Path) -> None:
    a_tool(tools, "quota", f"cat {RECORDED}/quota_nfs.txt; exit 1")
    asked = asking(tools, Mount("/home", "nfs4", "filer:/export/home"))
    assert scopes(asked) == ["user alice", "group lab"]
    assert calls(tools) == ["-u -g -v -w -p -f /home"]


def test_a_mount_without_quotas_is_no_failure(tools: Path) -> None:
    a_tool(tools, "quota", f"cat {RECORDED}/quota_none.stderr.txt >&2; exit 1")
    asked = asking(tools, Mount("/", "ext4", "/dev/sda1"))
    assert (asked.amounts, asked.explanation) == ([], ["quota: no quota here"])


def test_a_quota_server_that_refuses_is_reported(tools: Path) -> None:
    error = "quota: error while getting quota from filer:/export/home: Connection refused"
    a_tool(tools, "quota", f"echo '{error}' >&2; exit 1")
    asked = asking(tools, Mount("/home", "nfs", "filer:/export/home"))
    assert asked.amounts == [] and "Connection refused" in asked.explanation[0]


def test_xfs_is_queried_by_its_own_tool_and_then_by_quota(tools: Path) -> None:
    a_tool(tools, "xfs_quota", "exit 0")
    a_tool(tools, "quota", "sed 's/filer:.export.home /\\/dev\\/sdb1 /' " + f"{RECORDED}/quota_nfs.txt")
    asked = asking(tools, Mount("/data", "xfs", "/dev/sdb1"))
    assert scopes(asked) == ["user alice", "group lab"]
    assert asked.explanation[0] == "xfs_quota: no quota here"
    a_tool(tools, "xfs_quota", f"cat {RECORDED}/xfs_quota_user.txt")
    assert {amount.source for amount in asking(tools, Mount("/data", "xfs", "/dev/sdb1")).amounts} == {"xfs_quota"}


@pytest.mark.parametrize(
    "body", ["exit 1", "echo garbage", "kill -9 $$", "printf '\\xff\\x00'", "echo oops >&2; exit 5"]
)
@pytest.mark.parametrize(("tool", "kind"), [("lfs", "lustre"), ("mmlsquota", "gpfs"), ("beegfs-ctl", "beegfs"),
                                            ("xfs_quota", "xfs"), ("quota", "nfs4")])  # fmt: skip
def test_a_tool_that_fails_or_writes_nonsense_is_reported_and_ends_nothing(
    tools: Path, tool: str, kind: str, body: str
) -> None:
    a_tool(tools, tool, body)
    asked = asking(tools, Mount("/data", kind, "filer:/x"))
    assert asked.amounts == [] and asked.explanation


def test_a_tool_that_hangs_is_abandoned_after_its_share_of_the_time(tools: Path) -> None:
    a_tool(tools, "lfs", "sleep 60")
    began = time.monotonic()
    asked = asking(tools, LUSTRE, seconds=0.5)
    assert time.monotonic() - began < 20
    assert "did not end within" in asked.explanation[0]


def denied_but(option: str, answer: str) -> str:
    """Write a tool that succeeds for one of several queries."""
    return f'if [ "$2" = {option} ]; then cat {RECORDED}/{answer}.txt; else echo denied >&2; exit 1; fi'


def test_a_failing_source_hides_no_other(tools: Path) -> None:
    a_tool(tools, "lfs", denied_but("-u", "lfs_quota_user"))
    asked = asking(tools, LUSTRE)
    assert scopes(asked) == ["user alice"]
    assert any("the quota of group" in line and "denied" in line for line in asked.explanation)
    a_tool(tools, "lfs", denied_but("-g", "lfs_quota_wrapped"))
    assert scopes(asking(tools, LUSTRE)) == ["group lab"]


def test_directories_of_several_projects_are_each_queried_and_nested_ones_once(tools: Path, tmp_path: Path) -> None:
    a_tool(tools, "lfs", f'[ $1 = project ] && echo "${{3: -1}} P $3" || cat {RECORDED}/lfs_quota_user.txt')
    directories = [tmp_path / name for name in ("p1", "p2", "p1/deep/p3", "p4", "p5", "p6")]
    for directory in directories:
        directory.mkdir(parents=True)
    asking(tools, LUSTRE, *directories)
    assert [line.split()[2] for line in calls(tools) if line.startswith("quota -p")] == ["1", "2", "4", "5"]


def test_a_tool_that_is_not_installed_is_reported(tools: Path) -> None:
    assert asking(tools, LUSTRE).explanation == ["lfs quota: lfs is not on PATH"]


@pytest.mark.parametrize("kind", ["tmpfs", "overlay", "squashfs", "devtmpfs"])
def test_no_tool_is_run_on_file_systems_without_quotas(tools: Path, kind: str) -> None:
    for name in ("lfs", "quota", "xfs_quota", "mmlsquota"):
        a_tool(tools, name, "exit 0")
    assert asking(tools, Mount("/x", kind, kind)).explanation == []
    assert not (tools / "calls").exists()


def test_the_tools_run_with_an_english_locale(tools: Path) -> None:
    a_tool(tools, "lfs", "echo $LC_ALL >> " + str(tools / "calls"))
    asking(tools, LUSTRE)
    assert "C" in calls(tools)


def test_statvfs_counts_as_df_does() -> None:
    status = os.statvfs_result((4096, 4096, 1000, 300, 250, 500, 200, 200, 0, 255))
    size, files = statvfs_amounts(status)
    assert size == Amount(kind=BYTES, source="statvfs", scope="file system", used=700 * 4096, limit=950 * 4096)
    assert files == Amount(kind=INODES, source="statvfs", scope="file system", used=300, limit=500)


def test_a_file_system_that_reports_nothing_has_no_limit() -> None:
    status = os.statvfs_result((4096, 0, 0, 0, 0, 0, 0, 0, 0, 255))
    assert [amount.limit for amount in statvfs_amounts(status)] == [None, None]


def test_inodes_without_number_are_no_limit() -> None:
    status = os.statvfs_result((4096, 4096, 1000, 300, 250, 7_000, 2**64 - 1, 2**64 - 1, 0, 255))  # CephFS
    assert statvfs_amounts(status)[1] == Amount(kind=INODES, source="statvfs", scope="file system", used=7_000)


def test_a_sites_expression_that_backtracks_for_ever_is_ended_and_named(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "REGEX_CPU_S", 0.05)
    a_tool(tools, "q", f"echo {'a' * 60}!")
    site = FsSettings(command=(str(tools / "q"),), percent_regex="(a+)+$")
    asked = Sources(make_system(tools.parent, {"PATH": str(tools)}, clock=SystemClock()), time.monotonic() + 5)
    query_quota(asked, TASK._replace(settings=site), [str(tools)], None)
    assert "backtracking" in asked.failed[f"`{tools}/q`"]


IDRQUOTA = (RECORDED / "idrquota_w.txt").read_text()


KEYS = {"used": "used_regex", "limit": "limit_regex", "percent": "percent_regex", "unit": "command_unit"}


def a_site(**changes: Any) -> FsSettings:
    return FsSettings(**{"command": ("idrquota", "-w"), **{KEYS.get(key, key): v for key, v in changes.items()}})


def test_sizes_with_separators_and_units_are_read() -> None:
    found = parse_site(IDRQUOTA, a_site(used=r"WORK: ([\d.,]+) (\w+)", limit=r"/ ([\d.,]+) (GiB)"), BYTES)
    assert found.used == pytest.approx(4507.3 * 2**30, abs=1)
    assert found.limit == 5000 * 2**30
    assert found.source == "`idrquota -w`"


def test_numbers_of_files_are_read() -> None:
    found = parse_site(IDRQUOTA, a_site(used=r"([\d,]+) / [\d,]+ inodes", limit=r"/ ([\d,]+) inodes"), INODES)
    assert (found.used, found.limit) == (450_000, 500_000)


def test_a_percentage_is_enough() -> None:
    found = parse_site(IDRQUOTA, a_site(percent=r"\((\d+\.\d+)%\)$"), BYTES)
    assert (found.kind, found.used, found.limit) == ("percent", 90.15, 100)


@pytest.mark.parametrize("lines", [0, 1, 3])
def test_any_number_of_percentages_does_no_harm(lines: int) -> None:
    # The original unpacked exactly two, and died at one and at three.
    text = "".join(f"WORK{n}: used 1 of 2 ({50 + n}.0%)\n" for n in range(lines))
    site = a_site(percent=r"\((\d+\.\d+)%\)")
    if lines:
        assert parse_site(text, site, BYTES).used == 50
    else:
        with pytest.raises(ProbeError, match="no output"):
            parse_site(text, site, BYTES)


def test_a_line_is_found_by_its_whole_name_where_the_pattern_says_so() -> None:
    text = (RECORDED / "site_french.txt").read_text()
    for name, used in (("WORK", 4.5), ("WORKSF", 1.0)):
        site = a_site(used=rf"^{name}\s+([\d.]+) (\w+)", limit=rf"^{name}\s+\S+ \w+\s+([\d.]+) (\w+)")
        assert parse_site(text, site, BYTES).used == used * 2**40


def test_a_device_that_is_not_in_the_list_is_no_figure() -> None:
    with pytest.raises(ProbeError, match="finds no usage"):
        parse_site("gpfsssd2 1 2\n", a_site(used=r"^gpfsssd\s+(\d+)", limit=r"(\d+)$"), BYTES)


@pytest.mark.parametrize(
    ("figure", "unit", "size"),
    [("12", "B", 12), ("12", "GiB", 12 * 2**30), ("12 TB", "B", 12 * 10**12), ("4.5 Tio", "B", 4.5 * 2**40),
     ("1'000 KiB", "B", 1000 * 2**10), ("3 Go", "B", 3 * 2**30)],
)  # fmt: skip
def test_a_figure_without_a_unit_has_the_unit_of_the_settings(figure: str, unit: str, size: float) -> None:
    site = a_site(used="used=([^;]+)", limit="used=([^;]+)", unit=unit)
    assert parse_site(f"used={figure};", site, BYTES).used == size


@pytest.mark.parametrize(
    "printed", ["used=many;", "used=;", "used=1,5 GiB;", "used=12 parsecs;", "error: no such user"]
)
def test_text_that_is_no_figure_is_an_error(printed: str) -> None:
    with pytest.raises(ProbeError):
        parse_site(printed, a_site(used="used=([^;]*)", limit="used=([^;]*)"), BYTES)


@pytest.mark.parametrize(("text", "count"), [("3e6", 3_000_000), ("450k", 450_000), ("1.5M", 1_500_000), ("7", 7)])
def test_files_are_counted_in_tens(text: str, count: float) -> None:
    assert parse_site(f"{text};", a_site(used="^(.*);", limit="^(.*);"), INODES).used == count


def test_path_and_user_are_substituted_without_a_shell() -> None:
    argv = ("quota.sh", "-u", "{user}", "--at={path}")
    assert site_command(argv, "/a b;rm", "alice") == ["quota.sh", "-u", "alice", "--at=/a b;rm"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"command": (), "used": "(x)"}, "used_regex is set without command"),
        ({}, "without a regular expression for its output"),
        ({"used": "("}, "used_regex = '(' is not a regular expression"),
        ({"used": "(x)"}, "limit_regex is missing"),
        ({"limit": "(x)"}, "used_regex is missing"),
        ({"percent": "[0-9]+"}, "has no group"),
        (
            {"percent": "(x)", "used": "(x)", "limit": "(y)"},
            "percent_regex is set together with used_regex or limit_regex",
        ),
        ({"percent": "(x)", "command": ("idrquota -w",)}, "one text with blanks"),
        ({"percent": "(x)", "command": ("", "-w")}, "starts with an empty text"),
        ({"percent": "(x)", "command": ("q", "{directory}")}, "unknown placeholder {directory}"),
        ({"percent": "(x)", "unit": "furlongs"}, "command_unit = 'furlongs' is not a unit"),
    ],
)
def test_an_invalid_command_is_rejected_with_the_name_of_its_key(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        check_site(a_site(**changes))
    assert message in caught.value.message


def test_du_prints_a_total_also_where_directories_could_not_be_read() -> None:
    found = parse_du("4096\t/data\n", "du: cannot read directory '/data/x': Permission denied\n", BYTES, 8192.0)
    assert (found.used, found.limit) == (4096, 8192)
    assert "lower bound: 1 directory" in found.note


def test_du_without_output_is_an_error() -> None:
    with pytest.raises(ProbeError, match="no total: du: cannot access"):
        parse_du("", "du: cannot access '/x': No such file or directory\n", BYTES, 1.0)


def test_du_counts_blocks_not_apparent_sizes() -> None:
    assert du_command("/data", BYTES) == ["du", "-s", "-x", "--block-size=1", "--", "/data"]
    assert "-b" not in du_command("/data", BYTES) and "--inodes" in du_command("/data", INODES)
