"""Looks at the places of one target and says what was seen of each file system: the only I/O, in a child process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from resilience import layout
from resilience.base.mounts import Mount, current_mounts, mount_of
from resilience.errors import ProbeError
from resilience.runs.context import Scene
from resilience.watch.checks._filesystem.look import Look
from resilience.watch.checks._filesystem.place_state import PlaceState, look_at
from resilience.watch.checks._filesystem.reading import FileSystemReading, history_after, is_whole, unanswered
from resilience.watch.checks._filesystem.sources import Asked, ask_du, ask_quota, of_statvfs
from resilience.watch.checks._filesystem.subjects import (
    CHECKPOINT_FOLDERS,
    Place,
    by_mount,
    found_places,
    named_places,
    settled,
)
from resilience.watch.reading import Target, Timed

DEADLINE_S = 10.0
"""What a look has when nobody says: [watch] deadline_s."""
TOOLS_SHARE = 0.7
"""The quota tools together have so much of it."""
ACCEPTED_S = 7 * 86400.0
"""A path that has lain elsewhere for so long was moved."""
A_FILE = "it is a file, and the file system that it lies on is meant"

Before = Mapping[str, Timed[FileSystemReading]]


def targets_of(look: Look, scene: Scene) -> tuple[Target, ...]:
    """What to look at: each named path by itself, or what a training needs, by file system. Touches nothing."""
    deadline_s = look.du_deadline_s + DEADLINE_S if look.du_limit is not None else None
    if look.paths:
        mounts = current_mounts()
        names = [_named(place.path, scene, mounts) for place in _named_places(look, scene)]
    else:
        names = list(_found_groups(look, scene))
    return tuple(Target(name, deadline_s=deadline_s) for name in names)


def probe_target(target: Target, look: Look, scene: Scene, before: Before) -> dict[str, FileSystemReading]:
    """Look at one target and return a reading for each subject. Raise ProbeError if nothing could be seen at all."""
    before = {subject: timed for subject, timed in before.items() if is_whole(timed.reading)}
    clock = scene.world.clock
    deadline = clock.monotonic() + TOOLS_SHARE * (target.deadline_s or DEADLINE_S)
    if look.paths:
        groups = {}
        for place in _named_places(look, scene):
            if target.name.endswith(place.path) and _named(place.path, scene) == target.name:
                state = look_at(place.path)
                # A path whose file system is gone lies on a local disk now; it keeps the name that people know.
                groups[_was_elsewhere(place.path, state, before, clock.now()) or target.name] = [(place, state)]
    else:
        places = _found_groups(look, scene).get(target.name, ())
        groups = _grouped([(place, look_at(place.path)) for place in places], scene, before)
    readings: dict[str, FileSystemReading] = {}
    for subject, group in groups.items():
        old = before.get(subject)
        asked = Asked(scene.world, deadline)
        readings[subject] = _read(group, look, scene, old.reading if old is not None else None, asked, before)
    if not readings:
        raise ProbeError(f"nothing lies on {target.name} any more", transient=True)
    return readings


def _found_groups(look: Look, scene: Scene) -> dict[str, tuple[Place, ...]]:
    """What a training needs, by the name of the file system."""
    mounts = current_mounts()
    groups = {}
    for point, places in by_mount(_found_places(look, scene), mounts).items():
        mount = next((item for item in reversed(mounts) if item.point == point), None)
        groups[_local(point, scene) if mount is not None and mount.is_node_local else point] = places
    return groups


def _named_places(look: Look, scene: Scene) -> tuple[Place, ...]:
    world = scene.world
    # What stands in a settings file is relative to its project; without one, both are the current folder.
    return named_places(look.paths, base=scene.project, home=world.host.home, environ=world.environ)


def _found_places(look: Look, scene: Scene) -> tuple[Place, ...]:
    folder = _folder_named(look, scene) if look.checkpoints else ""
    return found_places(project=scene.project, state_dir=scene.state_dir, home=scene.world.host.home,
                        environ=scene.world.environ, checkpoints=folder)  # fmt: skip


def _folder_named(look: Look, scene: Scene) -> str:
    world = scene.world
    return named_places((look.checkpoints,), base=scene.project, home=world.host.home, environ=world.environ)[0].path


def _named(path: str, scene: Scene, mounts: Sequence[Mount] = ()) -> str:
    mounts = mounts or current_mounts()
    mount = mount_of(Path(settled(path, mounts)), mounts)
    return _local(path, scene) if mount is not None and mount.is_node_local else path


def _local(path: str, scene: Scene) -> str:
    """`n01:/tmp`: what is full on one node is not so on another."""
    return f"{scene.world.host.name}:{path}"


def _grouped(
    seen: Sequence[tuple[Place, PlaceState]], scene: Scene, before: Before
) -> dict[str, list[tuple[Place, PlaceState]]]:
    """By file system and by what it says of its size: a folder with a quota of its own says another one."""
    now = scene.world.clock.now()
    found: dict[tuple[object, ...], list[tuple[Place, PlaceState]]] = {}
    for place, state in seen:
        if state.trouble:
            if place.may_miss and state.trouble == "missing" and not _was_elsewhere(place.path, state, before, now):
                continue
            found[("trouble", place.path)] = [(place, state)]
        elif _was_elsewhere(place.path, state, before, now):
            found[("elsewhere", place.path)] = [(place, state)]
        else:
            assert state.status is not None
            found.setdefault((state.device, state.status.f_blocks), []).append((place, state))
    return {_subject(group, scene, before): group for group in found.values()}


def _subject(group: Sequence[tuple[Place, PlaceState]], scene: Scene, before: Before) -> str:
    """The name of a file system that was found: its mount point, so that it is the same from cron and from a shell."""
    place, state = group[0]
    known = _was_elsewhere(place.path, state, before, scene.world.clock.now())
    if known:
        return known
    mount = state.mount
    if state.trouble or mount is None or state.status is None:
        return _local(place.path, scene) if mount is not None and mount.is_node_local else place.path
    if mount.is_node_local:
        return _local(mount.point, scene)
    try:
        is_whole = os.statvfs(mount.point).f_blocks == state.status.f_blocks
    except OSError:
        is_whole = False
    return mount.point if is_whole else min((item.path for item, _ in group), key=len)


def _was_elsewhere(path: str, state: PlaceState, before: Before, now: float) -> str:
    """The subject that remembers a path on a mount that is gone; empty when there is none."""
    subject, known = _seen_before(path, before)
    if known is None or now - known[3] >= ACCEPTED_S or (state.mount is not None and known[0] == state.mount.point):
        return ""
    return "" if any(mount.point == known[0] for mount in current_mounts()) else subject


def _seen_before(path: str, before: Before) -> tuple[str, tuple[str, str, str, float] | None]:
    """Where a path was last seen in good order: the subject, and mount point, type, device and time."""
    found: tuple[str, tuple[str, str, str, float] | None] = ("", None)
    for subject, timed in before.items():
        known = timed.reading.mounts.get(path)
        if known is not None and len(known) == 4 and (found[1] is None or known[3] > found[1][3]):
            found = (subject, known)
    return found


def _read(
    group: Sequence[tuple[Place, PlaceState]],
    look: Look,
    scene: Scene,
    old: FileSystemReading | None,
    asked: Asked,
    before: Before,
) -> FileSystemReading:
    place, state = group[0]
    now = scene.world.clock.now()
    mount = state.mount
    base: dict[str, Any] = {
        "path": place.path,
        "roles": tuple(item.role for item, _ in group if item.role) + ((A_FILE,) if state.is_file else ()),
        "mount": mount.point if mount is not None else "",
        "type": mount.type if mount is not None else "",
        "device": mount.source if mount is not None else "",
        "is_local": mount is not None and mount.is_node_local,
        "is_needed": any(item.is_needed for item, _ in group)
        or (bool(look.paths) and _is_written(place.path, scene, mount)),
        "is_named": bool(look.paths),
    }
    looked = [f"{item.path}: {note}" for item, note in ((item, seen.note) for item, seen in group) if note]
    trouble, detail, advice = state.trouble, state.detail, state.advice
    _, known = _seen_before(place.path, before)
    if not trouble and known is not None and mount is not None and _was_elsewhere(place.path, state, before, now):
        trouble = "missing"
        detail = (
            f"lies on the file system at {mount.point} ({mount.type}) now; when it was last seen well it lay on "
            f"{known[2]} ({known[1]}), mounted at {known[0]}: that is not mounted any more"
        )
        advice = f"ask for it to be mounted again; what is written to {place.path} now goes to the wrong disk"
    if trouble:
        looked.append(f"stat({place.path}): {detail}")
        kept: dict[str, Any] = {"mounts": old.mounts if old is not None else {}}
        if known is not None:
            kept["mounts"] = {**kept["mounts"], place.path: tuple(known)}
        if old is not None:
            kept |= {"history": old.history, "seen_writable": old.seen_writable, "du": old.du}
        return FileSystemReading(**base, **kept, trouble=trouble, detail=detail, advice=advice, looked=tuple(looked))
    assert state.status is not None
    read_only = bool(state.status.f_flag & os.ST_RDONLY) or (mount is not None and "ro" in mount.options)
    ask_quota(asked, look, [seen.real for _, seen in group], mount)
    du = ask_du(asked, look, state.real, old.du if old is not None else None)
    asked.amounts += of_statvfs(state.status)
    looked += asked.looked
    looked.append(f"statvfs({place.path}): just now; it reports what its server last told, and touches no disk")
    amounts = [item for item in asked.amounts if item.kind == look.kind or item.kind == "percent"]
    # What a site's command says of the /dev/shm of a node, nobody asks.
    counts = base["is_needed"] or base["is_named"] or not base["is_local"]
    wanted = [name for name in asked.failed if name.startswith("`") or name == "du"] if counts else []
    for item, seen in group:
        if seen.mount is not None and not seen.trouble:
            base.setdefault("mounts", {})[item.path] = (seen.mount.point, seen.mount.type, seen.mount.source, now)
    return FileSystemReading(
        **base,
        read_only=read_only,
        seen_writable=not read_only or (old is not None and old.seen_writable),
        amounts=tuple(item.to_row() for item in amounts),
        history=history_after(old, amounts, now),
        checkpoint=_checkpoint(look, scene, mount),
        purge=_purge(group, look, scene, mount),
        du={"time": du[0], "total": du[1]} if du is not None else {},
        silent=unanswered(old, amounts, asked.failed, wanted),
        looked=tuple(looked),
    )


def _checkpoint(look: Look, scene: Scene, mount: Mount | None) -> dict[str, Any]:
    """What is known of checkpoints, if they are written here."""
    folder = _checkpoint_folder(look, scene, mount)
    given = look.checkpoint is not None or look.checkpoint_every_s is not None
    if not folder and not (given and not look.checkpoints and _lies_on(str(scene.project), mount)):
        return {}
    from resilience.watch.checks._filesystem.checkpoints import Learned, learn

    journal = str(scene.state_dir / scene.run / layout.JOURNAL)
    if not _lies_on(journal, mount):
        journal = ""  # on another file system, which may hang: that is its own target's news
    known = learn(folder, journal, look.kind, scene.world.clock.now()) if folder else Learned(folder="")
    told = asdict(known) | {"is_pruned": known.is_pruned}
    if look.checkpoint is not None:
        told["size"] = look.checkpoint
    if look.checkpoint_every_s is not None:
        told |= {"every_s": look.checkpoint_every_s, "source": "the settings"}
    return told


def _checkpoint_folder(look: Look, scene: Scene, mount: Mount | None) -> str:
    """The folder of checkpoints, if it lies on this file system; empty otherwise."""
    if look.checkpoints:
        folder = _folder_named(look, scene)
        return folder if _lies_on(folder, mount) else ""
    for name in CHECKPOINT_FOLDERS:
        folder = str(scene.project / name)
        if _lies_on(folder, mount) and os.path.isdir(folder):  # noqa: PTH112
            return folder
    return ""


def _purge(group: Sequence[tuple[Place, PlaceState]], look: Look, scene: Scene, mount: Mount | None) -> dict[str, Any]:
    if not look.purge_s:
        return {}
    from resilience.watch.checks._filesystem.purge import doomed

    folder = _checkpoint_folder(look, scene, mount) or (group[0][0].path if look.paths else "")
    if not folder:
        if not _lies_on(str(scene.project), mount):
            return {}
        folder = str(scene.project)
    unused_s = max(0.0, look.purge_s - look.purge_warn_s)
    return asdict(doomed(folder, unused_s, scene.world.clock.now()))


def _is_written(path: str, scene: Scene, mount: Mount | None) -> bool:
    """Whether the project or its state lie below a path that was named, on the same file system."""
    folder = path.rstrip("/") + "/"
    needed = [str(item) for item in (scene.project, scene.state_dir)]
    return any((item + "/").startswith(folder) and _lies_on(item, mount) for item in needed)


def _lies_on(path: str, mount: Mount | None) -> bool:
    """Whether a path lies on the file system that is being looked at, without touching another one, which may hang."""
    mounts = current_mounts()
    return mount is not None and mount_of(Path(settled(path, mounts)), mounts) == mount
