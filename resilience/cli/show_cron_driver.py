"""Does and prints what concerns the driver of cron: install, uninstall, stop, and the canary."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from resilience.cli.output import clean, patience, print_json, table
from resilience.errors import EX_TEMPFAIL

if TYPE_CHECKING:
    from resilience.cron.canary import CanaryAnswer
    from resilience.cron.driver_choice import Choice
    from resilience.cron.install import Installed, Removed
    from resilience.cron.project import CronProject
    from resilience.cron.records import Installation

CANARY_POLL_S = 1.0
"""`--wait` looks so often."""


def show_install(cron: CronProject, *, backend: str, replace: bool, dry_run: bool, as_json: bool) -> int:
    """Install, or show what that would do."""
    from resilience.cron.install import install

    with patience("looking at what this site has: crontab, systemd, the scheduler"):
        done = install(cron.project, backend, dry_run=dry_run, replace=replace)
    if as_json:
        print_json("cron-install", _installed_to_json(done, dry_run=dry_run))
        return 0
    _show_choice(done.choice, is_installed=bool(not dry_run and not done.lines and not done.steps))
    if dry_run:
        for step in done.steps:
            print(f"would: {clean(step.what)}")
            _show_text(step.text)
        if not done.steps:
            print("nothing would be done: it is there already")
    for line in done.lines:
        print(clean(line))
    if not dry_run and not done.lines:
        print("nothing was to be done: it is there already")
    for note in done.notes:
        print(f"  {clean(note)}")
    if not dry_run:
        print("  what runs when: resil cron list; whether it lives: resil cron status")
        if done.choice.name == "foreground":
            print(
                f"  now start it, and leave it running: resil cron run (on {done.installation.host}, in tmux for one)"
            )
    return 0


def _show_choice(choice: Choice, *, is_installed: bool) -> None:
    print(f"{choice.name}: {clean(choice.why)}")
    others = [offer for offer in choice.offers if offer.name != choice.name]
    if others and not is_installed:
        rows = []
        for offer in others:
            state = "could be" if offer.availability.is_available else "no"
            rows.append((offer.name, state, offer.availability.reason))
        print("\n".join(table(("", "", ""), rows, ["dim"] * len(rows), indent=2)))


def _show_text(text: str) -> None:
    for line in text.rstrip("\n").split("\n") if text else ():
        print(f"    {clean(line)}".rstrip())


def _installed_to_json(done: Installed, *, dry_run: bool) -> dict[str, Any]:
    return {
        "driver": done.choice.name,
        "why": done.choice.why,
        "offers": [
            {
                "name": offer.name,
                "is_available": offer.availability.is_available,
                "reason": offer.availability.reason,
                "hint": offer.availability.hint,
            }
            for offer in done.choice.offers
        ],
        "dry_run": dry_run,
        "installation": installation_to_json(done.installation),
        "steps": [{"what": step.what, "text": step.text} for step in done.steps],
        "done": list(done.lines),
        "notes": list(done.notes),
    }


def installation_to_json(installation: Installation | None) -> dict[str, Any] | None:
    """An installation as JSON's own types, without its token: whoever has that could speak in its name.

    Without the environment of its ticks too (facts that begin with `$`): that is nobody's business, and long.
    """
    if installation is None:
        return None
    record = {key: value for key, value in installation.to_json().items() if key != "token"}
    return record | {"facts": {key: value for key, value in installation.facts.items() if key[:1] != "$"}}


def show_uninstall(cron: CronProject, *, force: bool, dry_run: bool, as_json: bool) -> int:
    """Take the driver out."""
    from resilience.cron.install import Removed, uninstall

    if dry_run:
        done = Removed(cron.state.installation())
    else:
        with patience("the scheduler takes its time"):
            done = uninstall(cron.project, force=force)
    if as_json:
        print_json("cron-uninstall", _removed_to_json(done) | {"dry_run": dry_run})
        return 0
    installation = done.installation
    if installation is None:
        print("nothing is installed")
    elif dry_run:
        print(f"would take out {installation.driver}, installed by {installation.by} on {installation.host}")
    _show_lines(done.lines, done.notes)
    if installation is not None and not dry_run:
        print(f"uninstalled: {installation.driver} makes no ticks any more; the cron folder stays as it is")
    return 0


def show_stop(cron: CronProject, *, why: str, as_json: bool) -> int:
    """Stop the scheduler."""
    from resilience.cron.install import stop

    with patience("the scheduler takes its time"):
        done = stop(cron.project, why)
    if as_json:
        print_json("cron-stop", _removed_to_json(done))
        return 0
    _show_lines(done.lines, done.notes)
    print("stopped: nothing runs any more, and nothing is submitted again")
    print("  go on: resil cron install; for good: resil cron uninstall")
    return 0


def _show_lines(lines: Iterable[str], notes: Iterable[str]) -> None:
    for line in lines:
        print(clean(line))
    for note in notes:
        print(f"  {clean(note)}")


def _removed_to_json(done: Removed) -> dict[str, Any]:
    return {
        "installation": installation_to_json(done.installation),
        "done": list(done.lines),
        "notes": list(done.notes),
    }


# ---- canary ---------------------------------------------------------------------------------------------------


def show_canary(cron: CronProject, *, wait_s: float, as_json: bool) -> int:
    """Ask for a canary and wait for what becomes of it."""
    from resilience.cron.canary import answer, ask

    clock = cron.project.world.clock
    id = ask(cron)
    if not as_json:
        print(f"canary {id}: the next tick will send it, and each channel says whether it took it", flush=True)
    deadline, is_taken = clock.monotonic() + wait_s, False
    found = answer(cron, id)
    while not _is_over(found) and clock.monotonic() < deadline:
        if found.taken is not None and not is_taken and not as_json:
            is_taken = True
            print(f"  taken up after {found.taken - found.asked:.1f} s by {clean(found.by)}", flush=True)
        clock.sleep(min(CANARY_POLL_S, max(0.05, deadline - clock.monotonic())))
        found = answer(cron, id)
    code = 0 if found.is_well else 1 if _is_over(found) else EX_TEMPFAIL
    if as_json:
        print_json("cron-canary", canary_to_json(found))
        return code
    for channel, took_it, said, after_s in found.channels:
        print(f"{'ok' if took_it else '!!'}  {clean(channel)} after {after_s:.1f} s: {clean(said)}")
    if found.trouble:
        print(f"!!  {clean(found.trouble)}")
    if not _is_over(found):
        if found.taken is None:
            print("no tick took it up in time")
            print("  try: resil cron status")
        else:
            print("taken up, and not every channel has answered yet; it is tried on")
            print("  try: resil alert list; resil alert flush")
    return code


def _is_over(found: CanaryAnswer) -> bool:
    return found.ended is not None or bool(found.trouble)


def canary_to_json(found: CanaryAnswer) -> dict[str, Any]:
    """A canary as JSON's own types."""
    return {
        "id": found.id,
        "asked": found.asked,
        "taken": found.taken,
        "by": found.by,
        "ended": found.ended,
        "is_well": found.is_well,
        "trouble": found.trouble,
        "channels": [
            {"channel": channel, "is_delivered": took_it, "answer": said, "after_s": after_s}
            for channel, took_it, said, after_s in found.channels
        ],
    }
