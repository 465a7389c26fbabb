"""Talks with the training's Python about torch (torch_task.py): on a node where no training runs, and only if it has
torch."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilience.errors import ProbeError
from resilience.system.process import Conversation

if TYPE_CHECKING:
    from resilience.nodes.checks import Expected

READY_S = 10.0
"""So long torch may take to be imported, from a cold file system; then the check goes on without."""
PRODUCTS_S = 2.0
"""How long products of matrices may take, with the start of the GPUs."""


def training_python(environ: Mapping[str, str]) -> str:
    """Return the `python` on PATH, which is the training's after its setup; empty if there is none."""
    path = environ.get("PATH", "")
    return shutil.which("python", path=path) or shutil.which("python3", path=path) or ""


@contextmanager
def idle_torch(expected: Expected, environ: Mapping[str, str]) -> Iterator[TorchChild | None]:
    """Start a child where no training runs; None elsewhere, or if there is no Python."""
    with ExitStack() as stack:
        child = None
        if expected.is_idle:
            with suppress(ProbeError):
                child = stack.enter_context(TorchChild(environ))
        yield child


class TorchChild:
    """One child. Leaving `with` ends it.

    Attributes:
        device: `cuda` or `cpu`; empty: there is no torch, or it was not imported in time.
        port: of its store.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Start it; raise ProbeError if that fails."""
        from resilience.nodes import torch_task

        source = Path(torch_task.__file__).read_text(encoding="utf-8")
        self._process = Conversation([training_python(environ) or "python", "-c", source], timeout_s=READY_S)
        self.device, self.port = "", 0

    def __enter__(self) -> TorchChild:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.__exit__(*exception)

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until it has imported torch."""
        ready = self._hear("device", timeout_s)
        self.device, self.port = ready.get("device", ""), ready.get("port", 0)

    def products(self, timeout_s: float) -> dict[str, float]:
        """Return the times of products of matrices, on each GPU or on the processor; none if that failed."""
        token = secrets.token_hex(4)
        self._process.say(json.dumps({"token": token}))
        return dict(self._hear("token", timeout_s, token).get("products", {}))

    def all_reduce(self, rank: int, ranks: int, store: Sequence[Any], token: str, timeout_s: float) -> float:
        """Return the time of an all-reduce with the other ranks. Raise ProbeError if it failed."""
        order = {"rank": rank, "ranks": ranks, "store": list(store), "token": token, "timeout_s": timeout_s}
        self._process.say(json.dumps(order))
        found = self._hear("token", timeout_s + 1.0, token)
        if "seconds" not in found:
            raise ProbeError(str(found.get("error", f"no all-reduce within {timeout_s:.0f} s")))
        return float(found["seconds"])

    def _hear(self, key: str, timeout_s: float, value: str = "") -> dict[str, Any]:
        """Return the first message that has the key, with this value: an earlier answer may be late."""
        for line in self._process.hear(timeout_s):
            with suppress(ValueError):  # what torch prints
                message = json.loads(line)
                if isinstance(message, dict) and key in message and value in ("", message[key]):
                    return message
        return {}
