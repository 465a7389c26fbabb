"""Alerts to send, good ones and hostile ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from resilience.alerts.alert import Alert, Notice, Reason
from resilience.finding import Verdict

NOW = 1_800_000_000.0

HOSTILE = {
    "a Slack broadcast": "<!channel> <@U123> <https://evil.example|click> &amp;",
    "a header of one's own": "gpt\r\nBcc: eve@example.org\r\n\r\nbody",
    "NUL and escapes": "gpt\0\x1b[2J\x07\x9b31m",
    "lone surrogates": "gpt\udcff\ud800",
    "right to left": "gpt\u202etxt.exe\u2066\u200f",
    "HTML": "<script>alert(1)</script><img src=x onerror=y>\"'",
    "Jinja": "{{ 7*7 }}{% for x in y %}{# #}",
    "JSON": '"},{"a":"\\',
    "a placeholder": "\0secret\0 {secret} {{ secret }} \\u0000secret\\u0000",
    "Markdown": "[click](https://evil.example) @everyone @here **x** ``` `",
    "megabytes": "x" * 10_000_000,
    "blanks": " \t\n\u2028" * 200_000,
    "nothing": "",
}


def a_notice(episode: str = "3f9a1c", **fields: Any) -> Notice:
    """A full disk."""
    given: dict[str, Any] = {
        "episode": episode,
        "fingerprint": f"fs:{episode}",
        "reason": Reason.FIRST,
        "check": "fs",
        "subject": "/scratch",
        "fault": "space",
        "verdict": Verdict.CRITICAL,
        "summary": "98% used, 3.1 days left at 18.4 TB a day",
        "since": NOW - 7500,
        "advice": "resil watch fs --top",
        "run": "gpt",
        "evidence": ("/dev/sda1  100T  98T  2T  98% /scratch", "größte: /scratch/ckpt 41 TB"),
    }
    return Notice(**given | fields)


def an_alert(*notices: Notice, **fields: Any) -> Alert:
    """An alert about a full disk, or about what is given."""
    told = notices or (a_notice(),)
    given: dict[str, Any] = {
        "id": "3f9a1c-1",
        "thread": "3f9a1c",
        "reason": Reason.FIRST,
        "verdict": max(notice.verdict for notice in told),
        "time": NOW,
        "host": "login1",
        "project": "/home/ada/my gpt",
        "notices": told,
        "total": len(told),
    }
    return Alert(**given | fields)


def resolved(**fields: Any) -> Alert:
    """The end of it."""
    notice = a_notice(reason=Reason.RESOLVED, verdict=Verdict.OK, summary="41% used", advice="")
    return an_alert(notice, **{"id": "3f9a1c-2", "reason": Reason.RESOLVED, **fields})


def hostile(text: str) -> Alert:
    """An alert that has a text everywhere where a stranger's text may come."""
    notice = a_notice(
        subject=text, summary=text, advice=text, run=text, evidence=(text, text), check=text, fault=text,
        acknowledged_by=text,
    )  # fmt: skip
    return replace(an_alert(notice), host=text, project=text)


def a_thousand() -> Alert:
    """One alert with a thousand incidents."""
    return an_alert(*(a_notice(f"{number:06x}", subject=f"/scratch/{number}") for number in range(1000)))
