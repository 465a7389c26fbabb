"""The stacks of all ranks as text, and as one HTML page without anything from elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from resilience.messages import cut, plural
from resilience.ranks.collect import Evidence, RankStacks
from resilience.ranks.grouping import NAMED, Group, describe, numbers
from resilience.ranks.stacks import Frame
from resilience.system.ports import iso_time

SHOWN_FRAMES = 16
SHOWN_ODD = 20
SHOWN_TEXTS, LONGEST_TEXT = 64, 50_000
"""Texts on one page: of the odd ranks, the first rank of each group, then of others; and characters of each."""
_STYLE = """\
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1f2328; --dim: #59636e; --line: #d1d9e0; --soft: #f6f8fa;
  --odd: #c62828 }
@media (prefers-color-scheme: dark) { :root { --paper: #0d1117; --ink: #f0f6fc; --dim: #9198a1; --line: #3d444d;
  --soft: #151b23; --odd: #f85149 } }
body { background: var(--paper); color: var(--ink); font: 15px/1.45 sans-serif; max-width: 1000px; margin: 2em auto;
  padding: 0 1em }
h1 { font-size: 1.3em; overflow-wrap: anywhere } h2 { font-size: 1.05em; margin-top: 1.8em }
.wide { overflow-x: auto } table { border-collapse: collapse; width: 100% }
td, th { border-bottom: 1px solid var(--line); padding: .3em .6em; text-align: left; vertical-align: top;
  white-space: nowrap }
td:last-child { white-space: normal; overflow-wrap: anywhere; min-width: 8em }
tr.odd td { color: var(--odd); font-weight: bold } .dim { color: var(--dim) }
pre { background: var(--soft); border: 1px solid var(--line); border-radius: 6px; padding: .7em; overflow-x: auto;
  font-size: 13px } summary { cursor: pointer }
@media print { body { margin: 0; max-width: none } pre { white-space: pre-wrap } tr, pre { break-inside: avoid } }"""


def render_text(evidence: Evidence) -> list[str]:
    """Return lines: the sentence, the odd ranks if it does not name them all, and each group with its frames, innermost
    first."""
    lines = [f"{_title(evidence)}: {evidence.groups.sentence}", *(f"  note: {note}" for note in evidence.notes)]
    odd = evidence.groups.odd if len(evidence.groups.odd) > NAMED else ()  # else the sentence has them
    lines += [f"  rank {one.rank} on {one.host}: {one.why}" for one in odd[:SHOWN_ODD]]
    if len(odd) > SHOWN_ODD:
        lines.append(f"  and {len(odd) - SHOWN_ODD} more: --html FILE shows all")
    lines += [f"  {said}" for said in evidence.nccl]
    for one in evidence.groups.groups:
        lines += ["", _head(one, evidence), *(f"  {line}" for line in _frames(one.frames))]
    for host, log in evidence.kernel:
        lines += ["", f"the kernel of {host} reports:", *(f"  {line}" for line in log)]
    return lines + (["", *evidence.dumps] if evidence.dumps else [])


def render_html(pages: Sequence[Evidence], why: str = "") -> str:
    """Return one HTML document for the evidence of each job: readable in light and dark, and printable.

    `why`: how the hang was found; empty if nothing says that there is one.
    """
    title = escape(_title(pages[0]))
    body = [part for evidence in pages for part in _section(evidence, why)]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    style = f"<style>\n{_STYLE}\n</style>"
    return "\n".join(
        ["<!DOCTYPE html>", f'<html lang="en"><head>{head}', style, "</head><body>", *body, "</body></html>\n"]
    )


def _section(evidence: Evidence, why: str) -> Iterable[str]:
    yield f"<h1>{escape(evidence.groups.sentence)}</h1>"
    hosts = len({one.host for one in evidence.ranks})
    where = f"{plural(len(evidence.ranks), 'rank')} on {plural(hosts, 'node')}"
    yield f'<p class="dim">{escape(_title(evidence))}, {where}</p>'
    if why:
        yield f"<p>{escape(why)}</p>"
    yield from (f'<p class="dim">{escape(note)}</p>' for note in evidence.notes)
    yield from (f"<p>{escape(said)}</p>" for said in evidence.nccl)
    groups = evidence.groups.groups
    if groups:
        yield f"<h2>Stacks{f' at {len(groups)} places, the most ranks first' if len(groups) > 1 else ''}</h2>"
    for one in groups:
        yield f"<p>{escape(_head(one, evidence))}</p><pre>{escape(chr(10).join(_frames(one.frames)))}</pre>"
    for host, log in evidence.kernel:
        yield f"<p>The kernel of {escape(host)} reports:</p><pre>{escape(chr(10).join(log))}</pre>"
    if evidence.dumps:
        yield f"<pre>{escape(chr(10).join(evidence.dumps))}</pre>"
    columns = "".join(f"<th>{name}</th>" for name in ("Rank", "Node", "Pid", "Step", "Phase", "Where"))
    yield f'<h2>Ranks</h2><div class="wide"><table><tr>{columns}</tr>'
    odd = {one.rank: one.why for one in evidence.groups.odd}
    places = {rank: describe(one) for one in groups for rank in one.ranks} | odd
    for rank in sorted(evidence.ranks, key=lambda rank: (rank.rank not in odd, rank.rank)):
        cells = (rank.rank, rank.host, rank.pid, rank.step, rank.phase, places.get(rank.rank, ""))
        row = "".join(f"<td>{escape(str(cell))}</td>" for cell in cells)
        yield f'<tr class="odd">{row}</tr>' if rank.rank in odd else f"<tr>{row}</tr>"
    yield "</table></div><h2>The stack of each rank</h2>"
    texts = _texts(evidence, odd)
    for rank in texts:
        text = escape(cut(rank.text, LONGEST_TEXT))
        by = f", read by {rank.source}" if rank.source != "guard" else ""
        yield f"<details><summary>rank {rank.rank} on {escape(rank.host)}{by}</summary><pre>{text}</pre></details>"
    left = sum(bool(rank.text) for rank in evidence.ranks) - len(texts)
    if left:
        of = f"journal/{evidence.job_id}.RANK.stacks"
        yield f'<p class="dim">Those of {plural(left, "more rank")} are in the run directory: {escape(of)}</p>'


def _texts(evidence: Evidence, odd: Iterable[int]) -> list[RankStacks]:
    """Return the ranks whose whole text the page shows, in the order of their numbers."""
    firsts = [one.ranks[0] for one in evidence.groups.groups]
    order = {rank: place for place, rank in enumerate(dict.fromkeys([*odd, *firsts]))}
    written = [rank for rank in evidence.ranks if rank.text]
    written.sort(key=lambda rank: (order.get(rank.rank, len(order)), rank.rank))
    return sorted(written[:SHOWN_TEXTS], key=lambda rank: rank.rank)


def _title(evidence: Evidence) -> str:
    attempt = f", attempt {evidence.attempt}" if evidence.attempt else ""
    return f"{evidence.run}{attempt} (job {evidence.job_id}), {iso_time(evidence.time)[:19].replace('T', ' ')}"


def _head(one: Group, evidence: Evidence) -> str:
    mine = {*one.ranks}
    hosts = list(dict.fromkeys(rank.host for rank in evidence.ranks if rank.rank in mine))
    where = f" on {', '.join(hosts)}" if len(hosts) <= 3 else f" on {len(hosts)} nodes"
    name = "rank" if len(one.ranks) == 1 else f"{len(one.ranks)} ranks"
    return f"{name} {numbers(one.ranks)}{where}: {describe(one)}"


def _frames(frames: Sequence[Frame]) -> list[str]:
    lines = [f"{one.function} ({one.file}:{one.line})" for one in frames[:SHOWN_FRAMES]]
    more = len(frames) - SHOWN_FRAMES
    return lines + ([f"and {plural(more, 'frame')} more"] if more > 0 else [])
