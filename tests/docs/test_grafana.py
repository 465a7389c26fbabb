"""The Grafana dashboard asks for metrics and labels that `resil status --prom` writes, and its structure is whole."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from resilience.cli.prom import METRICS
from tests.cli.test_prom import LABELS

DASHBOARD: dict[str, Any] = json.loads((Path(__file__).parents[2] / "docs" / "grafana" / "resil.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
FUNCTIONS = {"sum", "max", "by", "time", "increase", "label_values"}


def test_every_query_uses_metrics_and_labels_that_are_written() -> None:
    asked = set()
    for text in [*EXPRESSIONS, *(one["query"]["query"] for one in DASHBOARD["templating"]["list"][1:])]:
        bare = re.sub(r'"[^"]*"', '""', text)
        labels = set(re.findall(r"(\w+) ?(?:=~|!=|=)\"", bare))
        for group in re.findall(r"by \(([^)]*)\)", bare):
            labels |= {name.strip() for name in group.split(",")}
        metrics = set(re.findall(r"\bresil_\w+", bare))
        assert metrics and metrics <= set(METRICS), text
        assert labels <= LABELS, text
        rest = set(re.findall(r"[a-z_]+", re.sub(r"\[\w+\]|\{[^}]*\}|by \([^)]*\)", "", bare))) - metrics
        assert rest <= FUNCTIONS | {"project", "run"}, text
        asked |= metrics
    assert asked == set(METRICS), "the others are shown nowhere"
    legends = re.findall(r"\{\{(\w+)\}\}", json.dumps(PANELS))
    assert set(legends) <= LABELS


def test_its_structure_is_that_of_a_dashboard() -> None:
    assert DASHBOARD["schemaVersion"] >= 36 and DASHBOARD["uid"] and "id" not in DASHBOARD
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    names = [one["name"] for one in DASHBOARD["templating"]["list"]]
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(PANELS))) == set(names)
    for panel in PANELS:
        place = panel["gridPos"]
        assert (
            panel["type"] in {"stat", "timeseries", "state-timeline", "table"} and panel["title"] and panel["targets"]
        )
        assert place["x"] >= 0 and place["w"] > 0 and place["h"] > 0 and place["x"] + place["w"] <= 24
        assert [one["refId"] for one in panel["targets"]] == ["A", "B", "C"][: len(panel["targets"])]
    for one, other in combinations([panel["gridPos"] for panel in PANELS], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Prometheus")
def test_prometheus_itself_parses_the_queries(tmp_path: Path) -> None:
    rules = [{"record": f"r:{number}", "expr": text.replace("$project", ".*").replace("$run", ".*")}
             for number, text in enumerate(EXPRESSIONS)]  # fmt: skip
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "resil", "rules": rules}]}))  # JSON is YAML
    done = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
