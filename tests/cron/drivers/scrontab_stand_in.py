"""Stands in for SLURM's scrontab, as 24.11 and 26.05 were recorded to behave. Run as a program.

scrontab FILE | -l | -r          the table of $LOGNAME lies in $SITE/scrontab.table, its jobs in $SITE/scrontab.jobs
scrontab --scancel JOB           what `scancel JOB` does to the table: its entry is disabled, `#DISABLED: ` before it
scrontab --tick                  what each minute does: every entry whose job ended is queued again under the same id

`$SITE/scron_parameters` has what slurm.conf sets for ScronParameters; without `enable` in it, nothing is served.
Jobs are one JSON list: id, name, comment, spec, the lines of the entry, the batch script, how often it was restarted.
"""

from __future__ import annotations

import json
import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # this starts in a hundredth of a second without
    from typing import Any

Entry = tuple[int, int, dict[str, str], bytes, bytes]
SITE = os.environ["SITE"]
TABLE, JOBS = f"{SITE}/scrontab.table", f"{SITE}/scrontab.jobs"
FIELD = re.compile(rb"(\*|[0-9][-0-9,]*)(/[0-9]+)?$")
SHORT = {"J": "job-name", "t": "time", "o": "output", "p": "partition", "A": "account"}
WORDS = (b"@yearly", b"@annually", b"@monthly", b"@weekly", b"@daily", b"@midnight", b"@hourly")


def load(path: str, empty: bytes = b"") -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return empty


def disabled(table: bytes, jobs: Any) -> bytes:
    """The table as it is listed: lines of cancelled jobs have a prefix."""
    lines = table.split(b"\n")
    for job in jobs:
        if job["cancelled"]:
            for number in range(job["first"], job["last"] + 1):
                lines[number] = b"#DISABLED: " + lines[number]
    return b"\n".join(lines)


def parse(table: bytes) -> list[Entry] | None:
    """Every entry, with the options of the #SCRON lines before it; they are split at blanks and cannot be quoted."""
    entries: list[Entry] = []
    options: dict[str, str] = {}
    first: int | None = None
    for number, line in enumerate(table.split(b"\n")):
        text = line.lstrip(b" \t")
        if not text:
            continue
        if text.startswith(b"#SCRON"):
            first = number if first is None else first
            words = iter(text[6:].decode("utf-8", "surrogateescape").split())
            for word in words:
                if not word.startswith("-"):
                    print(f"scrontab: error: Invalid option found in #SCRON line: {word}", file=sys.stderr)
                    return None
                name, _, value = word.lstrip("-").partition("=")
                if name == "signal" and value.startswith("B:"):  # recorded from 24.11; 26.05 takes it
                    print("scrontab: error: Invalid --signal specification", file=sys.stderr)
                    print(f"scrontab: error: Invalid option found in #SCRON line: {word}", file=sys.stderr)
                    return None
                options[SHORT.get(name, name)] = value if word.startswith("--") else next(words, "")
            continue
        if text.startswith(b"#"):
            continue
        parts = text.split(None, 1) if text.startswith(b"@") else text.split(None, 5)
        is_word = len(parts) == 2 and parts[0] in WORDS
        if not is_word and not (len(parts) == 6 and all(FIELD.match(part) for part in parts[:5])):
            print("scrontab: error: something is broken", file=sys.stderr)
            return None
        first = number if first is None else first
        spec = parts[0] if is_word else b" ".join(parts[:5])
        entries.append((first, number, options, spec, parts[-1]))
        options, first = {}, None
    return entries


def main(arguments: list[str]) -> int:
    user = os.environ["LOGNAME"]
    if "enable" not in load(f"{SITE}/scron_parameters", b"enable").decode():
        print("scrontab: fatal: scrontab is disabled on this cluster", file=sys.stderr)
        return 1
    table = load(TABLE) if os.path.exists(TABLE) else None  # noqa: PTH110
    state: Any = json.loads(load(JOBS, b'{"next": 60, "jobs": []}'))
    if arguments == ["-l"]:
        if table is None:
            print(f"no crontab for {user}")
            return 1
        sys.stdout.buffer.write(disabled(table, state["jobs"]))
        return 0
    if arguments == ["-r"]:
        if table is not None:
            os.unlink(TABLE)  # noqa: PTH108 - pathlib takes as long to load as all of this
        state["jobs"] = []
    elif arguments[0] == "--scancel":
        for job in state["jobs"]:
            job["cancelled"] = job["cancelled"] or job["id"] == int(arguments[1])
    elif arguments[0] == "--tick":
        for job in state["jobs"]:
            job["restarts"] += not job["cancelled"]
    else:
        new = load(arguments[0])
        entries = parse(new)
        if entries is None:
            print("There are errors in your crontab.")
            return 1
        state["jobs"] = []
        for first, last, options, spec, raw in entries:
            command = raw.decode("utf-8", "surrogateescape")
            state["jobs"].append(
                {
                    "id": state["next"],
                    "name": options.get("job-name", command.split(" ")[0]),
                    "comment": options.get("comment", ""),
                    "options": options,
                    "spec": spec.decode(),
                    "script": f"#!/bin/sh\n# This job was submitted through scrontab\n{command}\n",
                    "first": first,
                    "last": last,
                    "restarts": 0,
                    "cancelled": False,
                }
            )
            state["next"] += 1
        with open(TABLE, "wb") as file:
            file.write(new)
    with open(JOBS, "w") as file:
        json.dump(state, file)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
