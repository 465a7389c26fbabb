"""`python -m benchmarks [NAME ...]`: measures what resil claims about speed, and says which claims hold.

Each module of this directory with a `run(options)` is a benchmark. The exit code says whether they ran, not whether the
targets were met: on a busy machine a figure is for a person to judge.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.measure import Claim, Options, Report, Row, table

SAMPLES, QUICK_SAMPLES = 21, 5
HERE = Path(__file__).resolve().parent


def discover() -> dict[str, Callable[[Options], Report]]:
    """The benchmarks by the names of their files."""
    names = sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_"))
    modules = {name: import_module(f"benchmarks.{name}") for name in names}
    return {name: module.run for name, module in modules.items() if hasattr(module, "run")}


def main(arguments: Sequence[str]) -> int:
    """Run the benchmarks that were named, or all, and print their tables."""
    found = discover()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of: {', '.join(found)} (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every sample there as well")
    parser.add_argument("--quick", action="store_true", help="small inputs, few samples: to see that it works")
    parser.add_argument("--samples", type=int, default=0, metavar="N", help=f"of each thing (default {SAMPLES})")
    wanted = parser.parse_args(arguments)
    if unknown := [name for name in wanted.names if name not in found]:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are: {', '.join(found)}")
    samples = wanted.samples or (QUICK_SAMPLES if wanted.quick else SAMPLES)
    print(f"{machine()}; {samples} samples of each, in turn; load {os.getloadavg()[0]:.1f}", flush=True)
    reports: dict[str, Report] = {}
    for name in wanted.names or found:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"resil-bench-{name}-") as scratch, contextlib.chdir(scratch):
            reports[name] = found[name](Options(wanted.quick, samples, Path(scratch)))
        _print(name, reports[name], time.monotonic() - began)
        if wanted.json is not None:
            wanted.json.write_text(json.dumps(_document(reports, samples), indent=1) + "\n")
    verdicts = [row.verdict for report in reports.values() for row in report.rows]
    verdicts += [claim.verdict for report in reports.values() for claim in report.claims]
    verdicts = list(filter(None, verdicts))
    print(f"\n{verdicts.count('met')} of {len(verdicts)} targets met")
    return 0


def machine() -> str:
    """This machine in a few words."""
    system = platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    return f"{os.cpu_count()} cores, {system}, Python {platform.python_version()}"


def _print(name: str, report: Report, took_s: float) -> None:
    print(f"\n## {name}: {report.title} ({took_s:.0f} s)\n")
    if report.rows:
        print(table(report.rows))
    for number, note in enumerate((*report.claims, *report.notes)):
        print(f"{'' if number else chr(10)}- {note}")
    sys.stdout.flush()


def _document(reports: dict[str, Report], samples: int) -> dict[str, Any]:
    return {
        "machine": machine(),
        "samples": samples,
        "benchmarks": {
            name: {
                "title": report.title,
                "notes": report.notes,
                "rows": [_row(row) for row in report.rows],
                "claims": [_claim(claim) for claim in report.claims],
            }
            for name, report in reports.items()
        },
    }


def _claim(claim: Claim) -> dict[str, Any]:
    met = claim.verdict == "met" if claim.verdict else None
    return {
        "what": claim.what,
        "value": claim.value,
        "unit": claim.unit,
        "target": claim.most if claim.verdict else None,
        "met": met,
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "what": row.what,
        "unit": row.unit,
        "values": row.measured.values,
        "baseline": row.baseline_name,
        "baseline_values": row.baseline.values,
        "ratio": row.ratio,
        "target": row.target,
        "met": None if row.target is None else row.verdict == "met",
    }


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
