"""The text of a systemd timer and its service. Pure.

Syntax: systemd.syntax(7), systemd.service(5) "COMMAND LINES", systemd.timer(5).
"""

from __future__ import annotations

from collections.abc import Sequence

from resilience.cron.drivers._ticks.command import environment
from resilience.cron.drivers._ticks.marks import headline
from resilience.cron.records import Installation
from resilience.runs.context import Context

TICK_LIMIT = "10min"
"""A tick that only starts what is due and does not end within that hangs; the next one comes after it was ended."""


def service_text(installation: Installation, words: Sequence[str], context: Context) -> str:
    """The unit of one tick.

    The tick starts what is due and ends (`--no-wait`): a timer starts nothing while the last tick is there. What it
    started lives on in the unit's control group: KillMode=process ends the tick alone.
    """
    variables = environment(installation)
    unset = [name for name in ("PYTHONHOME", "PYTHONPATH") if name not in variables]
    lines = [
        headline(installation, context.state_dir),
        "[Unit]",
        f"Description=resil cron: the ticks of {_percent(installation.project)}",
        "",
        "[Service]",
        "Type=oneshot",
        f"WorkingDirectory={_percent(installation.project)}",
        *(f"Environment={quoted(f'{name}={value}')}" for name, value in variables.items()),
        f"UnsetEnvironment={' '.join(unset)}",
        # systemd takes no quote, backslash or doubled $ in the path of the program itself.
        f"ExecStart=/usr/bin/env {' '.join(quoted(word).replace('$', '$$') for word in words)}",
        "KillMode=process",
        f"TimeoutStartSec={TICK_LIMIT}",
    ]
    return "\n".join(lines) + "\n"


def timer_text(installation: Installation, service: str, context: Context) -> str:
    """The unit that starts the other at each full minute."""
    lines = [
        headline(installation, context.state_dir),
        "[Unit]",
        f"Description=resil cron: every minute, the ticks of {_percent(installation.project)}",
        "",
        "[Timer]",
        "OnCalendar=*-*-* *:*:00",
        "AccuracySec=1s",
        f"Unit={service}",
        "",
        "[Install]",
        "WantedBy=timers.target",
    ]
    return "\n".join(lines) + "\n"


def quoted(word: str) -> str:
    """One word in double quotes, with C's escapes, and without specifiers (`%`)."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t")
    return f'"{_percent(escaped)}"'


def _percent(text: str) -> str:
    return text.replace("%", "%%")
