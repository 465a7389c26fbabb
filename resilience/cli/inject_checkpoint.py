"""`resil inject checkpoint`: alters a copy of a checkpoint bit by bit, replays that elsewhere, or undoes it."""

from __future__ import annotations

import errno
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from resilience.cli.options import JsonOption
from resilience.cli.output import clean, handled, paint, print_json, print_table, say
from resilience.errors import CheckpointError, ResilError, UsageError
from resilience.messages import plural
from resilience.system.files import FULL

if TYPE_CHECKING:
    from resilience.inject.checkpoint.alter import Look, Places
    from resilience.inject.checkpoint.layouts import Layout, Location
    from resilience.inject.checkpoint.plan import Alteration, Plan
    from resilience.inject.checkpoint.settings import AlterationSettings
    from resilience.runs.project import Project

EPILOG = (
    "Examples: resil inject checkpoint model.pt --list; "
    "resil inject checkpoint model.pt --attempts 10 --seed 1 --report; "
    "resil inject checkpoint model.h5 --locations conv1 --first-bit 1 --last-bit 8 --save-sequence flips.json; "
    "resil inject checkpoint model.pt --sequence flips.json --map conv1/kernel=conv1.weight:3,2,0,1; "
    "resil inject checkpoint model.altered.h5 --undo flips.json"
)
MOST_SHOWN = 1000
"""Alterations that a report shows; JSON and sequences have all."""
_BIT: dict[str, Any] = {"metavar": "N", "min": 0, "max": 63}
_FILE: dict[str, Any] = {"metavar": "FILE", "parser": Path}

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog=EPILOG)
def checkpoint(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", parser=Path, help="The checkpoint: a file, or a directory of DCP.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The altered copy. Default: NAME.altered beside it.", **_FILE)
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Alter the checkpoint itself. What undoes it is saved first.")
    ] = False,
    attempts: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="How many alterations are tried; in percent with --type percentage. Default: 1.",
        ),
    ] = None,
    type: Annotated[
        Literal["count", "percentage"] | None,
        typer.Option(help="Percentage: of the numbers in the chosen locations."),
    ] = None,
    probability: Annotated[
        float | None, typer.Option(metavar="P", help="Of each attempt to alter a number. Default: 1.")
    ] = None,
    locations: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Alter only this location, or what is below it. Repeatable."),
    ] = None,
    random_locations: Annotated[
        bool, typer.Option("--random-locations", help="Choose from all locations: the default without --locations.")
    ] = False,
    weight: Annotated[
        Literal["dataset", "element"] | None,
        typer.Option(help="What is equally likely: each location (default) or each number."),
    ] = None,
    mode: Annotated[
        Literal["bit-range", "bit-mask", "scaling-factor"] | None,
        typer.Option(help="How a number changes. Default: by the options given, else bit-range."),
    ] = None,
    first_bit: Annotated[
        int | None,
        typer.Option(help="First bit of the range; 0 is the sign, 1 the exponent's highest. Default: 1.", **_BIT),
    ] = None,
    last_bit: Annotated[
        int | None, typer.Option(help="Last bit of the range. Default: the number's last.", **_BIT)
    ] = None,
    burst: Annotated[
        int | None, typer.Option(metavar="N", help="Different bits that change in one number. Default: 1.")
    ] = None,
    allow_sign_change: Annotated[bool, typer.Option("--allow-sign-change", help="Add bit 0 to the range.")] = False,
    bit_mask: Annotated[
        str | None, typer.Option(metavar="BITS", help="Bits that change, at a random offset: 101101.")
    ] = None,
    scaling_factor: Annotated[float | None, typer.Option(metavar="X", help="Multiply numbers by this instead.")] = None,
    precision: Annotated[
        Literal["auto", "16", "32", "64"] | None,
        typer.Option(help="Of floats while their bits change. Default: their own (auto)."),
    ] = None,
    integers: Annotated[
        Literal["native", "shortest"] | None,
        typer.Option(help="Bits of integers: of their width (default), or of their shortest form."),
    ] = None,
    allow_nan: Annotated[bool, typer.Option("--allow-nan", help="Allow changes to NaN and infinity.")] = False,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="The same seed gives the same bytes. Default: a new one.")
    ] = None,
    save_sequence: Annotated[
        Path | None, typer.Option("--save-sequence", help="Save what was altered, to replay or to undo it.", **_FILE)
    ] = None,
    sequence: Annotated[
        Path | None, typer.Option("--sequence", help="Replay a saved sequence on this checkpoint.", **_FILE)
    ] = None,
    map_: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="OLD=NEW[:AXES]",
            help="In a replay: where a location is here, and the order of its dimensions. Repeatable.",
        ),
    ] = None,
    undo: Annotated[
        Path | None,
        typer.Option("--undo", help="Restore the original of an altered checkpoint by its sequence.", **_FILE),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the locations, and alter nothing.")] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Show each altered number, its bits before and after.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be altered, and write nothing.")] = False,
    as_json: JsonOption = False,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="A TOML file with these options as its keys.", **_FILE)
    ] = None,
) -> None:
    """Alter bits of a checkpoint, to see what a training survives. The checkpoint itself stays as it is.

    Reads HDF5, safetensors, .npy, .npz, torch.save and directories of torch.distributed.checkpoint. Bit 0 of a number
    is its sign; then comes the exponent, bit 1 its highest.
    """
    drawing = {
        "attempts": attempts, "type": type, "probability": probability, "locations": tuple(locations or ()),
        "random_locations": random_locations, "weight": weight, "mode": mode, "first_bit": first_bit,
        "last_bit": last_bit, "burst": burst, "allow_sign_change": allow_sign_change, "bit_mask": bit_mask,
        "scaling_factor": scaling_factor, "precision": precision, "integers": integers, "seed": seed,
    }  # fmt: skip
    _check_together(drawing, sequence, undo, list_=list_, mapped=bool(map_), config=config, save=save_sequence)
    with _explained(file, output), handled(_leave, signal.SIGTERM, signal.SIGHUP):
        if list_:
            show = _list(file, as_json=as_json)
        elif undo is not None:
            show = _undo(file, output, undo, in_place=in_place, dry_run=dry_run, as_json=as_json)
        else:
            settings = _settings(config, drawing | {"allow_nan": allow_nan})
            show = _alter(
                file, output, save_sequence, settings, sequence, map_ or [],
                in_place=in_place, dry_run=dry_run, report=report or dry_run, as_json=as_json,
            )  # fmt: skip
    show()


def _leave(number: int, _: object) -> None:
    raise SystemExit(128 + number)  # the copy is removed on the way out


def _check_together(
    drawing: dict[str, Any],
    sequence: Path | None,
    undo: Path | None,
    *,
    list_: bool,
    mapped: bool,
    config: Path | None,
    save: Path | None,
) -> None:
    """Raise UsageError for options that have no effect together: the answer would not be what was meant."""
    given = [name for name, value in drawing.items() if value is not False and value not in (None, ())]
    given += ["config"] * (config is not None)
    for option, is_set in (("--sequence", sequence is not None), ("--undo", undo is not None), ("--list", list_)):
        others = given + ["save-sequence"] * (save is not None and option != "--sequence")
        if is_set and others:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in others)
            raise UsageError(f"{option} decides what is done, and {names} as well", hint="give one of them")
    if sequence is not None and undo is not None:
        raise UsageError("--sequence and --undo exclude each other", hint="undo first, then replay")
    if mapped and sequence is None:
        raise UsageError("--map is for replays", hint="--sequence FILE --map OLD=NEW")


def _settings(config: Path | None, given: dict[str, Any]) -> AlterationSettings:
    import tomllib

    from resilience.inject.checkpoint.settings import read_settings
    from resilience.system.files import read_regular

    if config is None:
        return read_settings({}, "", given)
    found = read_regular(config)
    if found is None:
        raise UsageError(
            f"there is no file {config}", hint="--config names a TOML file, with keys such as attempts = 10"
        )
    try:
        return read_settings(tomllib.loads(found[0].decode()), str(config), given)
    except ValueError as error:  # broken TOML, or no UTF-8
        if isinstance(error, ResilError):
            raise
        raise UsageError(f"{config} is no TOML: {error}", hint="a line is, for instance: attempts = 10") from None


def _alter(
    file: Path, output: Path | None, save: Path | None, settings: AlterationSettings, sequence: Path | None,
    maps: Sequence[str], *, in_place: bool, dry_run: bool, report: bool, as_json: bool,
) -> Callable[[], None]:  # fmt: skip
    from resilience.inject.checkpoint.alter import ALTERED, check_places, choose_places, look, read_record, write
    from resilience.inject.checkpoint.plan import parse_mapping

    places = choose_places(file, output, save, in_place=in_place, word=ALTERED)
    mappings = [parse_mapping(text) for text in maps]
    recorded = read_record(sequence) if sequence is not None else None
    check_places(places, partial(_life, file))
    seed = settings.seed if settings.seed is not None else int.from_bytes(os.urandom(4), "big")
    seen = look(places.source, settings, seed, recorded, mappings)
    for warning in seen.plan.warnings:
        say(f"warning: {warning}")
    if seen.plan.gave_up:
        say(
            f"warning: {plural(seen.plan.gave_up, 'attempt')} altered nothing: each change gives NaN or infinity"
            "\n  try: --allow-nan"
        )
    if not dry_run:
        write(places, seen, settings)
    if as_json:
        return partial(print_json, "checkpoint-alteration", _document(places, seen, is_written=not dry_run))
    return partial(_show, places, seen, report=report, is_written=not dry_run)


def _undo(
    file: Path, output: Path | None, undo: Path, *, in_place: bool, dry_run: bool, as_json: bool
) -> Callable[[], None]:
    from resilience.inject.checkpoint.alter import RESTORED, check_places, choose_places, read_record
    from resilience.inject.checkpoint.alter import undo as restore

    record = read_record(undo)
    places = choose_places(file, output, None, in_place=in_place, word=RESTORED)
    check_places(places, partial(_life, file))
    is_done = bool(record.patches) and restore(places, record, str(undo), dry_run=dry_run)
    if as_json:
        return partial(print_json, "checkpoint-undo", {
            "file": places.source, "output": places.output if is_done else None, "dry_run": dry_run,
            "altered": len(record.alterations),
        })  # fmt: skip
    if not is_done:
        return partial(print, f"{clean(str(file))} is the original already: nothing to undo")
    verb, rest = ("would restore", "") if dry_run else ("restored", ", SHA-256 as before")
    count = plural(len(record.alterations), "alteration")
    return partial(print, f"{verb} {clean(_shown(places.output))}: {count} undone{rest}")


def _list(file: Path, *, as_json: bool) -> Callable[[], None]:
    from resilience.inject.checkpoint.alter import choose_places
    from resilience.inject.checkpoint.layouts import find_layout

    source = choose_places(file, None, None, in_place=True, word="").source
    layout = find_layout(source)
    found = layout.locations(source)
    if as_json:
        rows = [
            {"name": one.name, "type": one.type_name, "shape": one.shape, "has_bits": one.type is not None}
            for one in found
        ]
        return partial(print_json, "checkpoint-locations", {"file": source, "layout": layout.name, "locations": rows})
    return partial(_show_locations, file, layout, found)


def _show_locations(file: Path, layout: Layout, found: Sequence[Location]) -> None:
    count = sum(one.count for one in found if one.type is not None)
    print(f"{paint(clean(str(file)), 'bold')} ({layout.name}): {plural(len(found), 'location')}, "
          f"{plural(count, 'number')}")  # fmt: skip
    shapes = (" x ".join(map(str, one.shape)) or "one number" for one in found)
    rows = [(one.name, one.type_name, shape, "" if one.type is not None else "no bits")
            for one, shape in zip(found, shapes, strict=True)]  # fmt: skip
    print_table(("LOCATION", "TYPE", "SHAPE", "REMARK"), rows)


# ---- what was altered -----------------------------------------------------------------------------------------------


def _document(places: Places, seen: Look, *, is_written: bool) -> dict[str, Any]:
    from resilience.inject.checkpoint.sequence import shown

    plan = seen.plan
    return {
        "file": places.source, "output": places.output, "layout": seen.layout.name, "dry_run": not is_written,
        "sequence": places.sequence, "seed": plan.seed, "attempts": plan.attempts, "altered": len(plan.alterations),
        "missed": plan.missed, "unchanged": plan.unchanged, "gave_up": plan.gave_up, "warnings": plan.warnings,
        "alterations": [shown(one) for one in plan.alterations],
    }  # fmt: skip


def _show(places: Places, seen: Look, *, report: bool, is_written: bool) -> None:
    plan = seen.plan
    numbers = plural(len(plan.changes), "number")
    where = plural(len({one.location for one in plan.alterations}), "location")
    print(f"{paint(clean(_shown(places.source)), 'bold')} ({seen.layout.name}): {len(plan.alterations):,} of "
          f"{plural(plan.attempts, 'attempt')} {'altered' if is_written else 'would alter'} {numbers} in {where}"
          f"{_rest(plan)}")  # fmt: skip
    if report:
        for one in plan.alterations[:MOST_SHOWN]:
            _show_one(one)
        if len(plan.alterations) > MOST_SHOWN:
            print(f"  and {len(plan.alterations) - MOST_SHOWN:,} more: --json or --save-sequence has all")
    elif plan.alterations:
        counts = Counter(one.location for one in plan.alterations)
        names = ", ".join(clean(f"{name} ({count:,})") for name, count in counts.most_common(5))
        print(f"  {names}{' ...' if len(counts) > 5 else ''}")
    if is_written:
        print(f"  written: {clean(_shown(places.output))}")
        if places.sequence is not None:
            print(f"  to undo: resil inject checkpoint {_quoted(places.output)} --undo {_quoted(places.sequence)}"
                  f"{' --in-place' if places.is_in_place else ''}")  # fmt: skip
    if plan.seed is not None:
        print(f"  to repeat: --seed {plan.seed}")


def _rest(plan: Plan) -> str:
    parts = [
        f"{plan.missed:,} passed by the probability" if plan.missed else "",
        f"{plan.unchanged:,} stored the same bits" if plan.unchanged else "",
        f"{plan.gave_up:,} only gave NaN or infinity" if plan.gave_up else "",
    ]
    words = ", ".join(filter(None, parts))
    return f"; {words}" if words else ""


def _show_one(one: Alteration) -> None:
    from resilience.inject.checkpoint.number_types import TYPES, show_bits, show_value

    kind = TYPES[one.type]
    if one.factor is not None:
        how = f"times {one.factor:g}"
    else:
        how = f"{'bit' if len(one.bits) == 1 else 'bits'} {_ranges(one.bits)}"
        how += f" of {one.flip_type}" if one.flip_type != one.type else ""
    index = f" {list(one.index)}" if one.index else ""
    print(clean(f"  {one.location}{index}  {one.type}, {how}"))
    for word, bits in (("before", one.before), ("after ", one.after)):
        print(f"    {word}  {show_bits(bits, kind)}  {show_value(bits, kind)}")


def _ranges(bits: Sequence[int]) -> str:
    """Return bits as text: `1 4-6 9`."""
    parts: list[list[int]] = []
    for bit in bits:
        if parts and bit == parts[-1][-1] + 1:
            parts[-1].append(bit)
        else:
            parts.append([bit])
    return " ".join(f"{one[0]}-{one[-1]}" if len(one) > 2 else " ".join(map(str, one)) for one in parts)


def _shown(path: Path) -> str:
    """Return a path, relative where that is shorter."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _quoted(path: Path) -> str:
    from resilience.messages import quoted

    return quoted(_shown(path))


# ---- what must not be harmed ----------------------------------------------------------------------------------------


def _life(file: Path, owner: str) -> str:
    """Return why a checkpoint is in use: a run that it belongs to has live jobs, or nobody can tell. Empty: it is not.

    It belongs to the `owner` of the directory, and to each run whose settings say that its checkpoints are there.
    """
    from resilience.runs.status import run_statuses

    path, is_known = file.resolve(), not owner
    for project in _projects(file):
        own = project.directory(owner) if owner else None
        runs = [own] if own is not None and own.exists() else []
        is_known |= bool(runs)
        for one in project.runs():
            store = project.loaded.store_path(one.run)
            if one.run != owner and (path.is_relative_to(one.path) or (store and path.is_relative_to(store.resolve()))):
                runs.append(one)
        for status in run_statuses(project, runs, fresh=True):
            if alive := [row.job for row in status.rows if row.is_alive]:
                return f"the run {status.run} has the live job {alive[0]}"
            if trouble := status.trouble or status.unreadable:
                return f"whether the run {status.run} trains now is unknown: {trouble}"
    if is_known:
        return ""
    return f"whether the run {owner} trains now is unknown: no settings here, or above it, lead to its run directory"


def _projects(file: Path) -> Iterator[Project]:
    """Yield the project of this directory, and the one around a checkpoint."""
    from resilience.cli.options import open_project
    from resilience.settings.load import FILE_NAME

    around = next((parent / FILE_NAME for parent in file.resolve().parents if (parent / FILE_NAME).is_file()), None)
    for config in (None, around):
        with suppress(UsageError):  # settings that cannot be used lead nowhere
            yield open_project(config, banner=False)


@contextmanager
def _explained(file: Path, output: Path | None) -> Iterator[None]:
    """Turn what the operating system says into an error with what to try. Of writing, it does not name the file."""
    try:
        yield
    except OSError as error:
        where = error.filename2 or error.filename or (output or file if error.errno in FULL else file)
        hint = "the file system is faulty; retry, or look from another node"
        if error.errno in FULL:
            hint = "a copy needs room for the whole checkpoint: --output FILE, where there is more"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            hint = "name a place where you may write: --output FILE"
        why = error.strerror or error
        raise CheckpointError(f"{where}: {why}", hint=hint, transient=error.errno in FULL) from error
