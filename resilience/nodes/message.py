"""The message about a node for the administrators of a cluster. Pure."""

from __future__ import annotations

from resilience.messages import plural
from resilience.nodes.evidence import Evidence, Source
from resilience.nodes.standing import WEIGHTS, Standing
from resilience.system.ports import iso_time

MOST_LINES = 20
_DEEDS = {Source.AVOIDED, Source.USED}


def compose(standing: Standing, cluster: str, user: str) -> str:
    """Return a message to paste: what is wrong with the node, and each fact with time, job and user."""
    facts = [one for one in standing.evidence if one.source in WEIGHTS]
    first = f"Subject: node {standing.node}" + (f" of {cluster}" if cluster else "") + " seems to be faulty"
    lines = [first, "", f"Please look at node {standing.node}."]
    if standing.why:
        lines.append(f"Our jobs are kept away from it ({standing.why})." if standing.until else f"{standing.why}.")
    if facts:
        older = f", the last {MOST_LINES}" if len(facts) > MOST_LINES else ""
        lines += ["", f"{plural(len(facts), 'observation')}{older}:", *map(line_of, facts[-MOST_LINES:])]
    avoided = [one for one in standing.evidence if one.source is Source.AVOIDED]
    if avoided:
        lines += ["", f"Elsewhere it goes on: {avoided[-1].why}."]
    return "\n".join([*lines, "", f"{user} (written by resil)"])


def line_of(one: Evidence) -> str:
    """Return one fact as a line."""
    job = f", job {one.job}" if one.job and one.source not in _DEEDS else ""
    by = f", {one.by}" if one.by else ""
    return f"  {iso_time(one.time)}  {one.source.value.replace('_', ' ')}{job}{by}: {' '.join(one.why.split())}"
