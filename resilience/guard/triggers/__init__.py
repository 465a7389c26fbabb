"""What may ask for a save or a stop. One file per subject; each is a `Trigger` (see `decision.py`)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resilience.guard.decision import Trigger
    from resilience.guard.pace import Pace
    from resilience.guard.place import Place
    from resilience.guard.recorder import Recorder
    from resilience.guard.settings import GuardSettings


def triggers_without_rank_0(place: Place, settings: GuardSettings, recorder: Recorder, pace: Pace) -> list[Trigger]:
    """What a rank looks at that is on its own, of what rank 0 looked at for all: whatever ends the training."""
    found: list[Trigger] = []
    if place.run_dir:
        from resilience.guard.switch_folder import SwitchFolder
        from resilience.guard.triggers.superseded import Superseded
        from resilience.guard.triggers.switches import KillSwitch, StopFile

        switches = SwitchFolder(place, settings, recorder)
        found += [StopFile(switches), *([KillSwitch(switches)] if settings.kill_switch else [])]
        if settings.superseded and place.attempt:
            found.append(Superseded(place, recorder))
    if settings.walltime or settings.stop_after:
        from resilience.guard.triggers.walltime import Walltime

        # Thousands of ranks may be on their own at once: none asks the scheduler whether the end was moved.
        found.append(Walltime(place, settings, recorder, pace, asks=False))
    return found


def built_in_triggers(place: Place, settings: GuardSettings, recorder: Recorder, pace: Pace) -> list[Trigger]:
    """The triggers that make sense here and are switched on. Their modules are imported only then."""
    found: list[Trigger] = []
    if place.run_dir:
        from resilience.guard.switch_folder import SwitchFolder
        from resilience.guard.triggers.finished import FinishedRun
        from resilience.guard.triggers.superseded import Superseded
        from resilience.guard.triggers.switches import KillSwitch, SaveSwitch, StopFile

        switches = SwitchFolder(place, settings, recorder)
        found += [FinishedRun(place, recorder), StopFile(switches)]
        if settings.superseded and place.attempt:
            found.append(Superseded(place, recorder))
        if settings.kill_switch:
            found.append(KillSwitch(switches))
        if settings.save_switch:
            found.append(SaveSwitch(switches))
        if settings.cron:
            from resilience.guard.triggers.late_cron import LateCron

            found.append(LateCron(place, recorder))
    if settings.walltime or settings.stop_after:
        from resilience.guard.triggers.walltime import Walltime

        found.append(Walltime(place, settings, recorder, pace))
    if settings.host_memory:
        from resilience.guard.triggers.host_memory import HostMemory
        from resilience.guard.triggers.shared_memory import SharedMemory

        found += [HostMemory(place, settings, recorder, pace), SharedMemory(place, settings)]
    if settings.gpu_memory != "off":
        from resilience.guard.triggers.gpu_memory import GpuMemory

        found.append(GpuMemory(place, settings, recorder))
    return found
