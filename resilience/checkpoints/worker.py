"""The child process of a store: does one job and answers. Started by `child.py`, as a new interpreter.

It reads whole checkpoints, so it has a low priority, little memory (no framework is imported) and no lock of the
training. Job and answer are JSON: the job on standard input, the answer as the last line of standard output.

A job ends with its process, also if the training ends before: a complete part is committed. A job with `with_parent`
ends with the training.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import select
import sys
import threading

from resilience.errors import ResilError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

JOBS = {
    "share": ("resilience.checkpoints.commit", "share_job"),
    "commit": ("resilience.checkpoints.commit", "commit_job"),
    "verify": ("resilience.checkpoints.verified", "verify_job"),
    "seal": ("resilience.checkpoints.adopt", "seal_job"),
    "prune": ("resilience.checkpoints.prune", "prune_job"),
}
"""Module and function of each job: it takes the job and returns the answer."""
NICENESS = 10
"""From this the kernel derives the priority at the disk, too (ioprio_set(2))."""
HINTS = {
    errno.ENOSPC: "the disk is full, or out of inodes; free space: resil ckpt prune, resil watch fs",
    errno.EDQUOT: "the quota is used up; free space: resil ckpt prune, resil watch fs",
    errno.EROFS: "the file system is mounted read-only",
}


def do(job: dict[str, Any]) -> dict[str, Any]:
    """Do one job. Return `{"answer": ...}`, or `{"error": text, "hint": text, "transient": bool}`."""
    module, function = JOBS[job["do"]]
    try:
        return {"answer": getattr(importlib.import_module(module), function)(job)}
    except ResilError as error:
        return {"error": error.message, "hint": error.hint, "transient": error.transient}
    except OSError as error:
        path = os.fsdecode(error.filename or os.path.join(job.get("store", ""), job.get("part", "")))
        text = f"{error.strerror or error}: {path}"
        return {"error": text, "hint": HINTS.get(error.errno or 0, ""), "transient": True}
    except Exception as error:
        return {
            "error": f"{type(error).__name__}: {error}",
            "hint": "report this as a bug of resil",
            "transient": False,
        }


def main() -> None:
    """Read a job from standard input, do it, and write the answer."""
    with open(0, encoding="utf-8", closefd=False) as file:
        job = json.load(file)
    with open(1, "w", encoding="utf-8", closefd=False) as output:
        if job.get("with_parent"):
            threading.Thread(target=_end_with_parent, daemon=True).start()
        os.nice(NICENESS)
        answer = do(job)
        output.write(f"\n{json.dumps(answer)}\n")
    sys.stdout = sys.stderr = None  # nothing to flush, if the training is gone


def _end_with_parent() -> None:
    """End this process when the training has, or has called `Worker.kill`: when nobody reads the pipe any more.

    Not by SIGIO: the kernel also sends that at each read (pipe_read in fs/pipe.c).
    """
    poll = select.poll()
    poll.register(1, 0)  # POLLERR is always reported (poll(2))
    poll.poll()
    os._exit(1)
