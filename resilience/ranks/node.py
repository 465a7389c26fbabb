"""What a node knows about ranks that hang, beside their guards: NCCL's RAS, py-spy, the kernel's log, devices.

`python -m resilience.ranks.node ORDER` answers for its node with one line of JSON; `ORDER` has a table for each host:
`pids` of its ranks, `silent` those whose stacks did not come, `ras` whether to ask NCCL.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from resilience.errors import ProbeError
from resilience.ranks.devices import DEVICES_S, look_at_devices
from resilience.ranks.ras import ADDRESS, LOOKS_S, Member, RasSignal, look_twice
from resilience.ranks.stacks import parse_stacks
from resilience.system.answers import answer_lines, parse_answers
from resilience.system.child import run_in_child
from resilience.system.process import ProcessRunner

RAS_S = 5.0
"""For the answers of NCCL, which waits LEGS_S for other processes."""
PY_SPY_S = 10.0
KERNEL_S = 3.0
NVML_S = 5.0
"""The driver takes seconds to start where nothing keeps it loaded."""
NODE_S = max(RAS_S + LOOKS_S, PY_SPY_S) + 1.0
"""The whole look."""
MOST_SILENT = 8
"""Processes of a node that py-spy reads."""
KERNEL_LINES, KERNEL_WIDTH, KERNEL_AGE_S = 12, 240, 86400.0
_KERNEL = re.compile(
    r"NVRM: Xid|SXid|fallen off the bus|oom-kill|[Oo]ut of memory|blocked for more than \d+ s|soft lockup"
    r"|rcu_\w+ (?:self-)?detected (?:expedited )?stall"
    r"|not responding|[Rr]emounting filesystem read-only|I/O error|Machine check|mlx5.*(?:error|health)|segfault at"
)
"""Lines that may explain a hang; drivers/nvidia, mm/oom_kill.c, kernel/hung_task.c, kernel/watchdog.c, net/sunrpc."""
_TIME = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)[.,\d]*([+-]\d\d):?(\d\d) ")


class NodeLook(NamedTuple):
    """The answer of one node.

    Attributes:
        stacks: by process, as py-spy wrote them; `unread` is why not, by process.
        signals: of NCCL's RAS; `ras` is why there are none, empty if it was not asked.
        kernel: lines of the kernel's log; None if users may not read it.
        devices: what GPUs and InfiniBand ports do, in words.
    """

    host: str
    stacks: Mapping[int, str]
    unread: Mapping[int, str]
    signals: tuple[RasSignal, ...] = ()
    ras: str = ""
    kernel: tuple[str, ...] | None = None
    devices: tuple[str, ...] = ()


def look(
    host: str, environ: Mapping[str, str], *, pids: Sequence[int] = (), silent: Sequence[int] = (), ras: bool = False
) -> NodeLook:
    """Look at this node, at everything at once; takes NODE_S at most."""
    works: dict[Any, Any] = {pid: (partial(_py_spy, pid, environ), PY_SPY_S + 0.5) for pid in silent[:MOST_SILENT]}
    works["devices"] = (look_at_devices, DEVICES_S + NVML_S)
    works["kernel"] = (partial(_kernel, environ), 2 * KERNEL_S + 0.5)
    if ras:
        works["ras"] = (partial(_ras, ras_address(pids, environ)), LOOKS_S + RAS_S + 0.5)
    found = {key: answer.error.message if answer.error else answer.value for key, answer in run_in_child(works)}
    signals, why = _signals(found["ras"]) if ras else ((), "")
    lines, devices = found.pop("kernel"), found.pop("devices")
    read = {pid: value for pid, value in found.items() if isinstance(pid, int)}
    return NodeLook(
        host,
        {pid: value[0] for pid, value in read.items() if not isinstance(value, str)},
        {pid: value for pid, value in read.items() if isinstance(value, str)},
        signals,
        why,
        tuple(lines) if isinstance(lines, list) else None,
        tuple(devices) if isinstance(devices, list) else (f"its devices do not answer: {devices}",),
    )


def ras_address(pids: Sequence[int], environ: Mapping[str, str]) -> str:
    """Return where the RAS of these processes listens: as in their environment, else in this one."""
    for pid in pids:
        with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if found := re.search(rb"(?:^|\0)NCCL_RAS_ADDR=([^\0]+)", file.read()):
                return found[1].decode("utf-8", "replace")
    return environ.get("NCCL_RAS_ADDR") or ADDRESS


def kernel_lines(log: str, now: float) -> list[str]:
    """Return the last lines of a log with ISO times that may explain a hang, of the last day. Pure."""
    found = []
    for line in log.splitlines():
        at = _TIME.match(line)
        if at and _KERNEL.search(line):
            time_s = datetime.fromisoformat(f"{at[1]}{at[2]}:{at[3]}").timestamp()
            found += [line[:KERNEL_WIDTH]] if now - time_s <= KERNEL_AGE_S else []
    return found[-KERNEL_LINES:]


def task_command(looks: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the command of the task that looks at its node. Pure."""
    return [sys.executable, "-m", "resilience.ranks.node", json.dumps(looks)]


def parse_looks(lines: Sequence[str]) -> Iterator[NodeLook]:
    """Yield the answers in what the tasks wrote; other lines are skipped. Pure."""
    for one in parse_answers(lines):
        with suppress(ValueError, KeyError, TypeError, IndexError):
            yield NodeLook(
                str(one["host"]),
                {int(pid): str(text) for pid, text in one["stacks"].items()},
                {int(pid): str(text) for pid, text in one["unread"].items()},
                _signals([one["signals"], ""])[0],
                str(one["ras"]),
                None if one["kernel"] is None else tuple(map(str, one["kernel"])),
                tuple(map(str, one["devices"])),
            )


def _signals(value: Any) -> tuple[tuple[RasSignal, ...], str]:
    if isinstance(value, str):  # an error
        return (), value
    rows, why = value
    return tuple(RasSignal(text, ranks, tuple(Member(*who) for who in members)) for text, ranks, members in rows), why


def _ras(address: str) -> tuple[Any, str]:
    signals, why = look_twice(address, RAS_S)
    is_expected = any(map(os.path.exists, ("/dev/nvidiactl", "/dev/kfd")))
    return _plain(signals), why if is_expected or "listens" not in why else ""


def _plain(signals: Sequence[RasSignal]) -> list[Any]:
    return [[one.text, one.ranks, [[who.rank, who.host, who.pid] for who in one.members]] for one in signals]


def _py_spy(pid: int, environ: Mapping[str, str]) -> list[str] | str:
    """Return the stacks of a process in a list, or why there are none: empty without py-spy."""
    program = shutil.which("py-spy", path=environ.get("PATH"))
    if program is None:
        return ""
    argv = [program, "dump", "--nonblocking", "--full-filenames", "--pid", str(pid)]
    done = ProcessRunner().run(argv, timeout_s=PY_SPY_S)
    if done.returncode or not parse_stacks(done.stdout).threads:
        said = (done.stderr or done.stdout).strip().splitlines()
        return said[0] if said else "no answer"
    return [done.stdout]


def _kernel(environ: Mapping[str, str]) -> list[str] | None:
    """Return lines of the kernel's log, or None: most sites do not let users read it (dmesg_restrict)."""
    for argv in (["dmesg", "--time-format=iso"], ["journalctl", "-k", "-n", "2000", "-o", "short-iso", "--no-pager"]):
        program = shutil.which(argv[0], path=environ.get("PATH"))
        with suppress(ProbeError):
            if program and not (done := ProcessRunner().run([program, *argv[1:]], timeout_s=KERNEL_S)).returncode:
                return kernel_lines(done.stdout, time.time())
    return None


def main(order: str) -> int:
    """Answer for this node."""
    environ = dict(os.environ)
    host = environ.get("SLURMD_NODENAME") or os.uname().nodename
    found = look(host, environ, **json.loads(order).get(host, {}))
    sys.stdout.write(answer_lines(found._asdict() | {"signals": _plain(found.signals)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
