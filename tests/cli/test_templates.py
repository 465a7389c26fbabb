"""`resil templates` lists what can be launched, and where each template was found."""

from __future__ import annotations

from tests.cli.shell import Shell


def test_every_template_is_listed_with_where_it_was_found(shell: Shell) -> None:
    said = shell.resil("templates")
    for name in ("python", "srun", "torchrun", "accelerate", "deepspeed", "container"):
        assert f"\n{name} " in said.out
    assert "shipped" in said.out and "base" not in [line.split()[0] for line in said.out.splitlines()]


def test_one_is_shown_with_what_it_says_of_itself_or_as_it_was_written(shell: Shell) -> None:
    said = shell.resil("templates", "python")
    assert said.out.startswith("python (shipped: ") and "One process" in said.out
    assert "{% extends" in shell.resil("templates", "python", "--source").out


def test_ones_own_wins_and_the_shadowed_one_is_marked(shell: Shell) -> None:
    (shell.folder / "slurm_templates").mkdir()
    (shell.folder / "slurm_templates" / "python.sbatch.j2").write_text("# resil: Mine.\n")
    assert "shipped (shadowed)" in shell.resil("templates").out
    assert "Mine." in shell.resil("templates", "python").out
    rows = shell.resil("templates", "python", "--json").json["templates"]
    assert [(row["origin"], row["shadowed"]) for row in rows] == [("project", False), ("shipped", True)]


def test_an_unknown_template_is_answered_with_the_nearest(shell: Shell) -> None:
    said = shell.resil("templates", "torchrnu")
    assert said.code == 2 and "did you mean torchrun?" in said.err
