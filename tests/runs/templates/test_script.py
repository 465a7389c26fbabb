"""From a template and a spec to a script; and what is said when that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from resilience.errors import TemplateError, UsageError
from resilience.runs.templates.directives import parse_directives
from resilience.runs.templates.script import ScriptSpec, TemplateLibrary, render, render_template, variables_of
from tests.lab.disks import fill, small_disk
from tests.runs.templates.batch import SHIPPED


@pytest.fixture
def two_places(tmp_path: Path) -> TemplateLibrary:
    for origin in ("project", "user"):
        (tmp_path / origin).mkdir()
    return TemplateLibrary((("project", tmp_path / "project"), ("user", tmp_path / "user"), ("gone", tmp_path / "no")))


def put(two_places: TemplateLibrary, origin: str, name: str, text: str = "#!/bin/sh\n") -> Path:
    path = dict(two_places.directories)[origin] / name
    path.write_text(text)
    return path


def test_the_shipped_ones_are_those_of_the_launchers() -> None:
    assert SHIPPED.names() == ("accelerate", "container", "deepspeed", "python", "srun", "torchrun")


def test_an_earlier_directory_wins_and_the_other_is_marked(two_places: TemplateLibrary) -> None:
    put(two_places, "project", "a.sbatch.j2", "# resil: Mine.\n# resil:\n# resil: More of it.\n")
    put(two_places, "user", "a.sbatch.j2")
    put(two_places, "user", "b.sbatch.j2")
    assert [(info.name, info.origin, info.shadowed) for info in two_places.list()] == [
        ("a", "project", False),
        ("a", "user", True),
        ("b", "user", False),
    ]
    first = two_places.list()[0]
    assert first.summary == "Mine."
    assert first.documentation == ("Mine.", "", "More of it.")
    assert two_places.source("a").startswith("# resil: Mine.")
    assert two_places.source("a.sbatch.j2") == two_places.source("a")


def test_helpers_and_the_base_are_not_offered(two_places: TemplateLibrary) -> None:
    for name in ("_helper.sbatch.j2", "base.sbatch.j2", "notes.txt"):
        put(two_places, "user", name)
    assert two_places.names() == ()


@pytest.mark.parametrize("name", ["../project/a", "/etc/passwd", "user/../a", ".."])
def test_a_name_does_not_lead_out_of_the_directories(two_places: TemplateLibrary, name: str) -> None:
    put(two_places, "project", "a.sbatch.j2")
    with pytest.raises(TemplateError, match="there is no template"):
        two_places.source(name)


def test_a_template_that_everybody_may_write_is_refused(two_places: TemplateLibrary) -> None:
    put(two_places, "user", "a.sbatch.j2").chmod(0o666)
    with pytest.raises(TemplateError, match="is world-writable"):
        two_places.source("a")


def test_a_template_that_is_no_text_is_said_to_be_none(two_places: TemplateLibrary) -> None:
    (dict(two_places.directories)["user"] / "a.sbatch.j2").write_bytes(b"\xff\xfe")
    with pytest.raises(TemplateError, match="is not UTF-8 text"):
        two_places.source("a")


@pytest.fixture
def compiled(tmp_path: Path) -> TemplateLibrary:
    directory, cache = tmp_path / "slurm_templates", tmp_path / "cache"
    directory.mkdir()
    cache.mkdir()
    (directory / "mine.sbatch.j2").write_text("#!/bin/bash\necho {{ lr }}\n")
    return TemplateLibrary((("project", directory),), cache)


def test_a_compiled_template_is_kept_and_gives_the_same_text(compiled: TemplateLibrary) -> None:
    first = render_template(compiled, "mine.sbatch.j2", {"lr": "it's"})
    assert compiled.cache is not None
    (kept,) = compiled.cache.iterdir()
    before = kept.stat().st_mtime_ns

    assert render_template(compiled, "mine.sbatch.j2", {"lr": "it's"}) == first
    assert render_template(TemplateLibrary(compiled.directories), "mine.sbatch.j2", {"lr": "it's"}) == first
    assert kept.stat().st_mtime_ns == before, "compiled once"


def test_values_are_quoted_by_a_kept_template_as_by_a_fresh_one(compiled: TemplateLibrary) -> None:
    render_template(compiled, "mine.sbatch.j2", {"lr": "plain"})
    assert "'$(id)'" in render_template(compiled, "mine.sbatch.j2", {"lr": "$(id)"})


def test_a_template_that_was_edited_is_compiled_anew(compiled: TemplateLibrary) -> None:
    render_template(compiled, "mine.sbatch.j2", {"lr": "1"})
    (compiled.directories[0][1] / "mine.sbatch.j2").write_text("#!/bin/bash\ntrain {{ lr }}\n")
    assert "train 1" in render_template(compiled, "mine.sbatch.j2", {"lr": "1"})


def test_an_undefined_variable_is_named_from_the_cache_too(compiled: TemplateLibrary) -> None:
    render_template(compiled, "mine.sbatch.j2", {"lr": "1"})
    with pytest.raises(TemplateError, match="'lr' is not set"):
        render_template(compiled, "mine.sbatch.j2", {})


def test_damaged_leftovers_in_the_cache_are_compiled_over(compiled: TemplateLibrary) -> None:
    text = render_template(compiled, "mine.sbatch.j2", {"lr": "1"})
    assert compiled.cache is not None
    for path in compiled.cache.iterdir():
        path.write_bytes(b"\0garbage")
    assert render_template(compiled, "mine.sbatch.j2", {"lr": "1"}) == text


def test_the_variables_that_a_template_asks_for(compiled: TemplateLibrary) -> None:
    assert "lr" in variables_of(compiled, "mine.sbatch.j2")


def test_a_cache_on_a_full_disk_costs_time_and_no_submit(compiled: TemplateLibrary, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "16k") as disk:
        fill(disk)
        full = TemplateLibrary(compiled.directories, disk)
        assert "echo 1" in render_template(full, "mine.sbatch.j2", {"lr": "1"})


def spec(**changes: Any) -> ScriptSpec:
    return ScriptSpec(**{"run": "demo", "run_dir": "/shared/demo", "command": "python train.py"} | changes)


@pytest.fixture
def library(tmp_path: Path) -> TemplateLibrary:
    return TemplateLibrary((("project", tmp_path), *SHIPPED.directories))


def rendered(library: TemplateLibrary, text: str, **changes: Any) -> str:
    (library.directories[0][1] / "mine.sbatch.j2").write_text(text)
    return render(library, "mine", spec(**changes))


def refused(library: TemplateLibrary, text: str, **changes: Any) -> TemplateError:
    with pytest.raises(TemplateError) as caught:
        rendered(library, text, **changes)
    return caught.value


# ---- directives -------------------------------------------------------------------------------------------------


def options(script: str) -> dict[str, str | None]:
    return dict(parse_directives(script).options)


def test_the_spec_wins_over_the_templates_defaults_and_those_over_nothing() -> None:
    assert options(render(SHIPPED, "torchrun", spec()))["ntasks-per-node"] == "1"
    own = spec(directives=(("ntasks-per-node", "2"), ("output", "/logs/x.out"), ("signal", "B:USR2@60")))
    found = options(render(SHIPPED, "torchrun", own))
    assert (found["ntasks-per-node"], found["output"], found["signal"]) == ("2", "/logs/x.out", "B:USR2@60")
    assert "ntasks-per-node" not in options(render(SHIPPED, "torchrun", spec(directives=(("ntasks", "4"),))))


def test_each_task_of_an_array_gets_an_output_of_its_own() -> None:
    assert options(render(SHIPPED, "python", spec(array=True)))["output"] == "/shared/demo/logs/%x-%A_%a.out"


def test_a_percent_sign_in_the_path_is_not_a_field_of_sbatch() -> None:
    assert options(render(SHIPPED, "python", spec(run_dir="/a%j/demo")))["output"] == "/a%%j/demo/logs/%x-%j.out"


def test_the_signal_and_its_lead_are_written_and_known_to_the_trap() -> None:
    script = render(SHIPPED, "python", spec(signal="HUP", signal_lead_s=120))
    assert options(script)["signal"] == "B:HUP@120"
    assert "\nresil_signal=HUP\n" in script


# ---- templates of one's own -------------------------------------------------------------------------------------


def test_values_are_quoted_without_being_asked(library: TemplateLibrary) -> None:
    text = "#!/bin/bash\necho {{ name }} {{ number }} {{ flag }} {{ words }} {{ 'a b' }} {{ name | raw }}\n"
    script = rendered(library, text, launcher={"name": "it's; rm", "number": 8, "flag": True, "words": ["a b", "c"]})
    assert script == "#!/bin/bash\necho 'it'\"'\"'s; rm' 8 1 'a b' c 'a b' it's; rm\n"


def test_nothing_is_ever_escaped_as_html(library: TemplateLibrary) -> None:
    text = "#!/bin/bash\n{% macro m(x) %}echo {{ x }} <b>{% endmacro %}\n{{ m(name) }} {{ '<&>' }} {{ name ~ '<' }}\n"
    assert rendered(library, text, launcher={"name": "<&"}) == "#!/bin/bash\necho '<&' <b> '<&>' '<&<'\n"


def test_blocks_can_be_extended_from_the_shipped_template_of_the_same_name(library: TemplateLibrary) -> None:
    directory = library.directories[0][1]
    (directory / "python.sbatch.j2").write_text(
        '{% extends "shipped/python.sbatch.j2" %}\n{% block launch %}\necho before\n{{ super() }}{% endblock %}\n'
    )
    script = render(library, "python", spec())
    assert (
        "echo before\nresil_forward=yes # SIGTERM reaches only the batch shell: forward it\nresil_launch bash" in script
    )


def test_bashs_own_braces_are_not_jinjas(library: TemplateLibrary) -> None:
    text = '#!/bin/bash\na=(1 2)\necho "${#a[@]} ${a[*]%%2} ${a#1}"\n'
    assert rendered(library, text) == text


def test_documentation_is_left_out_and_lines_keep_their_numbers(library: TemplateLibrary) -> None:
    text = "# resil: Mine.\n# resil: More.\n#!/bin/bash\n{# a comment #}\ntrue\necho one\necho {{ missing }}\n"
    error = refused(library, text)
    assert "mine.sbatch.j2, line 7: the variable 'missing' is not set" in error.message
    assert error.hint == "give it with --set missing=VALUE, or under [template] in resil.toml"


def test_a_template_with_dos_line_ends_makes_a_script_without(library: TemplateLibrary) -> None:
    assert rendered(library, "#!/bin/bash\r\necho {{ run }}\r\n") == "#!/bin/bash\necho demo\n"


# ---- what is refused --------------------------------------------------------------------------------------------


def test_an_unknown_template_names_the_nearest_and_all(library: TemplateLibrary) -> None:
    with pytest.raises(TemplateError, match="there is no template 'tochrun'") as caught:
        render(library, "tochrun", spec())
    assert caught.value.hint.startswith("did you mean torchrun? there are: accelerate, container")


def test_a_misspelt_set_is_refused_with_the_nearest_name(library: TemplateLibrary) -> None:
    with pytest.raises(TemplateError, match="template torchrun has no variable 'gpu_per_node'") as caught:
        render(library, "torchrun", spec(variables={"gpu_per_node": "8"}))
    assert caught.value.hint.startswith("did you mean gpus_per_node?")


def test_a_variable_of_another_template_in_the_settings_is_no_mistake(library: TemplateLibrary) -> None:
    assert render(library, "python", spec(launcher={"gpus_per_node": 8}))


@pytest.mark.parametrize("name", ["command", "run_dir", "directives", "umask"])
def test_what_is_resils_own_cannot_be_set(library: TemplateLibrary, name: str) -> None:
    with pytest.raises(TemplateError, match="reserved by resil"):
        render(library, "python", spec(variables={name: "x"}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#!/bin/bash\n{% if x %}\n", "line 2"),
        ("#!/bin/bash\necho {{ 1 / 0 }}\n", "ZeroDivisionError"),
        ("#!/bin/bash\n{% include 'nothing' %}\n", "'nothing'"),
        ("#!/bin/bash\necho {{ run.__class__.__mro__ }}\n", "mine.sbatch.j2, line 2"),
        ("#!/bin/bash\necho {{ none }}\n", "cannot be written into a script"),
        ("echo\n", "does not begin with #!"),
        ("#!/bin/bash\n#SBATCH --time=5{% if run %}{% endif %}\n#SBATCH --nodes=2\necho\n", "does not begin its line"),
        ("#!/bin/bash\necho\n#SBATCH --time=5\n", "after the first command"),
    ],
)
def test_what_is_wrong_in_a_template_is_one_sentence_and_never_a_traceback(
    library: TemplateLibrary, text: str, words: str
) -> None:
    assert words in refused(library, text).message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": "../demo"}, "cannot be a run's name"),
        ({"run_dir": "relative"}, "absolute"),
        ({"run_dir": "/a\nb"}, "control character"),
        ({"command": "a\0"}, "NUL"),
        ({"setup": ("a\r\n",)}, "carriage return"),
        ({"setup": ("a\udcff",)}, "not UTF-8"),
        ({"environment": {"A B": "x"}}, "environment variable"),
        ({"environment": {"RESIL_ATTEMPT": "1"}}, "reserved by resil"),
        ({"signal": "SIGUSR1"}, "signal"),
        ({"signal": "KILL"}, "signal"),
        ({"owner_policy": "everybody"}, "owner policy"),
        ({"guard": {"RESIL_GUARD__POLL_S; true": "1"}}, "setting of the guard"),
        ({"guard": {"POLL_S": "1"}}, "setting of the guard"),
        ({"directives": (("comment", "a\nb"),)}, "line break"),
        ({"launcher": {"a b": 1}}, "template variable"),
    ],
)
def test_what_cannot_be_meant_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        render(SHIPPED, "python", spec(**changes))


def test_the_guard_can_be_switched_off_for_a_run() -> None:
    assert "export RESIL_GUARD=off\n" in render(SHIPPED, "python", spec(environment={"RESIL_GUARD": "off"}))


def test_a_container_needs_an_image_and_a_runtime_that_is_known() -> None:
    with pytest.raises(TemplateError, match="the variable 'image' is not set"):
        render(SHIPPED, "container", spec())
    with pytest.raises(TemplateError, match="runtime must be apptainer, singularity or pyxis, not docker"):
        render(SHIPPED, "container", spec(launcher={"image": "x.sif", "runtime": "docker"}))
    assert "--container-image" in render(SHIPPED, "container", spec(launcher={"image": "x", "runtime": "pyxis"}))
