"""A run directory with attempts as batch shells and guards leave them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BEGIN = 1_795_000_000.0
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"


def write_attempts(
    run: Path, count: int, *, hours: float = 1.0, is_finished: bool = True, learned: bool = True
) -> None:
    """Write attempts of so many hours each, which save every 10 minutes; every other fails, the last finishes."""
    for name in ("attempts", "journal", "logs", "learned"):
        (run / name).mkdir(parents=True, exist_ok=True)
    at, step = BEGIN, 0
    for number in range(1, count + 1):
        is_last, fails, job = number == count, number % 2 == 0 and number < count, 1000 + number
        host, start, first = f"n{1 + number % 4}", at, step
        path = run / "attempts" / f"{number:04d}"
        line = f'number = {number}\njob_id = {job}\nlabel = "{job}"\nrestart = 0\nhost = "{host}"\npid = 7\n'
        path.write_text(f"{line}start = {start:.0f}\n")
        batch: list[dict[str, Any]] = [
            {"event": "attempt_start", "time": start, "nodes": host},
            {"event": "launch", "time": start + 5},
        ]
        guard: list[dict[str, Any]] = [
            {"event": "start", "time": start + 30, "step": 0, "world": 8},
            {"event": "resume", "time": start + 40, "step": first},
            {"event": "phase", "time": start + 41, "phase": "train", "step": first},
        ]
        progress, at = list[dict[str, Any]](), start + 60
        while at < start + 3600 * hours:
            at, step = at + 600, step + 300
            progress += [
                {"event": "progress", "time": at - 600 + 60 * n, "step": step - 300 + 30 * n} for n in range(1, 11)
            ]
            if at < start + 3600 * hours or not fails:
                guard += [
                    {"event": "save_begin", "time": at, "step": step},
                    {"event": "save_staged", "time": at + 8, "step": step, "seconds": 8.0},
                    {"event": "save", "time": at + 40, "step": step, "seconds": 40.0},
                ]
                at, saved = at + 8, step
        at += 60
        if not is_last or is_finished:
            guard.append({"event": "end", "time": at - 5, "step": step, "exit_code": 1 if fails else 75})
            word, code = ("finished", 0) if is_last else ("exited", 1) if fails else ("stopped", 75)
            path.with_suffix(".end").write_text(
                f'end = "{word}"\nexit_code = {code}\ntime = {at:.0f}\nlaunched = true\nwhy = "SIGUSR1"\n'
            )
        (run / "logs" / f"gpt-{job}.out").write_text(OOM if fails else "")
        for name, events in (("batch", batch), ("0", guard), ("progress", progress)):
            lines = [json.dumps({"attempt": number, "job_id": str(job), **one}) + "\n" for one in events]
            (run / "journal" / f"{job}.{name}.jsonl").write_text("".join(lines))
        step, at = saved, at + 120
    if is_finished:
        (run / "finished").write_text(f"attempt = {count}\ntime = {at:.0f}\n")
    if learned:
        losses = {"losses": [{"step": step, "losses": [4.0 - n / 100 for n in range(200)]}]}
        (run / "learned" / "0.json").write_text(json.dumps(losses))
