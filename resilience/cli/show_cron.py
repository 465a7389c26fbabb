"""Prints the results of the commands of `resil cron`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilience.cli.output import chosen, clean, paint, patience, plain, print_indented, print_json, print_table
from resilience.cron.entries import EntryRow, Listing, lateness_s, took_s
from resilience.cron.health import Health
from resilience.cron.logs import Log, find_logs, follow, read_text, without_escapes
from resilience.cron.records import Kind, Outcome, RunRecord
from resilience.cron.status import CronStatus
from resilience.cron.words import slot_text
from resilience.errors import EX_TEMPFAIL, ResilError, UsageError
from resilience.job import Liveness
from resilience.messages import cut, plural
from resilience.quantities import format_bytes, format_duration

if TYPE_CHECKING:
    from resilience.cron.canary import CanaryAnswer
    from resilience.cron.edit import NewEntry
    from resilience.cron.install import Installed, Removed
    from resilience.cron.project import CronProject
    from resilience.cron.records import Installation
    from resilience.doctor.cron import CronExamination

_COLOURS = {Health.ALIVE: "green", Health.LATE: "red", Health.DEAD: "red"}
_SIGNS = {"ok": (Outcome.DONE, Outcome.SUBMITTED), "..": (Outcome.RUNNING,), "--": (Outcome.SKIPPED, Outcome.MISSED)}
"""The outcomes with this sign; a failure has `!!`."""
_SUMMARY_CHARACTERS = 70


def show_status(found: CronStatus, *, as_json: bool = False) -> None:
    """Print the state of the scheduler, then the entries."""
    if as_json:
        document = {
            **chosen(found.judgement, "health", "reason", "advice"),
            **chosen(found, "driver", "heartbeat", "stopped", "lateness", "trouble"),
            "time": found.now,
            "installation": installation_to_json(found.installation),
            "ignored": len(found.listing.ignored),
            "faults": found.listing.faults,
            "next": [{"slot": slot, "name": name} for slot, name in found.listing.next],
            "entries": [row.to_json() for row in found.listing.rows],
        }
        print_json("cron-status", document)
        return
    judgement, now = found.judgement, found.now
    health = paint(judgement.health.value, _COLOURS.get(judgement.health, "yellow"))
    print(f"{paint('cron', 'bold')}  {health}: {clean(judgement.reason)}")
    if judgement.advice:
        print(f"  try: {clean(judgement.advice)}")
    print_indented(_facts(found))
    for text in found.trouble:
        if text != judgement.reason:
            print(paint(f"  {clean(text)}", "yellow"))
    if found.listing.next:
        first = found.driver.next_tick or now if found.driver is not None else now
        is_running = first <= found.listing.next[0][0] + judgement.patience_s and judgement.health in (
            Health.ALIVE, Health.WAITING, Health.LATE, Health.UNKNOWN
        )  # fmt: skip
        print("  next:" if is_running else "  next, once the scheduler runs:")
        print_table(("", ""), [(when(slot, now), name) for slot, name in found.listing.next], indent=4)
    if found.listing.rows:
        print_table(("LAST", "ENTRY", "WHEN", "RESULT", "7 DAYS"), *_last(found.listing.rows, now), indent=2)
    elif judgement.health is not Health.UNKNOWN and not found.trouble:
        print(
            f"  nothing is scheduled: drop a file into {clean(found.directory)}/cron.hourly, or: resil cron add --help"
        )
    print_ignored(found.listing.faults, indent="  ")


def _facts(found: CronStatus) -> list[str]:
    installation, heartbeat, now, lines = found.installation, found.heartbeat, found.now, []
    if installation is not None:
        mode = f" ({installation.mode})" if installation.mode else ""
        lines.append(
            f"driver: {installation.driver}{mode}, installed by {installation.by} on {installation.host}, "
            f"{ago(installation.time, now)}"
        )
        if why := installation.facts.get("why"):
            lines.append(f"  {why}")
        if found.driver is not None:
            gone_as_expected = found.stopped is not None and found.driver.liveness is Liveness.GONE
            driver = f"{found.driver.liveness.value}: {found.driver.summary}"
            lines.append("  no job or process of it is left, as expected" if gone_as_expected else f"  {driver}")
            if found.driver.next_tick is not None:
                lines.append(f"  next tick: {when(found.driver.next_tick, now)}")
    if heartbeat is not None:
        place = heartbeat.host + (f", job {heartbeat.job_id}" if heartbeat.job_id else "")
        lines.append(f"last tick: {ago(heartbeat.time, now)}, by {heartbeat.driver or 'an unknown driver'} on {place}")
        since = slot_text(heartbeat.alive_since, now)
        lines.append(f"alive since {since}: {plural(heartbeat.ticks, 'tick')}")
        if heartbeat.trouble:
            lines.append(f"error in that tick: {heartbeat.trouble}")
        late = f"late by {format_duration(round(heartbeat.late_s, 1))}" if heartbeat.late_s >= 0.05 else "on time"
        if (lateness := found.lateness) is not None:
            runs = "run" if lateness.runs == 1 else f"{lateness.runs} runs"
            median, p95 = _seconds(lateness.median_s), _seconds(lateness.p95_s)
            late += f"; the last {runs} began {median} after the slot, jitter included (median; {p95} at p95)"
        lines.append(f"lateness: the last tick was {late}")
    return lines


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else format_duration(seconds)


def _last(rows: Sequence[EntryRow], now: float) -> tuple[list[tuple[str, ...]], list[str]]:
    cells: list[tuple[str, ...]] = []
    colours: list[str] = []
    for row in rows:
        last = row.last
        counts = [f"{count} {what}" for count, what in
                  ((row.failed, "failed"), (row.missed, "missed"), (row.skipped, "skipped")) if count]  # fmt: skip
        if last is None:
            cells.append(("", row.entry.name, "", "has not run yet", ", ".join(counts)))
        else:
            cells.append((sign(last.outcome), row.entry.name, slot_text(last.slot, now), outcome_text(last, now),
                          ", ".join(counts)))  # fmt: skip
        colours.append("red" if last is not None and last.outcome.is_failure else "")
    return cells, colours


def sign(outcome: Outcome) -> str:
    """Return two characters for an outcome: `ok`, `!!`, `..`, `--`."""
    return next((sign for sign, outcomes in _SIGNS.items() if outcome in outcomes), "!!")


def outcome_text(run: RunRecord, now: float | None = None) -> str:
    """Return the outcome of a slot, in one line."""
    text = run.outcome.value
    if run.outcome is Outcome.RUNNING and now is not None and run.started is not None:
        text += f" for {span(now - run.started)}"
    if run.outcome in (Outcome.MISSED, Outcome.SKIPPED) and run.count > 1:
        text += f" {run.count}"
    if run.job_id:
        text += f" as job {run.job_id}"
    elif run.exit_code is not None and run.outcome is Outcome.FAILED:
        text += f", exit code {run.exit_code}"
    if run.summary and run.outcome.is_failure and run.summary not in text:
        text += f": {cut(clean(run.summary), _SUMMARY_CHARACTERS)}"
    return text


def when(moment: float, now: float) -> str:
    """Return `18:00, in 12 min`."""
    if moment <= now:
        return f"{slot_text(moment, now)}, now"
    return f"{slot_text(moment, now)}, in {span(moment - now)}"


def ago(moment: float, now: float) -> str:
    """Return `12 min ago`; for a future moment, a text that points to a wrong clock."""
    if moment > now + 1:
        return f"{span(moment - now)} in the future, by this machine's clock"
    return f"{span(now - moment)} ago"


def span(seconds: float) -> str:
    """Return a rounded duration: whole seconds below two minutes, whole minutes below two hours."""
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < 7200:
        return f"{seconds // 60:.0f} min"
    return format_duration(seconds)


def print_ignored(faults: int, indent: str = "") -> None:
    """Print the number of ignored items that were probably meant to run; a README is not counted."""
    if faults:
        text = f"{plural(faults, 'item')} in the cron directory cannot run, probably by mistake: resil cron doctor"
        print(paint(indent + text, "yellow"))


# ---- list -----------------------------------------------------------------------------------------------------


def show_listing(found: Listing, now: float, directory: Path, *, as_json: bool) -> None:
    """Print the table of entries."""
    if as_json:
        print_json(
            "cron-list", chosen(found, "ignored", "trouble") | {"entries": [row.to_json() for row in found.rows]}
        )
        return
    for text in found.trouble:
        print(paint(f"  {clean(text)}", "yellow"))
    if found.rows:
        headers = ("ENTRY", "RUNS", "NEXT", "KIND", "TIMEOUT", "OPTIONS", "PLACE", "COMMAND")
        print_table(headers, [_cells(row, now) for row in found.rows])
    else:
        print(f"nothing is scheduled in {clean(str(directory))}")
        print("  try: drop a file into its cron.hourly, or: resil cron add NAME --hourly -- COMMAND")
    print_ignored(found.faults)


def _cells(row: EntryRow, now: float) -> tuple[str, ...]:
    entry, timeout_s = row.entry, row.entry.options.timeout_s
    timeout = "" if entry.kind is Kind.SUBMIT else format_duration(timeout_s) if timeout_s else "none"
    options = " ".join(f"{key}={value}" if value else key for key, value in row.options.items() if key != "timeout")
    upcoming = "now" if row.is_due else when(row.next, now) if row.next is not None else "-"
    return entry.name, row.words, upcoming, entry.kind.value, timeout, options, entry.place, cut(row.command, 60)


# ---- add, remove, prune ---------------------------------------------------------------------------------------


def show_add(cron: CronProject, entry: NewEntry, *, dry_run: bool, as_json: bool) -> None:
    """Schedule an entry, and print its next runs."""
    from resilience.cron.edit import add

    done = add(cron, entry, dry_run=dry_run)
    now = cron.project.system.clock.now()
    if as_json:
        print_json("cron-add", chosen(done, "name", "path", "text", "next", "notes") | {"dry_run": dry_run})
        return
    print(clean(f"{'would write' if dry_run else 'wrote'} {done.path}:"))
    print_indented(done.text.rstrip("\n").split("\n"), 4)
    if done.next:
        print(f"  next runs of {clean(done.name)}: {'; '.join(when(slot, now) for slot in done.next)}")
    else:
        print("  runs once after each boot of the machine")
    print_indented(done.notes)
    if not dry_run:
        print(f"  results: resil cron history {clean(done.name)}; to remove it: resil cron remove {clean(done.name)}")


def show_remove(cron: CronProject, names: Sequence[str], *, dry_run: bool, as_json: bool) -> None:
    """Remove entries, and print them."""
    from resilience.cron.edit import remove

    gone = remove(cron, names, dry_run=dry_run)
    if as_json:
        rows = [chosen(one, "name", "place", "text", "is_link") for one in gone]
        print_json("cron-remove", {"removed": rows, "dry_run": dry_run})
        return
    for one in gone:
        print(clean(f"{'would remove' if dry_run else 'removed'} {one.place}"))
        if one.is_link:
            print(f"  only the link; {clean(one.text)} stays")
        elif one.text:
            print_indented(one.text.split("\n"), 4)


def show_prune(cron: CronProject, *, dry_run: bool, as_json: bool) -> None:
    """Remove expired files, and print how many."""
    from resilience.cron.prune import prune

    done = prune(cron, dry_run=dry_run)
    kinds: dict[str, list[int]] = {}
    for removal in done.removals:
        kinds.setdefault(removal.what, []).append(removal.size_bytes)
    if as_json:
        groups = [{"what": what, "files": len(sizes), "bytes": sum(sizes)} for what, sizes in kinds.items()]
        counts = chosen(done, "marks", "trouble")
        print_json("cron-prune", {"removed": groups, "dry_run": dry_run, "lines": 0} | counts)
        return
    removed = "would be removed" if dry_run else "removed"
    for what, sizes in kinds.items():
        print(f"{what}: {plural(len(sizes), 'file')} {removed}, {format_bytes(sum(sizes))}")
    if done.marks:
        print(f"running: {plural(done.marks, 'mark')} of dead runs {removed}")
    print_indented(done.trouble)
    if not (kinds or done.marks):
        print("nothing has expired")


def show_examination(found: CronExamination, *, as_json: bool) -> None:
    """Print a line for each diagnosis, and one for each ignored file, with advice."""
    from resilience.cli.doctor import show_diagnoses

    if as_json:
        print_json("cron-doctor", chosen(found, "is_broken", "diagnoses", "ignored"))
        return
    ignored = sorted(found.ignored, key=lambda one: not one.is_fault)
    show_diagnoses(found.diagnoses, [
        ("CRITICAL" if one.is_fault else "ignored", one.place, one.reason, one.hint, "red" if one.is_fault else "dim")
        for one in ignored
    ])  # fmt: skip
    if found.is_broken:
        print(paint("an entry cannot run: see CRITICAL", "red"))


def show_environment(variables: Mapping[str, str], secret: Collection[str], *, as_json: bool) -> None:
    """Print the variables; the values of secrets, and of the variables named in `secret`, are hidden."""
    from resilience.cron.table.environment import secrets_of
    from resilience.system.redaction import REDACTED

    secrets = set(secrets_of(variables, secret))
    shown = {name: REDACTED if value in secrets else value for name, value in sorted(variables.items())}
    if as_json:
        print_json("cron-environment", {"environment": shown})
    else:
        print_indented((f"{name}={value}" for name, value in shown.items()), 0)


CANARY_POLL_S = 1.0
"""Interval at which `--wait` polls."""


def show_install(cron: CronProject, *, backend: str, replace: bool, dry_run: bool, as_json: bool) -> None:
    """Install, or print the steps."""
    from resilience.cron.install import install

    with patience("checking which drivers are available: crontab, systemd, the scheduler"):
        done = install(cron.project, backend, dry_run=dry_run, replace=replace)
    choice = done.choice
    if as_json:
        offers = [{"name": offer.name} | plain(offer.availability) for offer in choice.offers]
        document = {"driver": choice.name, "why": choice.why, "offers": offers, "dry_run": dry_run, "steps": done.steps}
        print_json("cron-install", document | _changed_to_json(done))
        return
    print(f"{choice.name}: {clean(choice.why)}")
    others = [(offer.name, *offer.availability) for offer in choice.offers if offer.name != choice.name]
    if others and (dry_run or done.lines or done.steps):
        rows = [(name, "available" if is_available else "no", why) for name, is_available, why, _ in others]
        print_table(("", "", ""), rows, ["dim"] * len(rows), indent=2)
    if dry_run:
        for step in done.steps:
            print(f"would: {clean(step.what)}")
            print_indented(step.text.rstrip("\n").split("\n") if step.text else (), 4)
    if not (done.steps if dry_run else done.lines):
        print("no change: already installed")
    _show_lines(done.lines, done.notes)
    if not dry_run:
        print("  entries: resil cron list; health: resil cron status")
        if choice.name == "foreground":
            where = f"(on {done.installation.host}, for example in tmux)"
            print(f"  now start it and keep it running: resil cron run {where}")


def _changed_to_json(done: Installed | Removed) -> dict[str, Any]:
    return {"installation": installation_to_json(done.installation), "done": done.lines, "notes": done.notes}


def installation_to_json(installation: Installation | None) -> dict[str, Any] | None:
    """Return an installation for a JSON document, without its token: the token authorizes a driver.

    The environment of its ticks (facts that begin with `$`) is private, and left out too.
    """
    if installation is None:
        return None
    record: dict[str, Any] = plain(installation) | {
        "facts": {k: v for k, v in installation.facts.items() if k[:1] != "$"}
    }
    del record["token"]
    return record


def show_uninstall(cron: CronProject, *, force: bool, dry_run: bool, as_json: bool) -> None:
    """Uninstall the driver."""
    from resilience.cron.install import Removed, uninstall

    if dry_run:
        done = Removed(cron.state.installation())
    else:
        with patience("the scheduler is slow to respond"):
            done = uninstall(cron.project, force=force)
    if as_json:
        print_json("cron-uninstall", _changed_to_json(done) | {"dry_run": dry_run})
        return
    installation = done.installation
    if installation is None:
        print("nothing is installed")
    elif dry_run:
        print(f"would uninstall {installation.driver}, installed by {installation.by} on {installation.host}")
    _show_lines(done.lines, done.notes)
    if installation is not None and not dry_run:
        print(f"uninstalled: {installation.driver} makes no more ticks; the cron directory is unchanged")


def show_stop(cron: CronProject, *, why: str, as_json: bool) -> None:
    """Stop the scheduler."""
    from resilience.cron.install import stop

    with patience("the scheduler is slow to respond"):
        done = stop(cron.project, why)
    if as_json:
        print_json("cron-stop", _changed_to_json(done))
        return
    _show_lines(done.lines, done.notes)
    print("stopped: no entry starts, and no job is submitted")
    print("  to restart: resil cron install; to remove the driver: resil cron uninstall")


def _show_lines(lines: Iterable[str], notes: Iterable[str]) -> None:
    print_indented(lines, 0)
    print_indented(notes)


# ---- canary ---------------------------------------------------------------------------------------------------


def show_canary(cron: CronProject, *, wait_s: float, as_json: bool) -> int:
    """Request a canary and wait for its result."""
    from resilience.cron.canary import answer as canary_answer
    from resilience.cron.canary import ask

    clock = cron.project.system.clock
    id = ask(cron)
    if not as_json:
        print(f"canary {id}: the next tick sends it; waiting for the response of each channel", flush=True)
    deadline, is_picked_up = clock.monotonic() + wait_s, False
    found = canary_answer(cron, id)
    while not _is_over(found) and clock.monotonic() < deadline:
        if found.taken is not None and not is_picked_up and not as_json:
            is_picked_up = True
            print(f"  picked up after {found.taken - found.asked:.1f} s by {clean(found.by)}", flush=True)
        clock.sleep(min(CANARY_POLL_S, max(0.05, deadline - clock.monotonic())))
        found = canary_answer(cron, id)
    code = 0 if found.is_well else 1 if _is_over(found) else EX_TEMPFAIL
    if as_json:
        keys = ("channel", "is_delivered", "answer", "after_s")
        channels = [dict(zip(keys, channel, strict=True)) for channel in found.channels]
        about = chosen(found, "id", "asked", "taken", "by", "ended", "is_well", "trouble")
        print_json("cron-canary", about | {"channels": channels})
        return code
    for channel, is_delivered, answer, after_s in found.channels:
        print(f"{'ok' if is_delivered else '!!'}  {clean(channel)} after {after_s:.1f} s: {clean(answer)}")
    if found.trouble:
        print(f"!!  {clean(found.trouble)}")
    if not _is_over(found) and found.taken is None:
        print("no tick picked it up in time\n  try: resil cron status")
    elif not _is_over(found):
        print("picked up, but not every channel has responded yet\n  try: resil alert test")
    return code


def _is_over(found: CanaryAnswer) -> bool:
    return found.ended is not None or bool(found.trouble)


# ---- history and logs -----------------------------------------------------------------------------------------


def show_history(runs: Sequence[RunRecord], *, of_one: bool, now: float, as_json: bool) -> None:
    """Print one line for each slot."""
    if as_json:
        keys = ("name", "slot", "outcome", "time", "started", "exit_code", "summary", "count")
        print_json("cron-history", {"runs": [
            chosen(run, *keys) | {
                "is_failure": run.outcome.is_failure, "late_s": lateness_s(run), "took_s": took_s(run),
                "job": run.job_id or None, "host": run.host or None, "output": run.output or None,
            }
            for run in runs
        ]})  # fmt: skip
        return
    if not runs:
        print("the entry has not run yet" if of_one else "no entry has run yet")
        print("  next runs: resil cron list")
        return
    cells, colours = [], []
    for run in runs:
        late, took = lateness_s(run), took_s(run, now)
        cells.append((
            sign(run.outcome),
            slot_text(run.slot, now),
            "" if of_one else run.name,
            "" if late is None else _seconds(late),
            "" if took is None else _seconds(took) + (" so far" if run.outcome is Outcome.RUNNING else ""),
            "" if run.exit_code is None else str(run.exit_code),
            run.job_id,
            run.host,
            _result(run),
        ))  # fmt: skip
        colours.append("red" if run.outcome.is_failure else "dim" if sign(run.outcome) == "--" else "")
    headers = ("", "SLOT", "ENTRY", "LATE", "TOOK", "CODE", "JOB", "HOST", "RESULT")
    print_table(headers, cells, colours)


def _result(run: RunRecord) -> str:
    text = run.outcome.value
    if run.count > 1:
        text += f" {run.count} slots"
    if run.summary and run.summary != text:
        text += f": {clean(run.summary)}"
    return text


def show_logs(cron: CronProject, name: str, *, slot: str, last: int, follows: bool, path_only: bool) -> None:
    """Write the outputs, oldest first, each with a header on standard error."""
    found = find_logs(cron, name, slot=slot, last=last)
    now = cron.project.system.clock.now()
    for log in found:
        if not path_only:
            _show(cron, log, now, follows=follows and log is found[-1])
        elif log.path is not None:
            print(log.path)
        else:
            raise UsageError(f"there is no file: {log.reason}", hint=f"resil cron history {log.run.name}")


def _show(cron: CronProject, log: Log, now: float, *, follows: bool) -> None:
    run = log.run
    print(f"==> {clean(run.name)} {slot_text(run.slot, now)}: {outcome_text(run)} <==", file=sys.stderr, flush=True)
    if log.reason:
        print(f"  {log.reason}", file=sys.stderr, flush=True)
    position = 0
    if log.path is not None:
        text, position, left_out = read_text(log.path)
        if left_out:
            print(f"  the first {format_bytes(left_out)} are left out: less {log.path}", file=sys.stderr, flush=True)
        _write(text)
    if follows:
        for text in follow(cron, log, position):
            _write(text)


def print_output(cron: CronProject, key: str, since: int, position: int, *, is_over: bool = False) -> int:
    """Print new whole lines of the run that began in slot `since`; of a run that is over, the rest. Return the next
    position."""
    from resilience.cron.table.output import number_of, output_directory, outputs

    raw = b""
    with suppress(ResilError, OSError):  # unreadable for now
        names = [name for name in outputs(cron.state, key) if int(number_of(name)) >= since]
        for name in names[-1:]:
            with open(output_directory(cron.state, key) / name, "rb") as file:
                file.seek(position)
                raw = file.read()
    lines = raw if is_over else raw[: raw.rfind(b"\n") + 1]
    _write(lines.decode("utf-8", "replace"))
    return position + len(lines)


def _write(text: str) -> None:
    sys.stdout.write(without_escapes(text))
    if text and not text.endswith("\n") and sys.stdout.isatty():
        sys.stdout.write("\n")
    sys.stdout.flush()
