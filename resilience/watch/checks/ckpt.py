"""`resil watch ckpt`: checkpoints that are damaged, late, slow or stuck.

Each tick checks sizes and structure of the newest checkpoint. Its digests are compared once, which takes as long as
reading it, up to `verify_s`; `resil ckpt` and a resume use the result. Nothing is said of the cadence of a run that
does not train.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from resilience.errors import SettingsError
from resilience.finding import Finding
from resilience.runs.context import Context
from resilience.watch.checks._ckpt.judge import judge
from resilience.watch.checks._ckpt.reading import CkptReading, CkptSettings
from resilience.watch.places import named_places
from resilience.watch.reading import Memory, Target, Timed

LOOK_S = 30.0
"""The time for everything but the digests."""
NOTHING = Target("checkpoints")


class CkptCheck:
    """The watchdog of checkpoints."""

    summary = "checkpoints: damaged, none for too long, a save that is slow or stands still"
    Settings = CkptSettings
    Reading = CkptReading
    memory = Memory(count=1)
    argument = "paths"
    path_fields = ("paths",)  # relative to the current directory on the command line
    example = "resil watch ckpt /scratch/ada/gpt/checkpoints"

    def targets(self, settings: CkptSettings, context: Context) -> Sequence[Target]:
        """Return a target for each directory of checkpoints, or for those of all runs; without any, one that says
        so."""
        _check(settings)
        named = _named(settings, context)
        deadline_s = LOOK_S + settings.verify_s
        return [Target(name, (name,) if path == name else (), deadline_s) for name, path in named.items()] or [NOTHING]

    def probe(
        self, target: Target, settings: CkptSettings, context: Context, before: Mapping[str, Timed[CkptReading]]
    ) -> Mapping[str, CkptReading]:
        """Read the directories, and verify the newest checkpoint of each."""
        path = _named(settings, context).get(target.name, "")
        if not path:
            why, how = "no directory of checkpoints is set", "it is named by [checkpoints] path in resil.toml"
            return {target.name: CkptReading(path="", nothing=why, looked=(how,))}
        from resilience.watch.checks._ckpt.probe import StoreProbe

        known = {subject: timed.reading for subject, timed in before.items()}
        return StoreProbe(settings, context, known, target.deadline_s or LOOK_S).read(target.name, path)

    def judge(
        self, subject: str, readings: Sequence[Timed[CkptReading]], settings: CkptSettings, now: float
    ) -> Sequence[Finding]:
        """Return the findings of the newest reading."""
        return judge(subject, readings[-1].reading, settings, now)


def _named(settings: CkptSettings, context: Context) -> dict[str, str]:
    """Return the directories of checkpoints by the name of their target. `{run}` in one stands for each run's name:
    its target is the directory above."""
    paths = settings.paths or ((context.checkpoints,) if context.checkpoints else ())
    system = context.system
    places = named_places(paths, base=context.project, home=system.host.home, environ=system.environ)
    above = {place.path: place.path.partition("{run}")[0].rpartition("/")[0] or "/" for place in places}
    return {above[place.path] if "{run}" in place.path else place.path: place.path for place in places}


def _check(settings: CkptSettings) -> None:
    """Raise SettingsError for invalid settings."""
    for key in ("factor", "slow_factor"):
        if not getattr(settings, key) >= 1:
            raise SettingsError(f"{key} = {getattr(settings, key):g} must be at least 1", hint=f"{key} = 3")
    for key in ("interval_s", "part_s"):
        if getattr(settings, key) is not None and not getattr(settings, key) > 0:
            raise SettingsError(f"{key} = {getattr(settings, key):g} must be more than 0", hint=f'{key} = "30m"')
    if not settings.verify_s >= 0:
        raise SettingsError(f"verify_s = {settings.verify_s:g} must be at least 0", hint='verify_s = "30s"')


CHECK = CkptCheck()
