"""The checks find what is wrong with this node, and with one of several."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilience.attempts.failure import FailureClass, Role
from resilience.attempts.rules import all_rules
from resilience.errors import ProbeError
from resilience.nodes import check as module
from resilience.nodes.check import ask_here, ask_nodes, load_checks
from resilience.nodes.checks import Check, Expected, Outcome, gpu, infiniband
from resilience.nodes.fleet import NodeReport, judge_nodes, with_faults
from resilience.nodes.pairs import judge_pairs
from tests.nodes.recorded_nvml import RecordedNvml

HOSTS = ("n1", "n2", "n3", "n4")
SRUN = [sys.executable, str(Path(__file__).with_name("fake_srun.py")), f"--nodelist={','.join(HOSTS)}"]


def check_here(expected: Expected, *names: str) -> NodeReport:
    checks = load_checks(names)
    return judge_nodes([ask_here(checks, expected, dict(os.environ))], checks, expected, {})[0]


def test_every_check_reads_this_node_in_time(tmp_path: Path) -> None:
    began = time.monotonic()
    report = check_here(Expected(directory=str(tmp_path)), "clock", "compute", "memory", "mounts", "versions")
    assert time.monotonic() - began < 15
    assert {"clock", "compute", "memory", "mounts", "versions"} == set(report.faults)
    assert report.readings["versions"]["python"]  # type: ignore[index]
    assert not list(tmp_path.iterdir())


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    report = check_here(Expected(directory=str(tmp_path), mounts=(str(tmp_path / "scratch"),)), "mounts")
    assert report.outcome is Outcome.FAIL
    assert report.why == f"mounts: {tmp_path}/scratch: No such file or directory", report.readings


def test_the_file_system_of_a_directory_is_read(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/proc/self")
    reading = check_here(Expected(directory=str(tmp_path), mounts=(str(tmp_path / "link"),)), "mounts").readings[
        "mounts"
    ]
    assert reading is not None and reading[f"{tmp_path}/link is on"] == "proc, mounted at /proc"
    assert ", mounted at /" in reading[f"{tmp_path} is on"]


def test_a_hung_check_does_not_delay_the_others(tmp_path: Path) -> None:
    def sleep(expected: Expected, environ: Mapping[str, str]) -> None:
        time.sleep(60)

    checks = {"hung": Check(probe=sleep, deadline_s=0.2), **load_checks(["clock"])}
    expected = Expected(directory=str(tmp_path))
    (report,) = judge_nodes([ask_here(checks, expected, {})], checks, expected, {})
    assert report.why == "hung: no answer within 0.2 s" and report.outcome is Outcome.FAIL
    assert report.faults["clock"] == ()


def test_four_nodes_are_asked_and_the_planted_faults_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(module.__file__).parents[2]))
    planted = {
        "n2": "export NCCL_DEBUG=INFO",
        "n3": "silent",
        "n4": "mkdir -p bin; ln -sf /bin/false bin/python; PATH=$PWD/bin:$PATH",
    }
    for host, shell in planted.items():
        monkeypatch.setenv(f"PLANT_{host}", shell)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NCCL_DEBUG", raising=False)
    checks, expected = load_checks(["clock", "versions"]), Expected(directory=str(tmp_path))
    # Those of the command, which waits for n3; the tasks have their own deadlines.
    checks = {name: replace(check, deadline_s=2.0) for name, check in checks.items()}
    asked = ask_nodes(SRUN, HOSTS, checks, expected)
    reports = with_faults(judge_nodes(asked.nodes, checks, expected, {}), "pairs", judge_pairs(asked.rounds))
    found = {one.host: one for one in reports}
    assert found["n1"].outcome is Outcome.PASS, found["n1"].why
    assert "$NCCL_DEBUG is set here only" in found["n2"].why
    assert found["n3"].why.startswith("answer: no answer")
    assert "python is not there" in found["n4"].why
    assert len(asked.rounds) == 2 and all(t is not None for times in asked.rounds for t in times.values())
    assert all(abs(node.readings["clock"]["ahead_s"]) < 5 for node in asked.nodes if node.host != "n3")  # type: ignore[index]


def test_without_any_answer_there_is_an_error_with_what_srun_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    srun = ["/bin/sh", "-c", "echo 'srun: error: Invalid job id specified' >&2; exit 1"]
    with pytest.raises(ProbeError, match="Invalid job id"):
        ask_nodes(srun, HOSTS, load_checks(["clock"]), Expected(directory=str(tmp_path)))


# ---- GPUs and InfiniBand --------------------------------------------------------------------------------------------

GOOD = {"name": "NVIDIA H100", "ecc_uncorrected": 0, "remap_pending": False, "remap_failed": False, "slowed": 0x4,
        "pcie_width": 16, "pcie_width_max": 16, "temperature_c": 31, "nvlinks": 18}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "outcome", "why"),
    [
        ({}, None, ""),
        ({"remap_failed": True}, Outcome.FAIL, "GPU 1 could not remap a row of its memory"),
        ({"remap_pending": True}, Outcome.WARN, "GPU 1 waits for a reset to remap a row of its memory"),
        ({"ecc_uncorrected": 2}, Outcome.FAIL, "GPU 1 had 2 uncorrected memory errors since its driver was loaded"),
        (
            {"slowed": 0x48},
            Outcome.FAIL,
            "GPU 1 is slowed down by its hardware (HW slowdown, HW thermal slowdown) at 31 °C",
        ),
        ({"slowed": 0x20}, Outcome.WARN, "GPU 1 is slowed down because it is hot, at 31 °C"),
        ({"pcie_width": 8}, Outcome.FAIL, "the PCIe link of GPU 1 has 8 of 16 lanes"),
    ],
)
def test_a_gpu_is_judged(change: dict[str, Any], outcome: Outcome | None, why: str) -> None:
    faults = list(gpu.judge({"given": 2, "gpus": [GOOD, GOOD | change]}, Expected(directory="/")))
    assert [(fault.outcome, fault.why) for fault in faults] == ([(outcome, why)] if outcome else [])


def test_a_gpu_that_is_missing_or_a_driver_that_is_silent_fails() -> None:
    (fault,) = gpu.judge({"given": 2, "gpus": [GOOD]}, Expected(directory="/"))
    assert fault.why == "the scheduler gives 2 GPUs, NVML knows 1"
    (fault,) = gpu.judge({"given": 2, "gpus": [], "error": "Driver Not Loaded"}, Expected(directory="/"))
    assert fault.why == "the driver of the GPUs does not answer: Driver Not Loaded"


H100 = {"index": 0, "name": "NVIDIA H100 80GB HBM3", "ecc_uncorrected": 0, "remap_pending": False,
        "remap_failed": False, "pcie_width": 16, "pcie_width_max": 16, "power_limit_w": 700.0, "clock_mhz": 1980,
        "clock_default_mhz": 1980, "clock_max_mhz": 1980}  # fmt: skip


def said(nvml: RecordedNvml, given: int = 0) -> list[tuple[Outcome, str]]:
    reading = {"given": given, **gpu.read_gpus(nvml)}
    assert json.loads(json.dumps(reading)) == reading, "it travels as JSON"
    return [(fault.outcome, fault.why) for fault in gpu.judge(reading, Expected(directory="/"))]


def test_the_stand_in_has_what_nvml_has() -> None:
    import pynvml

    names = [name for name in dir(RecordedNvml) if name.startswith(("nvml", "NVML"))]
    assert len(names) > 15 and not [name for name in names if not hasattr(pynvml, name)]
    assert RecordedNvml.NVML_ERROR_NO_PERMISSION == pynvml.NVML_ERROR_NO_PERMISSION
    assert pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION).value == pynvml.NVML_ERROR_NO_PERMISSION


def test_what_real_gpus_said_is_read() -> None:
    reading = gpu.read_gpus(RecordedNvml("h100"))
    assert reading["gpus"][0] == H100 | {"slowed": 0x1, "temperature_c": reading["gpus"][0]["temperature_c"]}
    assert (reading["model"], reading["power limit"]) == ("2 x NVIDIA H100 80GB HBM3", "700 W")
    assert (reading["count"], reading["highest clock"], reading["active NVLinks"]) == (2, "1980 MHz", "")
    assert reading["hottest_c"] == max(one["temperature_c"] for one in reading["gpus"])
    (rtx,) = gpu.read_gpus(RecordedNvml("rtx4090"))["gpus"]
    assert "ecc_uncorrected" not in rtx and rtx["power_limit_w"] == 450.0
    (titan,) = gpu.read_gpus(RecordedNvml("titan_v"))["gpus"]
    assert "remap_failed" not in titan and titan["clock_mhz"] == titan["clock_default_mhz"] < titan["clock_max_mhz"]


@pytest.mark.parametrize(
    ("name", "change", "outcome", "why"),
    [
        ("h100_power_brake", {}, Outcome.FAIL,
         "GPU 0 is slowed down by its hardware (HW slowdown, HW power brake) at 29 °C"),
        ("a10_remap_pending", {}, Outcome.WARN, "GPU 0 waits for a reset to remap a row of its memory"),
        ("a10_remap_pending", {"Remapping Failure Occurred": "Yes", "Pending": "No"}, Outcome.FAIL,
         "GPU 0 could not remap a row of its memory"),
        ("titan_v", {"Current": "8x"}, Outcome.FAIL, "the PCIe link of GPU 0 has 8 of 16 lanes"),
        ("rtx4090", {"SW Thermal Slowdown": "Active"}, Outcome.WARN, "GPU 0 is slowed down because it is hot, at"),
        ("a10_remap_pending", {"DRAM Uncorrectable": "2"}, Outcome.FAIL, "GPU 0 had 2 uncorrected memory errors since"),
    ],
)  # fmt: skip
def test_the_faults_of_recorded_gpus_are_named(name: str, change: dict[str, str], outcome: Outcome, why: str) -> None:
    (found,) = said(RecordedNvml(name, change))
    assert found[0] is outcome and found[1].startswith(why)


@pytest.mark.parametrize("name", ["h100", "rtx4090", "titan_v"])
def test_good_recorded_gpus_have_no_fault(name: str) -> None:
    assert not said(RecordedNvml(name))


def test_a_clock_that_was_set_lower_is_told() -> None:
    nvml = RecordedNvml("h100")
    nvml.gpus[1] = {**nvml.gpus[1], ("Applications Clocks", "Graphics"): "1200 MHz"}
    assert said(nvml) == [(Outcome.WARN, "the clock of GPU 1 is set to 1200 MHz instead of 1980 MHz")]


def test_a_lost_gpu_is_named_and_those_of_other_jobs_are_none_of_ours() -> None:
    assert said(RecordedNvml("h100", lost=[1]), given=2) == [(Outcome.FAIL, "GPU 1 does not answer: GPU is lost")]
    assert not said(RecordedNvml("h100", foreign=[0]), given=1)
    assert said(RecordedNvml("h100", foreign=[0]), given=2) == [
        (Outcome.FAIL, "the scheduler gives 2 GPUs, NVML knows 1")
    ]


def test_a_gpu_with_fewer_nvlinks_than_the_others_of_its_node_is_named() -> None:
    nvml = RecordedNvml("h100", links=[18, 18, 17, 18])
    nvml.gpus *= 2
    assert said(nvml) == [(Outcome.FAIL, "GPU 2 has 17 active NVLinks, the others have 18")]
    nvml.links = [18, 18, 17, 17]
    assert not said(nvml), "nobody knows which are right"


class OldNvml:
    """The pynvml of a GPU that has 2 NVLinks and no row remapper, with a driver from before some functions."""

    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = NVML_VOLATILE_ECC = NVML_TEMPERATURE_GPU = 1
    NVML_NVLINK_MAX_LINKS = 18

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "Tesla V100"

    def nvmlDeviceGetRemappedRows(self, handle: int) -> tuple[int, ...]:
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if link > 2:
            raise self.NVMLError("Invalid Argument")
        return int(link != 2)


def test_what_a_gpu_does_not_support_is_left_out() -> None:
    assert gpu.read_gpu(OldNvml(), 0) == {"name": "Tesla V100", "nvlinks": 2}


def test_without_a_gpu_there_is_no_reading_and_with_one_promised_its_driver_is_missed() -> None:
    if gpu.probe(Expected(directory="/"), {}) is not None:
        pytest.skip("there is a GPU here")
    reading = gpu.probe(Expected(directory="/"), {"SLURM_GPUS_ON_NODE": "2"})
    assert reading is not None and "does not answer" in next(iter(gpu.judge(reading, Expected(directory="/")))).why


def test_only_recent_xids_of_the_hardware_count() -> None:
    log = """\
[  100.000001] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[99000.000001] NVRM: Xid (PCI:0000:5e:00): 31, pid=4711, name=python3, MMU Fault
[99001.000001] NVRM: Xid (PCI:0000:5e:00): 64, pid=4711, name=python3, row remapping failed
[99002.000001] NVRM: Xid (PCI:0000:5e:00): 64, pid=4711, name=python3, row remapping failed
[99003.000001] NVRM: Xid (PCI:0000:5e:00): 145, pid=4711, name=python3, RLW_REMAP Nonfatal XC1 i0 Link 09
"""
    assert gpu.parse_xids(log, 100_000.0) == [("0000:5e:00", 64), ("0000:5e:00", 145)]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([(0, 94), (299, 94)], [94]),
        ([(0, 94), (301, 94)], []),
        ([(0, 94), (0.1, 94), (2, 94)], []),  # one fault, told for each channel
        ([(0, 94), (100, 39)], [39]),
        ([(0, 13), (20, 13), (40, 31), (60, 43), (80, 43), (100, 63)], []),
    ],
)
def test_two_soft_xids_within_five_minutes_count(lines: list[tuple[float, int]], found: list[int]) -> None:
    log = "".join(f"[{9e4 + at:.6f}] NVRM: Xid (PCI:0000:3b:00): {number}, pid=1, fault\n" for at, number in lines)
    assert [number for _, number in gpu.parse_xids(log, 100_000.0)] == found
    other = log.replace("3b", "5e", 1)
    assert found != [94] or not gpu.parse_xids(other, 100_000.0), "of two GPUs"


def test_the_check_and_the_reasons_of_failures_agree_on_xids() -> None:
    """The rules are made from NVIDIA's table, and may become more."""
    found: dict[Role, set[int]] = {role: set() for role in Role}
    for rule in all_rules():
        if rule.name.startswith("xid.toml:") and rule.failure is not FailureClass.GPU_PROGRAM:
            line = "NVRM: Xid (PCI:0000:3b:00): {}, pid=1"
            found[rule.role] |= {number for number in range(1, 400) if rule.match(line.format(number))}
    assert found[Role.ROOT] == gpu.HARD_XIDS and found[Role.CASCADE] == gpu.SOFT_XIDS
    assert not {13, 31, 43} & (gpu.HARD_XIDS | gpu.SOFT_XIDS)


def test_ports_are_read_and_one_that_is_down_is_told(tmp_path: Path) -> None:
    for number, state in ((0, "4: ACTIVE"), (1, "1: DOWN")):
        port = tmp_path / f"mlx5_{number}" / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
        (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    reading = infiniband.probe(Expected(directory="/"), {}, tmp_path)
    assert reading == {
        "mlx5_0 port 1": "4: ACTIVE, 400 Gb/sec (4X NDR)",
        "mlx5_1 port 1": "1: DOWN, 400 Gb/sec (4X NDR)",
    }
    assert not list(infiniband.judge(reading, Expected(directory="/")))
    (fault,) = infiniband.judge({"mlx5_0 port 1": "1: DOWN, 10 Gb/sec"}, Expected(directory="/"))
    assert fault.why == "no InfiniBand port is active: mlx5_0 port 1 is 1: DOWN, 10 Gb/sec"
    assert infiniband.probe(Expected(directory="/"), {}, tmp_path / "none") is None
    assert json.dumps(reading)
