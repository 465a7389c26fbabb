"""Does and prints what changes the cron folder: add, remove, prune."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from resilience.cli.output import clean, print_json
from resilience.cli.show_cron import when
from resilience.quantities import format_bytes

if TYPE_CHECKING:
    from resilience.cron.add import NewEntry
    from resilience.cron.project import CronProject


def show_add(cron: CronProject, wanted: NewEntry, *, dry_run: bool, as_json: bool) -> None:
    """Schedule it, and say when it runs."""
    from resilience.cron.add import add

    done = add(cron, wanted, dry_run=dry_run)
    now = cron.project.world.clock.now()
    if as_json:
        print_json(
            "cron-add",
            {"name": done.name, "path": str(done.path), "text": done.text, "next": list(done.next),
             "notes": list(done.notes), "dry_run": dry_run},
        )  # fmt: skip
        return
    print(clean(f"{'would write' if dry_run else 'wrote'} {done.path}:"))
    for line in done.text.rstrip("\n").split("\n"):
        print(f"    {clean(line)}")
    if done.next:
        print(f"  next runs of {clean(done.name)}: {'; '.join(when(slot, now) for slot in done.next)}")
    else:
        print("  it runs once after each start of the machine")
    for note in done.notes:
        print(f"  {clean(note)}")
    if not dry_run:
        print(
            f"  what becomes of it: resil cron history {clean(done.name)}; undo: resil cron remove {clean(done.name)}"
        )


def show_remove(cron: CronProject, names: Sequence[str], *, dry_run: bool, as_json: bool) -> None:
    """Remove them, and say what that was."""
    from resilience.cron.remove import remove

    gone = remove(cron, names, dry_run=dry_run)
    if as_json:
        rows = [{"name": one.name, "place": one.place, "text": one.text, "is_link": one.is_link} for one in gone]
        print_json("cron-remove", {"removed": rows, "dry_run": dry_run})
        return
    for one in gone:
        print(clean(f"{'would remove' if dry_run else 'removed'} {one.place}"))
        if one.is_link:
            print(f"  only the link; {clean(one.text)} is still there")
        elif one.text:
            for line in one.text.split("\n"):
                print(f"    {clean(line)}")


def show_prune(cron: CronProject, *, dry_run: bool, as_json: bool) -> None:
    """Remove what is kept for too long, and say how much that was."""
    from resilience.cron.prune import prune

    done = prune(cron, dry_run=dry_run)
    kinds: dict[str, list[int]] = {}
    for removal in done.removals:
        kinds.setdefault(removal.what, []).append(removal.size_bytes)
    if as_json:
        groups = [{"what": what, "files": len(sizes), "bytes": sum(sizes)} for what, sizes in kinds.items()]
        print_json(
            "cron-prune",
            {"removed": groups, "marks": done.marks, "lines": done.lines, "trouble": list(done.trouble),
             "dry_run": dry_run},
        )  # fmt: skip
        return
    said = "would be removed" if dry_run else "removed"
    for what, sizes in kinds.items():
        print(f"{what}: {len(sizes)} {'file' if len(sizes) == 1 else 'files'} {said}, {format_bytes(sum(sizes))}")
    if done.lines:
        print(f"histories: {done.lines} old lines {said}")
    if done.marks:
        print(f"running: {done.marks} {'mark of a run that is' if done.marks == 1 else 'marks of runs that are'} "
              f"dead {said}")  # fmt: skip
    for text in done.trouble:
        print(f"  {clean(text)}")
    if not (kinds or done.lines or done.marks):
        print("nothing is kept for too long")
