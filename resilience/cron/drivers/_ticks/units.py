"""Text of a systemd timer and its service. Pure.

Syntax: systemd.syntax(7), systemd.service(5) "COMMAND LINES", systemd.timer(5).
"""

from __future__ import annotations

from collections.abc import Sequence

from resilience.cron.drivers._ticks.command import environment
from resilience.cron.drivers._ticks.marks import headline
from resilience.cron.records import Installation
from resilience.runs.context import Context

TICK_LIMIT = "10min"
"""A tick only starts runs; after this time it is hung and killed, and the next one follows."""


def service_text(installation: Installation, words: Sequence[str], context: Context) -> str:
    """Return the service unit of one tick.

    The tick starts what is due and exits (`--no-wait`), because a timer starts nothing while the last tick is active.
    Its runs stay in the unit's control group: KillMode=process kills only the tick itself.
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
    """Return the timer unit that starts the service at each full minute."""
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
    """Return a word in double quotes, with C escapes, and with escaped specifiers (`%`)."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t")
    return f'"{_percent(escaped)}"'


def _percent(text: str) -> str:
    return text.replace("%", "%%")
