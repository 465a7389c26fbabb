"""The built-in triggers: sources of requests to save or stop. One file each; `decision.py` defines `Trigger`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resilience.guard.decision import Trigger
    from resilience.guard.gate import Gate
    from resilience.guard.rank_info import RankInfo
    from resilience.guard.recorder import Recorder
    from resilience.guard.settings import GuardSettings
    from resilience.guard.step_timer import StepTimer


def built_in_triggers(
    place: RankInfo,
    settings: GuardSettings,
    recorder: Recorder,
    timer: StepTimer,
    gate: Gate | None = None,
    *,
    without_rank_0: bool = False,
) -> list[Trigger]:
    """Return the enabled triggers that apply to this process; import only their modules.

    With `without_rank_0`, for a rank that has lost rank 0: of the triggers that rank 0 polls for all ranks, those that
    end the training.
    """
    found: list[Trigger] = []
    if place.run_dir:
        from resilience.guard.switch_directory import SwitchDirectory
        from resilience.guard.triggers.finished import FinishedRun
        from resilience.guard.triggers.superseded import Superseded
        from resilience.guard.triggers.switches import KillSwitch, SaveSwitch, StopFile

        switches = SwitchDirectory(place, settings, recorder)
        if not without_rank_0:
            found.append(FinishedRun(place, recorder))
        found.append(StopFile(switches))
        if settings.superseded and place.attempt:
            found.append(Superseded(place, recorder))
        if settings.kill_switch:
            found.append(KillSwitch(switches))
        if settings.save_switch and not without_rank_0:
            found.append(SaveSwitch(switches))
        if settings.cron and not without_rank_0:
            from resilience.guard.triggers.late_cron import LateCron

            found.append(LateCron(place, recorder))
    if settings.walltime or settings.stop_after:
        from resilience.guard.triggers.walltime import Walltime

        # Thousands of ranks may lose rank 0 at once: none queries the scheduler for a changed end.
        found.append(Walltime(place, settings, recorder, timer, asks=not without_rank_0))
    if without_rank_0:
        return found
    if settings.host_memory:
        from resilience.guard.triggers.host_memory import HostMemory
        from resilience.guard.triggers.shared_memory import SharedMemory

        found += [HostMemory(place, settings, recorder, timer), SharedMemory(place, settings)]
    if settings.gpu_memory != "off":
        from resilience.guard.triggers.gpu_memory import GpuMemory

        found.append(GpuMemory(place, settings, recorder))
    if settings.redo_max and settings.every.lower() != "auto" and place.is_first:
        recorder.warn(f'redo_max has no effect with every = "{settings.every}": set every = "auto" in [guard]')
    if settings.every and gate is not None:
        from resilience.guard.triggers.cadence import CadenceTrigger

        found.append(CadenceTrigger(place, settings, recorder, timer, gate))
    return found
