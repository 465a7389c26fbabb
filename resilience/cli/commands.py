"""The commands, in the order in which people need them. Each module is imported only when its command runs."""

from __future__ import annotations

from typing import NamedTuple


class CommandEntry(NamedTuple):
    """One command: where its code lies, its section in `--help`, and its line there."""

    module: str
    section: str
    summary: str


COMMANDS: dict[str, CommandEntry] = {
    "demo": CommandEntry("resilience.cli.demo", "Start", "See a training crash, resume and finish, in under a minute."),
    "init": CommandEntry("resilience.cli.init", "Start", "Write a commented resil.toml and the cron folder."),
    "doctor": CommandEntry("resilience.cli.doctor", "Start", "Say what this cluster supports and what would bite."),
    "submit": CommandEntry("resilience.cli.submit", "Run", "Queue the run as a chain of jobs."),
    "status": CommandEntry("resilience.cli.status", "Run", "Show every run: state, reason, time left, what is next."),
    "logs": CommandEntry("resilience.cli.logs", "Run", "Show the end of a run's log, and follow it."),
    "kill": CommandEntry("resilience.cli.kill", "Steer", "Stop a run after a save, by its kill switch."),
    "save": CommandEntry("resilience.cli.save", "Steer", "Make a run save now and go on."),
    "clear": CommandEntry("resilience.cli.clear", "Steer", "Take the switches of a run back."),
    "cancel": CommandEntry("resilience.cli.cancel", "Steer", "End the jobs of a run through the scheduler."),
    "watch": CommandEntry("resilience.cli.watch", "Watch", "Look for trouble: full disks, dead queues, hung logs."),
    "alert": CommandEntry(
        "resilience.cli.alert", "Watch", "See incidents, acknowledge, silence; test and flush alerts."
    ),
    "cron": CommandEntry("resilience.cli.cron", "Watch", "Run things at times where there is no cron."),
    "templates": CommandEntry("resilience.cli.templates", "Look up", "List the sbatch templates, or show one."),
    "config": CommandEntry("resilience.cli.config", "Look up", "Check the settings, or show where each comes from."),
}
