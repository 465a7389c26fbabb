#!/usr/bin/env python3
"""Writes resilience/attempts/rules/xid.toml and docs/reference/xid.md from NVIDIA's catalogue of Xid errors.

    python scripts/make_xid_table.py catalog_generated.go

The argument is components/accelerator/nvidia/xid/catalog_generated.go of leptonai/gpud (Apache-2.0), which is made from
NVIDIA's spreadsheet; its head names the date. What other operators do with an Xid is shown beside it.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
ENTRY = re.compile(
    r'\{Code: (?P<code>\d+), Mnemonic: "(?P<mnemonic>(?:[^"\\]|\\.)*)", Description: "(?P<text>(?:[^"\\]|\\.)*)", '
    r'ImmediateResolution: "(?P<now>[^"]*)", InvestigatoryResolution: "(?P<later>[^"]*)"'
)
META_HARMLESS = {13, 31, 43, 45, 63, 68, 92, 109}
"""facebookresearch/gcm, read 2025-12-25: not critical."""
CRUSOE_DEGRADED, CRUSOE_UNHEALTHY = {119, 120, 140, 143}, {32, 48, 64, 74, 79, 95}
"""Crusoe's documentation of its node health, read 2026-11."""
HARDWARE = {
    "RESET_GPU",
    "RESTART_BM",
    "RESTART_VM",
    "CHECK_MECHANICALS",
    "WORKFLOW_XID_48",
    "CONTACT_SUPPORT",
    "UPDATE_SWFW",
}
GROUPS = {
    ("gpu_program", "root"): (
        "the program is the cause as a rule: see the exception beside it",
        "31, pid=4711, name=python3, Ch 00000008, intr 00000000. MMU Fault",
    ),
    ("gpu_link", "root"): (
        "NVLink: run elsewhere (--exclude) and report the node",
        "74, pid=4711, name=python3, NVLink: fatal error detected on link 6",
    ),
    ("gpu_fault", "root"): (
        "run elsewhere (--exclude) and report the node",
        "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    ),
    ("gpu_fault", "cascade"): (
        "a restart of the program suffices, says NVIDIA; --exclude the node if it returns",
        "94, pid=4711, name=python3, Contained: SM (0x1). RST: No, D-RST: No",
    ),
    ("gpu_fault", "diagnostic"): ("", "45, pid=4711, name=python3, Ch 00000008"),
}


@dataclass(frozen=True)
class Xid:
    """A row of the catalogue."""

    code: int
    text: str
    now: str
    later: str

    @property
    def group(self) -> tuple[str, str]:
        """Return the class and role of a line with it."""
        if self.code in (74, *range(144, 151)):
            return "gpu_link", "root"
        if self.now == "RESTART_APP":
            is_program = self.code in (13, 31) or self.later == "CHECK_APP/CUDA"
            return ("gpu_program", "root") if is_program else ("gpu_fault", "cascade")
        return ("gpu_fault", "root") if self.now in HARDWARE else ("gpu_fault", "diagnostic")

    @property
    def others(self) -> str:
        """Return how others disagree with NVIDIA."""
        said = []
        is_hardware = self.group[1] == "root" and self.group[0] != "gpu_program"
        if self.code in META_HARMLESS and self.now != "IGNORE" and self.later == "CONTACT_SUPPORT":
            said.append("Meta: not critical")
        if self.code in CRUSOE_UNHEALTHY and not is_hardware:
            said.append("Crusoe: node unhealthy")
        if self.code in CRUSOE_DEGRADED and is_hardware:
            said.append("Crusoe: only degraded")
        return "; ".join(dict.fromkeys(said))


def main(path: str) -> None:
    """Write both files."""
    catalog = Path(path).read_text(encoding="utf-8")
    date = catalog.partition("Generated at ")[2][:10]
    rows = [
        Xid(int(one["code"]), _plain(one["text"]), one["now"], _plain(one["later"])) for one in ENTRY.finditer(catalog)
    ]
    used = sorted((row for row in rows if row.text != "Unused" and row.now), key=lambda row: row.code)
    (ROOT / "resilience/attempts/rules/xid.toml").write_text(rules(used, date))
    (ROOT / "docs/reference/xid.md").write_text(page(used, date))


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("\\n", " ").replace("|", "/"))


def rules(rows: list[Xid], date: str) -> str:
    """Return the rules, one for each class and role."""
    parts = [
        f"# NVIDIA Xid messages; written by scripts/make_xid_table.py from NVIDIA's catalogue of {date}\n# ({PAGE}).\n"
    ]
    for (failure, role), (advice, example) in GROUPS.items():
        codes = "|".join(str(row.code) for row in rows if row.group == (failure, role))
        parts.append(
            f'\n[[rule]]\nclass = "{failure}"\ncontains = ["xid ("]\n'
            f"pattern = 'NVRM: Xid \\((?:PCI:)?(?P<device>[0-9a-fA-F:.]+)\\).*?: (?:{codes})[,\\s]'\n"
            f'role = "{role}"\n'
            + (f'advice = "{advice}"\n' if advice else "")
            + f'source = "{PAGE}, {date}"\n'
            + f'example = "NVRM: Xid (PCI:0000:3b:00): {example}"\n'
        )
    return "".join(parts)


def page(rows: list[Xid], date: str) -> str:
    """Return the table for readers."""
    lines = [
        "# Xid messages",
        "",
        f"How `resil why` reads the Xid messages of NVIDIA's driver. From [NVIDIA's catalogue]({PAGE}) as of {date},",
        "by `scripts/make_xid_table.py`. The last column shows where the lists of other operators",
        "(facebookresearch/gcm, Crusoe) disagree with NVIDIA's.",
        "",
        "A *root* message may be the cause. A *cascade* is a cause only where no other line is one. A *diagnostic*",
        "message is never evidence: 45 follows any end of a process.",
        "",
        "| Xid | says | NVIDIA: at once | NVIDIA: afterwards | class | role | others |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.code} | {row.text.partition(' -- ')[0]} | {row.now} | {row.later} | {' | '.join(row.group)} "
        f"| {row.others} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(sys.argv[1])
