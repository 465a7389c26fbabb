"""Every setting is shown with where it comes from, and run.toml says again exactly what counted."""

from __future__ import annotations

import tomllib
from dataclasses import fields, is_dataclass
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from resilience.guard.settings import GuardSettings
from resilience.settings.cron_settings import CronSettings
from resilience.settings.load import FILE_NAME, Loaded, load
from resilience.settings.sections import RunSettings, Settings, SubmitSettings
from resilience.settings.show import rows, to_toml
from tests.fakes import make_world


def test_each_row_says_where_it_comes_from(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('[run]\nstate-dir = "x"\n[sbatch]\ngpus_per_node = 8\n')
    loaded = load(make_world(tmp_path, {"RESIL_RUN__GROUP": "lab"}), overrides={"scheduler.name": "local"})
    origins = {row.key: row.origin for row in rows(loaded) if row.origin != "default"}
    assert origins == {
        "run.state_dir": str(tmp_path / FILE_NAME),
        "run.group": "$RESIL_RUN__GROUP",
        "sbatch.gpus-per-node": str(tmp_path / FILE_NAME),
        "scheduler.name": "command line",
    }


def test_no_setting_is_left_out() -> None:
    shown = {row.key for row in rows(Loaded(Settings(), None, Path("/p")))}
    owned = {
        f"{section.name}.{field.name}"
        for section in fields(Settings)
        if is_dataclass(owner := getattr(Settings(guard=GuardSettings(), cron=CronSettings()), section.name))
        for field in fields(owner)
    }
    assert shown == owned


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
keys = texts.map(lambda key: key.replace("_", "-"))
plain = texts | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.floats(allow_nan=False)


@given(
    run=st.builds(RunSettings, name=texts, command=texts, setup=st.lists(texts, max_size=3).map(tuple), group=texts),
    submit=st.builds(SubmitSettings, array=texts, requeue=st.none() | st.booleans(), signal_lead_s=st.floats(0, 1e6)),
    sbatch=st.dictionaries(keys, plain, max_size=3),
    environment=st.dictionaries(texts, texts, max_size=3),
    launcher=st.dictionaries(texts, plain, max_size=3),
)
def test_run_toml_reads_back_to_the_same_values_whatever_they_are(
    run: RunSettings,
    submit: SubmitSettings,
    sbatch: dict[str, str],
    environment: dict[str, str],
    launcher: dict[str, str],
) -> None:
    settings = Settings(run=run, submit=submit, sbatch=sbatch, environment=environment, launcher=launcher)
    document = tomllib.loads(to_toml(Loaded(settings, None, Path("/p")), "gpt"))
    assert document["run"] == {
        "name": "gpt", "command": run.command, "template": "python", "setup": list(run.setup), "state_dir": ".resil",
        "group": run.group, "switch_owners": "", "finish_on_success": True,
    }  # fmt: skip
    assert (document["submit"]["array"], document["submit"].get("requeue")) == (submit.array, submit.requeue)
    assert document["submit"]["signal_lead_s"] == submit.signal_lead_s
    assert (document.get("sbatch", {}), document.get("environment", {})) == (sbatch, environment)
    assert document.get("template", {}) == launcher


def test_run_toml_can_be_used_as_settings_again(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(
        '[run]\nname = "gpt"\ncommand = "a \\"b\\""\n[sbatch]\n"x.y" = "é"\nexclusive = true\n[environment]\nA = "1"\n'
    )
    loaded = load(make_world(tmp_path))
    (tmp_path / "run.toml").write_text(to_toml(loaded, "gpt"))
    again = load(make_world(tmp_path), wanted=tmp_path / "run.toml")
    assert [(row.key, row.value) for row in rows(again)] == [(row.key, row.value) for row in rows(loaded)]
