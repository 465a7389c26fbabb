"""How well the ends of logs are classified, against nvidia-resiliency-ext's public rules, and how fast."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.measure import Claim, Options, Report
from resilience.attempts.classify import Evidence, classify
from resilience.attempts.ledger import read_end
from tests.attempts.corpus import Entry, all_entries
from tests.attempts.corpus.benign import benign_lines

HEALTHY = {"unknown", "finished"}
NVRX = "RESIL_NVRX"
"""Environment variable with the `src` directory of a checkout of NVIDIA/nvidia-resiliency-ext."""
_ROWS = {
    "gpu_hardware_fault": ("gpu_fault", "gpu_link", "gpu_program"),
    "peer_gpu_memory_access_failure": ("gpu_link",),
    "infra_policy_event": ("preempted", "node_failure"),
    "time_limit": ("walltime",),
    "user_cancelled": ("cancelled",),
    "observed_exception": ("exception",),
    "configuration_validation_failure": ("launcher",),
    "argument_validation_failure": ("launcher", "gpu_program"),
    "artifact_or_path_not_found": ("missing_file", "missing_library", "missing_module"),
    "checkpoint_compatibility_mismatch": ("checkpoint",),
    "shape_mismatch": ("exception", "checkpoint"),
    "filesystem_permission_denied": ("missing_file", "launcher"),
    "cuda_oom": ("gpu_oom",),
    "nan_or_inf": ("nan_loss",),
    "bad_token_or_window": ("exception",),
    "framework_crash": ("segfault",),
    "linux_oom_kill_confirmation": ("host_oom",),
    "observed_distributed_operation_timeout": ("collective_timeout",),
    "nccl_cascade": ("collective_timeout", "network"),
    "cuda_previous_error_cascade": ("gpu_program",),
}
"""The classes that a row of its registry may mean."""
_ASK = """
import importlib, json, sys, types
parent = ""
for part in ("nvidia_resiliency_ext", "attribution", "restart_agent", "l0"):
    name = f"{parent}.{part}" if parent else part
    package = types.ModuleType(name)
    package.__path__ = [sys.argv[1] + "/" + name.replace(".", "/")]
    sys.modules[name], parent = package, name
registry = importlib.import_module(parent + ".registry")
for log in json.load(sys.stdin):
    print(json.dumps([row.registry_id for line in log.split("\\n") for row in registry.match_registry(line)]))
"""
"""Loads the registry without its package, which needs much more."""


@dataclass(frozen=True)
class Scores:
    """How well labels were met.

    Attributes:
        number: of entries.
        right: of them.
        f1: for each label.
        wrong: how often a label was called by which other one.
    """

    number: int
    right: int
    f1: dict[str, float]
    wrong: Counter[tuple[str, str]]

    @property
    def macro_f1(self) -> float:
        """Return the mean of the F1 of all labels."""
        return sum(self.f1.values()) / len(self.f1)


def scores(pairs: Sequence[tuple[str, str]]) -> Scores:
    """Return the scores of pairs of the label and of what was said. Pure."""
    labels = {label for label, _ in pairs}
    f1 = {}
    for label in labels:
        both = sum(one == other == label for one, other in pairs)
        either = sum(one == label for one, _ in pairs) + sum(other == label for _, other in pairs)
        f1[label] = 2 * both / either if either else 0.0
    wrong = Counter(pair for pair in pairs if pair[0] != pair[1])
    return Scores(len(pairs), len(pairs) - wrong.total(), f1, wrong)


def resil_says(entries: Iterable[Entry], *, is_test: bool) -> list[tuple[str, str]]:
    """Return label and classification of one half."""
    return [(str(one.label), str(classify(one.evidence).failure)) for one in entries if one.is_test == is_test]


def run(options: Options) -> Report:
    """Score both halves and the healthy lines, and measure tails of a megabyte and strange files."""
    entries = all_entries()
    development, test = (scores(resil_says(entries, is_test=half)) for half in (False, True))
    lines = list(benign_lines())
    called = sum(str(classify(Evidence(log=line)).failure) not in HEALTHY for line in lines)
    steady = "".join(f"step {step} loss 2.31\n" for step in range(40))
    blamed = [str(classify(Evidence(exit_code=1, log=steady + one)).failure) not in HEALTHY for one in lines[1:400:2]]
    steps = [line for number, line in enumerate(lines) if number % 2 == 0 or number % 50 == 1]
    tail, full_of_them = ("\n".join([*some, *some, ""])[-(2**20) :] for some in (steps, lines))
    print(confusion(test))
    notes = [
        f"{len(entries)} labelled ends, {len({one.fingerprint for one in entries})} wordings, "
        f"{sum('produced' in one.source for one in entries)} of programs that really failed",
        f"development half: {development.right} of {development.number} right, macro-F1 {development.macro_f1:.3f}",
        f"healthy lines at the end of a log that failed, called its cause: {sum(blamed)} of {len(blamed)}",
        f"test half: {test.right} of {test.number} right, macro-F1 {test.macro_f1:.3f}",
    ]
    claims = [Claim("healthy lines called a failure", called, 0.0, f"of {len(lines)}")]
    for name, log in (("a tail of 1 MB", tail), ("a tail of 1 MB, each second line a look-alike", full_of_them)):
        took = _milliseconds(partial(_classify, log), options.samples)
        claims.append(Claim(f"{name}, CPU time", took, 50.0, "ms"))
    for name, path in strange_files(options.scratch):
        took = _milliseconds(partial(_classify, path), options.samples)
        claims.append(Claim(f"{name}, CPU time", took, 50.0, "ms"))
    claims.append(Claim("1 - macro-F1 of the test half", 1 - test.macro_f1, 0.05, ""))
    return Report("why an attempt ended", (), tuple(notes + _nvrx(entries, lines)), tuple(claims))


def strange_files(directory: Path) -> list[tuple[str, Path]]:
    """Make a log of 10 GB (sparse), binary junk, and a line of 50 MB."""
    huge, junk, line = (directory / name for name in ("huge.log", "junk.log", "line.log"))
    with huge.open("wb") as file:
        file.seek(10 * 10**9)
        file.write(b"\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    junk.write_bytes(os.urandom(2**21))
    line.write_bytes(b"\r 12%|####| 512/5000 [01:12<07:11, 11.5it/s]" * (50 * 10**6 // 46))
    return [("a log of 10 GB", huge), ("binary junk", junk), ("a line of 50 MB", line)]


def confusion(scored: Scores) -> str:
    """Return a table of the labels: F1, and what their entries were called instead."""
    rows = ["| class | F1 | called instead |", "|---|---|---|"]
    for label in sorted(scored.f1):
        others = ", ".join(f"{said} {number}" for (one, said), number in sorted(scored.wrong.items()) if one == label)
        rows.append(f"| {label} | {scored.f1[label]:.2f} | {others} |")
    return "\n".join(rows)


def _classify(log: str | Path) -> None:
    classify(Evidence(exit_code=1, log=log if isinstance(log, str) else read_end(log)))


def _milliseconds(work: Callable[[], object], samples: int) -> float:
    """Return the median of the CPU time."""
    took = []
    for _ in range(max(3, samples)):
        begin = time.process_time()
        work()
        took.append(time.process_time() - begin)
    return sorted(took)[len(took) // 2] * 1000


def _nvrx(entries: Sequence[Entry], lines: Sequence[str]) -> list[str]:
    """Return what the registry of nvidia-resiliency-ext says, if there is a checkout of it."""
    source = os.environ.get(NVRX, "")
    if not source:
        return [f"nvidia-resiliency-ext: not compared, {NVRX} is not set"]
    test = [one for one in entries if one.is_test]
    texts = json.dumps([*(one.evidence.log for one in test), *lines])
    said = subprocess.run(
        [sys.executable, "-c", _ASK, source], input=texts, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    rows = [json.loads(one) for one in said]
    found = scores([(str(one.label), _nvrx_class(str(one.label), ids)) for one, ids in zip(test, rows, strict=False)])
    called = sum(bool(one) for one in rows[len(test) :])
    return [
        f"nvidia-resiliency-ext's registry, test half: {found.right} of {found.number} right, macro-F1 "
        f"{found.macro_f1:.3f}, a row counts as right if it may mean the class",
        f"nvidia-resiliency-ext's registry: {called} of {len(lines)} healthy lines match a row",
    ]


def _nvrx_class(label: str, rows: Sequence[str]) -> str:
    """Return the class of the first row that is no mere exception, in the label's favour where it may mean several."""
    named = [row for row in rows if row != "observed_exception"] or list(rows)
    if not named:
        return "unknown"
    means = _ROWS[named[0]]
    return label if label in means else means[0]
