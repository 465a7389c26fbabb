"""`resil ckpt`: lists, verifies, pins, prunes and seals the checkpoints of a run, and prints the newest good one."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from resilience.checkpoints.directory import Checkpoint, StoreDirectory
from resilience.checkpoints.names import BAD, SEALS, Pattern
from resilience.checkpoints.settings import CheckpointSettings
from resilience.cli import ckpt_plan
from resilience.cli.open_store import (
    NameArgument,
    NamesArgument,
    NewestArgument,
    Opened,
    StoreOption,
    WhyOption,
    complete_bad,
    configured_store,
    find,
    find_bad,
    opened,
)
from resilience.cli.options import ConfigOption, JsonOption
from resilience.cli.output import clean, paint, plain, print_json, print_table, reading, say
from resilience.errors import EX_TEMPFAIL, CheckpointError, ResilError, UsageError
from resilience.messages import plural, quoted
from resilience.quantities import LONGEST_S, format_bytes
from resilience.system.ports import System

if TYPE_CHECKING:
    from resilience.checkpoints.adopt import Found
    from resilience.checkpoints.verify import Verification

EXIT_DAMAGED = 1

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback(
    epilog='Examples: resil ckpt list; resil ckpt verify --deep; python train.py --load "$(resil ckpt latest)"'
)
def ckpt_group() -> None:
    """List, verify, pin, prune and seal checkpoints, and print the newest good one.

    The directory: --store, else path of [checkpoints] in resil.toml, else the current directory if it is one.
    """


# ---- list and show --------------------------------------------------------------------------------------------


@app.command("list", epilog="Examples: resil ckpt list; resil ckpt list --store /scratch/gpt/ckpt --json")
def list_checkpoints(store: StoreOption = None, as_json: JsonOption = False, config: ConfigOption = None) -> None:
    """List checkpoints, saves in flight, what was set aside."""
    from resilience.cli.show_ckpt import show_list

    with opened(store, config) as found:
        show_list(found.store, found.now, as_json=as_json)


@app.command(epilog="Examples: resil ckpt show; resil ckpt show 41200; resil ckpt show step-00041200 --json")
def show(
    name: NewestArgument = "", store: StoreOption = None, as_json: JsonOption = False, config: ConfigOption = None
) -> None:
    """Show what is known of a checkpoint.

    When and by which attempt it was saved, its files and metrics, when it was verified; why it was set aside.
    """
    from resilience.checkpoints.pins import read_pins
    from resilience.cli.show_ckpt import show_checkpoint, show_set_aside

    with opened(store, config, name) as found:
        names = {word for one in found.store.checkpoints() for word in (one.name, str(one.step))}
        is_there = Path(name).name in names and Path(name).parent.name != BAD
        if not is_there and (bad := find_bad(found.store, name)):
            show_set_aside(found.store, bad, as_json=as_json)
            return
        checkpoint = find(found.store, name)
        show_checkpoint(checkpoint, read_pins(found.store).get(checkpoint.name), found.now, as_json=as_json)


# ---- latest and verify ----------------------------------------------------------------------------------------


@app.command(epilog='Examples: python train.py --load "$(resil ckpt latest)"; resil ckpt latest --verified')
def latest(
    verified: Annotated[
        bool, typer.Option("--verified", help="Read every file, unless that was done within a day.")
    ] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Print the path of the newest good checkpoint.

    Each of its files is there, with its size and a complete structure; with --verified, each byte is the committed one.
    Exit codes: 1: there is none yet. 4: there were some, and none is good. 75: it could not be looked at.
    """
    with opened(store, config, must_exist=False, reads=verified) as found:
        checkpoint = _newest_good(found, deep=verified)
        if checkpoint is None:
            is_there = found.store.path.is_dir()
            say(f"no checkpoint yet in {found.store.path}{'' if is_there else ', which does not exist'}")
            raise typer.Exit(1)
        newer = [name for name, step in _unsealed(found) if step > checkpoint.step]
        if newer:
            say(f"{newer[-1]} is newer, and has no seal: to seal it if it is complete: resil ckpt adopt --new")
        print(checkpoint.path)


def _newest_good(found: Opened, *, deep: bool) -> Checkpoint | None:
    """Return the newest good checkpoint, or None if there never was one. Only records what was read.

    Raise NoGoodCheckpoint if there were some, CheckpointError if they could not be looked at; OSError.
    """
    from resilience.base.files import exists
    from resilience.checkpoints.resume import Alone, Look
    from resilience.checkpoints.verified import read_trusted, write_verified

    class Terminal(Alone):
        """Warns once of each checkpoint that is passed over."""

        said: ClassVar[set[str]] = set()

        def warn(self, text: str) -> None:
            if text not in self.said:
                self.said.add(text)
                say(f"warning: {text}")

    store = found.store
    checkpoint = None
    if exists(store.path):
        checkpoint = Look(store, Terminal(), budget_s=0, reads_only=True).choose().checkpoint
    if checkpoint is None:
        _refuse_fresh_start(found)
        return None
    if deep and read_trusted(checkpoint, found.now) is None:
        with reading("reading checkpoints", _size(checkpoint)):
            checkpoint, _, shown = Look(store, Terminal(), budget_s=LONGEST_S, reads_only=True).choose()
        if checkpoint is not None and shown is not None:
            with suppress(OSError):  # a directory that may only be read
                write_verified(checkpoint, shown, found.now)
    return checkpoint


def _refuse_fresh_start(found: Opened) -> None:
    """Raise NoGoodCheckpoint if there were checkpoints although none is there now: a fresh start would lose the run."""
    from resilience.checkpoints.resume import NoGoodCheckpoint

    if unsealed := _unsealed(found):
        raise NoGoodCheckpoint(
            f"{found.store.path} has {plural(len(unsealed), 'checkpoint')} without a seal",
            hint="to seal those that are complete: resil ckpt adopt --new",
        )
    if found.run and (saved := _saved_by(found.run)):
        raise NoGoodCheckpoint(
            f"{found.store.path} has no checkpoint, although {saved}", hint="is it mounted on this node?"
        )


def _unsealed(found: Opened) -> list[tuple[str, int]]:
    """Return names and steps of what a framework saved and nothing sealed, the oldest step first."""
    from resilience.cli.show_ckpt import foreign

    settings = found.settings
    if settings is None or not (settings.pattern or settings.tracker) or not found.store.path.is_dir():
        return []
    from resilience.checkpoints.adopt import pattern_of

    pattern = pattern_of(settings.pattern, settings.tracker)
    steps = [(name, step) for name in foreign(found.store) if (step := pattern.step_of(name)) is not None]
    return sorted(steps, key=lambda one: one[1])


def _saved_by(run: str) -> str:
    """Return what the records of a run say of its saves; empty if they know of none."""
    from resilience.base.files import read_regular
    from resilience.checkpoints.store import RECORD
    from resilience.cli.options import open_project
    from resilience.runs.run_files import newest_save, read_attempts

    with suppress(ResilError, OSError, ValueError, AttributeError):
        directory = open_project(banner=False).existing(run)
        save = newest_save(directory, [attempt.job_id for attempt in read_attempts(directory)])
        if save is not None and save.step is not None:
            return f"step {save.step} was saved"
        record = read_regular(directory.path / RECORD)
        if record is not None and json.loads(record[0]).get("committed"):
            return f"run {run} has saved"
    return ""


def read_and_record(checkpoint: Checkpoint, level: str, now: float) -> Verification:
    """Verify a checkpoint, with the progress on a terminal, and record what was found, if the directory permits it.

    Damage that was found by reading it stays, until it is read again.
    """
    from resilience.checkpoints.verified import read_verified, write_verified
    from resilience.checkpoints.verify import verify as verify_checkpoint

    with reading(f"reading {checkpoint.name}", _size(checkpoint) if level == "digest" else 0):
        found = verify_checkpoint(checkpoint, level)
    with suppress(OSError):
        write_verified(checkpoint, found, now)
        if found.is_good and (known := read_verified(checkpoint)) is not None and known.fault is not None:
            return replace(found, level=known.level, fault=known.fault)
    return found


def _size(checkpoint: Checkpoint) -> int:
    with suppress(CheckpointError, OSError):
        return checkpoint.manifest().size_bytes
    return 0


@app.command(
    epilog="Examples: resil ckpt verify; resil ckpt verify --all --deep; resil ckpt verify 41200 --with './load.py'"
)
def verify(
    names: NamesArgument = None,
    everything: Annotated[bool, typer.Option("--all", help="Verify every checkpoint.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Read every file, and compare its digest.")] = False,
    command: Annotated[
        str,
        typer.Option(
            "--with", metavar="COMMAND", help="Also run this with the path as last argument and in $RESIL_CHECKPOINT."
        ),
    ] = "",
    store: StoreOption = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Verify checkpoints, by default the newest.

    Each file is there, with its size and a complete structure; with --deep, each byte is the committed one.

    Exit codes: 1: one is damaged, or COMMAND failed. 75: one could not be looked at.
    """
    if names and everything:
        raise UsageError("--all verifies every checkpoint", hint="give names, or --all")
    argv = _argv(command)
    with opened(store, config, *(names or ()), reads=True) as found:
        everyone = found.store.checkpoints() if everything else [find(found.store, name) for name in names or [""]]
        if not everyone:
            find(found.store, "")  # says that there is none
        looked = [(one, *_look(one, "digest" if deep else "structure", found.now, argv, as_json)) for one in everyone]
    if as_json:
        content = [
            {
                "name": one.name, "path": one.path, "level": result.level, "is_good": result.is_good and not failure,
                "fault": result.fault, "why_unknown": result.why_unknown, "command": failure,
            }
            for one, result, failure in looked
        ]  # fmt: skip
        print_json("verification", {"checkpoints": content})
    if any(result.fault is not None or failure for _, result, failure in looked):
        raise typer.Exit(EXIT_DAMAGED)
    if not all(result.is_good for _, result, _ in looked):
        raise typer.Exit(EX_TEMPFAIL)


def _argv(command: str) -> list[str]:
    """Return the words of a command. Raise UsageError if a shell could not read them, or there is no such program."""
    import shutil

    try:
        argv = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--with {command!r}: {error}", hint="close the quotes") from None
    if argv and shutil.which(argv[0]) is None:
        raise UsageError(f"--with: there is no program {argv[0]!r}", hint="give its path, such as ./load.py")
    return argv


def _look(
    checkpoint: Checkpoint, level: str, now: float, argv: Sequence[str], as_json: bool
) -> tuple[Verification, str]:
    """Verify a checkpoint, load it with the user's command, and print what was found, unless for JSON."""
    result = read_and_record(checkpoint, level, now)
    failure = ""
    if argv and result.fault is None:
        environ = os.environ | {"RESIL_CHECKPOINT": str(checkpoint.path)}
        code = subprocess.call([*argv, str(checkpoint.path)], env=environ, stdout=2 if as_json else None)
        end = f"ended with code {code}" if code > 0 else f"was ended by signal {-code}"
        failure = f"{argv[0]} {end}" if code else ""
    if not as_json:
        good = result.is_good and not failure
        text = failure if failure and result.is_good else str(result)
        print(f"{clean(checkpoint.name)}: {paint(clean(text), 'green' if good else 'red')}", flush=True)
        if result.fault is not None or failure:
            to_do = "resume from one that is good: resil ckpt latest"  # its framework may look for it
            if not checkpoint.is_sealed:
                to_do = f"to set it aside: resil ckpt quarantine {quoted(checkpoint.name)}"
            print(f"  {to_do}")
    return result, failure


# ---- pin, quarantine, prune -----------------------------------------------------------------------------------


@app.command(epilog="Examples: resil ckpt pin 41200 --why 'the one of the paper'")
def pin(name: NameArgument, why: WhyOption = "", store: StoreOption = None, config: ConfigOption = None) -> None:
    """Keep a checkpoint whatever the rules say."""
    from resilience.checkpoints import pins

    with opened(store, config, name) as found:
        checkpoint = find(found.store, name)
        pins.pin(found.store, checkpoint.name, pins.Pin(why, System().host.user, found.now))
        print(f"{clean(checkpoint.name)} is pinned; to let it go: resil ckpt unpin {quoted(checkpoint.name)}")


@app.command(epilog="Examples: resil ckpt unpin 41200")
def unpin(name: NameArgument, store: StoreOption = None, config: ConfigOption = None) -> None:
    """Leave a checkpoint to the rules again."""
    from resilience.checkpoints import pins

    with opened(store, config, name) as found:
        checkpoint = find(found.store, name)
        was = pins.unpin(found.store, checkpoint.name)
        print(f"{clean(checkpoint.name)} {'is no longer pinned' if was else 'was not pinned'}")


@app.command(
    epilog="Examples: resil ckpt quarantine 41200 --why 'the loss explodes from here'; resil ckpt restore 41200"
)
def quarantine(name: NameArgument, why: WhyOption = "", store: StoreOption = None, config: ConfigOption = None) -> None:
    """Set a checkpoint aside.

    Nothing resumes from it, and nothing deletes it, until `resil ckpt restore`.
    """
    from resilience.checkpoints.quarantine import set_aside
    from resilience.checkpoints.verified import read_verified

    with opened(store, config, name) as found:
        checkpoint = find(found.store, name)
        if checkpoint.is_sealed and not found.of_run().manage:
            raise UsageError(
                f"{checkpoint.name} belongs to its framework, which may look for it",
                hint="set manage = true under [checkpoints] in resil.toml, or move it by hand",
            )
        user, fault = System().host.user, None
        with suppress(CheckpointError, OSError):  # one that cannot be read is set aside as well
            known = read_verified(checkpoint)
            fault = known.fault if known is not None else None
        path = set_aside(found.store, checkpoint, fault=fault, why=why or ("" if fault else "by hand"), who=user)
        print(f"{clean(checkpoint.name)} is set aside: {clean(str(path))}")
        print(f"  take it back: resil ckpt restore {quoted(path.name)}")


@app.command(epilog="Examples: resil ckpt restore step-00041200")
def restore(
    name: Annotated[str, typer.Argument(metavar="NAME", help="One that was set aside.", autocompletion=complete_bad)],
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Take back a checkpoint that was set aside."""
    from resilience.checkpoints.quarantine import restore as take_back

    with opened(store, config, name) as found:
        checkpoint = take_back(found.store, find_bad(found.store, name) or Path(name).name)
        print(f"{clean(checkpoint.name)} is back: {clean(str(checkpoint.path))}")
        print(f"  to see whether it is good: resil ckpt verify --deep {quoted(checkpoint.name)}")


@app.command(epilog="Examples: resil ckpt prune --dry-run; resil ckpt prune")
def prune(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Say what would be deleted, and delete nothing.")
    ] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Delete the checkpoints that no rule keeps.

    The rules are those of [checkpoints] in resil.toml. The newest two are read first, and must be good.
    Always stay: the newest two that verify, all newer ones, pinned ones, labelled ones, and the one last resumed from.
    """
    from resilience.checkpoints.prune import run
    from resilience.checkpoints.retention import Deleted

    with opened(store, config, reads=True) as found:
        settings = found.of_run()
        checkpoints = found.store.checkpoints()
        with reading("reading the newest checkpoints", sum(map(_size, checkpoints[-2:]))):
            pruned = run(found.store, settings.policy(), now=found.now, dry_run=dry_run, manage=settings.manage)
        if as_json:
            rows = [{"deleted": isinstance(one, Deleted), "size_bytes": 0, **plain(one)} for one in pruned.verdicts]
            content = {"dry_run": dry_run, "freed_bytes": pruned.freed_bytes, "failed": pruned.failed}
            print_json("prune", content | {"checkpoints": rows})
        else:
            verb = "would go" if dry_run else "deleted"
            cells = [(one.name, verb if isinstance(one, Deleted) else "kept", one.reason) for one in pruned.verdicts]
            if cells:
                print_table(("CHECKPOINT", "", "REASON"), cells)
            freed = format_bytes(pruned.freed_bytes)
            print(
                f"{plural(len(pruned.deleted), 'checkpoint')} {verb}, {freed}; {len(cells) - len(pruned.deleted)} kept"
            )
    for sentence in pruned.failed:
        say(f"warning: {sentence}")
    if pruned.failed:
        raise typer.Exit(1)


# ---- adopt ----------------------------------------------------------------------------------------------------


@app.command(
    epilog="Examples: resil ckpt adopt --new; resil ckpt adopt checkpoint-500; resil ckpt adopt last.ckpt --step 500"
)
def adopt(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="What a framework saved: names or paths.", show_default=False),
    ] = None,
    new: Annotated[
        bool, typer.Option("--new", help="All that follow pattern or tracker of [checkpoints] and are complete.")
    ] = False,
    step: Annotated[
        int | None,
        typer.Option(
            "--step", metavar="N", min=0, help="Completed steps, if the name does not say so.", show_default=False
        ),
    ] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Seal what a framework saved under its own names.

    A seal records the digests; what has none is no checkpoint. Only what is complete is sealed: what the tracker names,
    or what has not changed for 5 min and is whole.
    """
    from resilience.base.files import exists
    from resilience.checkpoints.adopt import find_new, judge_named, pattern_of, remove_orphans, tracked_step

    names = names or []
    if bool(names) == new or (step is not None and len(names) != 1):
        raise UsageError("give names, or --new; --step is that of one name", hint="resil ckpt adopt --new")
    if new:
        known = configured_store(System(), config, is_needed=True)[1]
        if known is None or not (known.pattern or known.tracker):
            print("nothing to adopt: [checkpoints] sets neither pattern nor tracker")
            return
    with opened(store, config, *names, must_exist=False, reads=True) as found:
        if new and not found.store.path.is_dir():
            print(f"nothing to adopt: {clean(str(found.store.path))} does not exist")
            return
        settings = found.settings or CheckpointSettings()
        pattern, tracker = settings.pattern, settings.tracker
        if new:
            if found.settings is None:
                found.of_run()  # says so
            candidates = find_new(found.store, pattern, tracker, now=found.now)
        else:
            tracked = tracked_step(found.store, pattern_of(pattern, tracker), tracker) if tracker else None
            bare = [Path(name).name for name in names]
            for name in bare:
                if not exists(found.store.path / name):
                    raise UsageError(f"there is no {name!r} in {found.store.path}", hint="names are those of ls")
            steps = [_step_of(name, pattern) if step is None else step for name in bare]
            candidates = tuple(
                # A tracker that names nothing is not asked: a person says that it is complete.
                judge_named(found.store, name, step, tracker if tracked is not None else "", tracked, found.now)
                for name, step in zip(bare, steps, strict=True)
            )
        failed = [one for one in candidates if not _seal(found, one)]
        if new and (found.store.own / SEALS).is_dir():
            remove_orphans(found.store)
        if not candidates:
            print(f"nothing new in {clean(str(found.store.path))}")
    if any(names or not one.why_not for one in failed):  # what is still being written is no failure of --new
        raise typer.Exit(1)


def _seal(found: Opened, one: Found) -> bool:
    """Seal one checkpoint if it is complete, say so, and return whether it is sealed."""
    from resilience.checkpoints.adopt import seal

    if one.is_sealed:
        again = f"resil ckpt verify --deep {quoted(one.name)}"
        print(f"{clean(one.name)} has a seal, and no file has changed since; to compare each byte: {again}")
        return True
    if one.why_not:
        print(f"{clean(one.name)} is not sealed: {clean(one.why_not)}")
        return False
    try:
        store = StoreDirectory.create(found.store.path, found.run)
        manifest = seal(store, one.name, one.step, run=found.run).manifest()
    except CheckpointError as error:
        say(f"{one.name} is not sealed: {error}")
        return False
    size = format_bytes(manifest.size_bytes)
    print(f"{clean(one.name)} is sealed: step {one.step}, {size} in {plural(len(manifest.files), 'file')}")
    return True


def _step_of(name: str, pattern: str) -> int:
    """Return the step in a name. Raise UsageError if the name does not say it."""
    step = Pattern(pattern).step_of(name) if pattern else None
    numbers = re.findall(r"[0-9]{1,18}", name)
    if step is None and len(numbers) != 1:
        raise UsageError(
            f"the name {name!r} does not say the step", hint=f"give it: resil ckpt adopt {quoted(name)} --step 500"
        )
    return int(numbers[0]) if step is None else step


app.command("plan", epilog=ckpt_plan.EPILOG)(ckpt_plan.plan)
