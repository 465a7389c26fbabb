"""How far this rank is in its collectives, from the flight recorder of torch.

`torch.distributed` counts the collectives that each process group has enqueued and completed. The recorder of gloo and
other backends is on by default, that of NCCL in older versions only with `TORCH_FR_BUFFER_SIZE` (formerly
`TORCH_NCCL_TRACE_BUFFER_SIZE`), which the templates and `resil run` set.
Reading the counts takes 20 to 100 us, with no communication and no lock of the training. NCCL enqueues without waiting,
so there a rank is inside from the moment that its program has queued the collective.

Source: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp, `pg_status` (format 2.4 to 2.10, torch 2.5 to 2.13).
"""

from __future__ import annotations

import json
import sys

_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
_MODULE = "torch._C._distributed_c10d"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Collectives:
    """The collectives of this process. Never imports torch."""

    def __init__(self) -> None:
        self._dumps: list[Callable[..., str | None]] = []

    def read(self) -> tuple[int, bool] | None:
        """Return (collectives entered since the start, whether one of them is not complete).

        None without torch.distributed, and where its recorder is off.
        """
        if not self._dumps:
            module = sys.modules.get(_MODULE)
            self._dumps = [found for name in _DUMPS if (found := getattr(module, name, None)) is not None]
        for dump in self._dumps:
            try:
                counts = parse_counts(dump(includeCollectives=False))
            except Exception:
                continue
            if counts is not None:
                return counts
        return None


def parse_counts(text: str | None) -> tuple[int, bool] | None:
    """Given the recorder's JSON, return what `Collectives.read` does. Raise ValueError or another error if it has
    another format. Pure."""
    groups = json.loads(text)["pg_status"].values() if text else ()
    entered = [max(int(one["last_enqueued_collective"]), int(one["last_started_collective"])) for one in groups]
    if not any(count > 0 for count in entered):  # -1: none
        return None
    is_inside = any(count > int(one["last_completed_collective"]) for count, one in zip(entered, groups, strict=True))
    return sum(max(0, count) for count in entered), is_inside
