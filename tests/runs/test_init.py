"""`resil init` asks nothing, keeps what is there, and writes what `resil config check` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.doctor.settings import check_settings
from resilience.errors import StateDirectoryError, UsageError
from resilience.runs.init import compose_settings, init
from resilience.runs.project import Project
from resilience.settings.load import FILE_NAME, load
from resilience.settings.sections import Settings
from resilience.system.files import shipped_directory
from tests.lab.fakes import make_system


def settings_of(directory: Path, text: str) -> Settings:
    """What the text means, after the same check that `resil config check` makes."""
    (directory / FILE_NAME).write_text(text)
    system = make_system(directory)
    project = Project(system, load(system))
    check_settings(project)
    return project.loaded.settings


def script(*directives: str) -> str:
    return "#!/bin/bash\n" + "".join(f"#SBATCH {directive}\n" for directive in directives) + "python train.py\n"


def test_a_new_project_gets_settings_that_can_be_used_and_the_cron_directory(tmp_path: Path) -> None:
    done = init(directory=tmp_path / "gpt", source=None, force=False)
    shipped = {
        path.relative_to(shipped_directory("cron")) for path in shipped_directory("cron").rglob("*") if path.is_file()
    }
    written = {path.relative_to(tmp_path / "gpt") for path in done.written}
    assert written == {Path(FILE_NAME)} | {Path("cron") / path for path in shipped}
    assert done.kept == ()
    settings = settings_of(tmp_path, (tmp_path / "gpt" / FILE_NAME).read_text())
    assert (settings.run.name, settings.submit.array, settings.submit.signal_lead_s) == ("gpt", "10", 300.0)
    assert settings.sbatch == {"time": "20:00:00"}


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    init(directory=tmp_path, source=None, force=False)
    (tmp_path / FILE_NAME).write_text("# mine\n")
    (tmp_path / "cron" / "crontab").write_text("# mine too\n")
    gone = next((tmp_path / "cron").rglob("watch-fs"))
    gone.unlink()
    done = init(directory=tmp_path, source=None, force=False)
    assert done.written == (gone,)
    assert (tmp_path / FILE_NAME).read_text() == "# mine\n" and tmp_path / FILE_NAME in done.kept
    (tmp_path / "old.sh").write_text("#!/bin/bash\n")
    with pytest.raises(UsageError, match="already exists") as caught:
        init(directory=tmp_path, source=tmp_path / "old.sh", force=False)
    assert "--force" in caught.value.hint and (tmp_path / FILE_NAME).read_text() == "# mine\n"
    done = init(directory=tmp_path, source=None, force=True)
    assert (tmp_path / FILE_NAME).read_text() != "# mine\n"
    assert (tmp_path / "cron" / "crontab").read_text() == "# mine too\n" and tmp_path / "cron" / "crontab" in done.kept


def test_a_link_that_leads_nowhere_is_something_that_is_there(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).symlink_to("gone")
    assert tmp_path / FILE_NAME in init(directory=tmp_path, source=None, force=False).kept
    assert not (tmp_path / "gone").exists()


def test_programs_of_the_cron_directory_stay_programs(tmp_path: Path) -> None:
    init(directory=tmp_path, source=None, force=False)
    modes = {}
    for path in (path for path in shipped_directory("cron").rglob("*") if path.is_file()):
        copy = tmp_path / "cron" / path.relative_to(shipped_directory("cron"))
        modes[copy.name] = copy.stat().st_mode & 0o777
        assert modes[copy.name] == path.stat().st_mode & 0o777, "the checkout has them right, too"
    assert (modes["watch-fs"], modes["watch-fs.slurm"], modes["crontab"]) == (0o755, 0o644, 0o644)


def test_programs_are_programs_though_the_installation_lost_their_modes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What unpacks a wheel sets modes as it likes; zipfile.extractall and some installers set none."""
    shipped = tmp_path / "shipped"
    (shipped / "cron.hourly").mkdir(parents=True)
    for name, mode in {"look": 0o600, "look.slurm": 0o755, "notes": 0o755}.items():
        (shipped / "cron.hourly" / name).write_text("#!/bin/sh\n" if name != "notes" else "read me\n")
        (shipped / "cron.hourly" / name).chmod(mode)
    monkeypatch.setattr("resilience.runs.init.shipped_directory", lambda kind: shipped)
    init(directory=tmp_path / "new", source=None, force=False)
    copies = (tmp_path / "new" / "cron" / "cron.hourly").iterdir()
    modes = {path.name: path.stat().st_mode & 0o777 for path in copies}
    assert modes == {"look": 0o755, "look.slurm": 0o644, "notes": 0o644}


def test_the_examples_under_cron_can_be_used_as_they_stand(tmp_path: Path) -> None:
    """Every line of [cron] that is commented out means what it says once the `#` is gone."""
    head, _, table = compose_settings("x", "")[0].partition("[cron]\n")
    lines = table.partition("\n\n")[0].splitlines()
    examples = [line.removeprefix("# ") for line in lines if " = " in line]
    cron = settings_of(tmp_path, f"{head}[cron]\n" + "\n".join(examples) + "\n").cron_settings
    assert (cron.backend, cron.revive, cron.digest_at) == ("auto", True, "08:00")
    assert cron.sbatch == {"partition": "cpu", "account": "project-123"} and cron.ping_url_file


@pytest.mark.parametrize("name", ["my project", "été", "...", "a'b\"c", "x" * 150, "ａ"])
def test_a_directory_of_any_name_gives_a_run_of_a_name_that_is_one(tmp_path: Path, name: str) -> None:
    init(directory=tmp_path / name, source=None, force=False)
    settings_of(tmp_path, (tmp_path / name / FILE_NAME).read_text())


def test_a_script_that_is_none_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "crlf.sh").write_bytes(b"#!/bin/bash\r\n")
    for name in ("crlf.sh", "none.sh"):
        with pytest.raises(UsageError):
            init(directory=tmp_path / "new", source=tmp_path / name, force=False)
    assert not (tmp_path / "new").exists()


def test_a_file_in_the_directories_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateDirectoryError):
        init(directory=tmp_path / "file" / "x", source=None, force=False)


# ---- what is taken over from a script -----------------------------------------------------------------------------


def test_long_and_short_directives_are_taken_over(tmp_path: Path) -> None:
    text, notes = compose_settings(
        "directory",
        script("-J llama -p gpu -N4", "--gpus-per-node=8", "-t 1-12:00:00", "--exclusive", "--array=1-20%1",
               "--signal=B:USR2@120", "-o out.txt", "--mail-user='a b'").replace("python", "srun python"),
    )  # fmt: skip
    settings = settings_of(tmp_path, text)
    assert (settings.run.name, settings.submit.array, settings.submit.signal_lead_s) == ("llama", "1-20%1", 120.0)
    assert settings.sbatch == {
        "partition": "gpu", "nodes": "4", "gpus-per-node": "8", "time": "1-12:00:00", "exclusive": True,
        "mail-user": "a b",
    }  # fmt: skip
    assert any("output" in note for note in notes)


LAUNCHES = [
    ("conda run -n env python train.py", "python", "conda run -n env python train.py"),
    (
        "conda run --no-capture-output -p /opt/envs/py3 python3 train.py --env x\n",
        "python",
        "conda run --no-capture-output -p /opt/envs/py3 python3 train.py --env x",
    ),
    ("srun -n 8 uv run python -m pkg.train", "srun", "uv run python -m pkg.train"),
    (
        "srun --mem-bind=local numactl --cpunodebind=0 python train.py &",
        "srun",
        "numactl --cpunodebind=0 python train.py",
    ),
    ("env A=1 B=2 python train.py", "python", "env A=1 B=2 python train.py"),
    ("conda run -n env torchrun --nproc_per_node=8 train.py", "torchrun", "python train.py"),
    ("python train.py", "python", "python train.py"),
    ("cd /x && srun python -u train.py --lr 1", "srun", "python -u train.py --lr 1"),
    ("srun \\\n  --kill-on-bad-exit=1 \\\n  python train.py", "srun", "python train.py"),
    ("torchrun --nproc_per_node=8 train.py --cfg a.yaml", "torchrun", "python train.py --cfg a.yaml"),
    ("srun torchrun --nnodes=$SLURM_NNODES train.py", "torchrun", "python train.py"),
    ("srun bash -c 'torchrun --nnodes=2 train.py'", "torchrun", ""),
    (
        "srun hostname\npython -m torch.distributed.run --nproc_per_node 8 -m pkg.train --x",
        "torchrun",
        "python -m pkg.train --x",
    ),
    ("python -m torch.distributed.launch --use_env main.py", "torchrun", "python main.py"),
    ("accelerate launch --num_processes 8 train.py", "accelerate", "python train.py"),
    ("deepspeed --num_gpus 8 train.py --deepspeed ds.json", "deepspeed", "python train.py --deepspeed ds.json"),
    ("srun apptainer exec --nv a.sif python train.py", "container", "python train.py"),
    ("mpirun -np 8 python train.py", "srun", "python train.py"),
    ("srun ./train", "srun", ""),
    ("for i in 1 2; do python train.py; done", "python", ""),
    ("if true; then srun python train.py; fi", "srun", ""),
    ("python <<EOF\nprint(1)\nEOF", "python", ""),
    ("bash run.sh", "python", ""),
    ("# torchrun train.py\npython train.py  # not srun", "python", "python train.py"),
    ("export P=$(python -c 'print(1)')\nsrun python train.py", "srun", "python train.py"),
    ("python prepare.py\nsrun python train.py > out.txt &\nwait", "srun", "python train.py > out.txt"),
    ("which python; python --version; nvidia-smi\ntorchrun train.py", "torchrun", "python train.py"),
    ("python prepare.py\nsrun torchrun train.py\npython upload.py --last", "torchrun", "python train.py"),
    ("python prepare.py\npython train.py", "python", "python train.py"),
    ("python train.py\npython -c 'print(1)'\npython - <<<1", "python", "python train.py"),
]


@pytest.mark.parametrize(("body", "template", "command"), LAUNCHES)
def test_template_and_command_are_guessed_from_the_launch(
    tmp_path: Path, body: str, template: str, command: str
) -> None:
    text, notes = compose_settings("x", f"#!/bin/bash\n#SBATCH -t 60\n{body}\n")
    run = settings_of(tmp_path, text.replace("[template]", '[template]\nimage = "a.sif"')).run
    assert (run.template, run.command) == (template, command or "python train.py")
    assert any("taken from" in note for note in notes) or body == "bash run.sh"


@pytest.mark.parametrize(
    ("launch", "processes"),
    [("srun torchrun --nproc_per_node 8 train.py", 8), ("torchrun --nproc-per-node=4 train.py", 4),
     ("deepspeed --num_gpus=2 train.py", 2), ("torchrun --nproc_per_node=gpu train.py", None),
     ("torchrun train.py --nproc_per_node 3", None), ("torchrun --nproc_per_node=$N train.py", None)],
)  # fmt: skip
def test_the_processes_per_node_of_a_launcher_are_taken_over(
    tmp_path: Path, launch: str, processes: int | None
) -> None:
    """Without them, a script that requests no GPUs by number would train with one process per node."""
    text, _ = compose_settings("x", f"#!/bin/bash\n{launch}\n")
    assert settings_of(tmp_path, text).launcher.get("gpus_per_node") == processes


LEFT_OUT = [
    ("accelerate launch --mixed_precision bf16 --config_file=c.yaml train.py --lr 1",
     "--mixed_precision bf16 --config_file=c.yaml; set accelerate_args"),
    ("srun torchrun --nnodes=2 --nproc_per_node 8 --rdzv-backend c10d --max-restarts 3 train.py",
     "--max-restarts 3; set torchrun_args"),
    ("deepspeed --num_gpus 8 train.py --deepspeed ds.json", ""),
    ("python train.py --lr 1", ""),
]  # fmt: skip


@pytest.mark.parametrize(("launch", "told"), LEFT_OUT)
def test_options_of_a_launcher_that_the_template_does_not_take_over_are_told(launch: str, told: str) -> None:
    _, notes = compose_settings("x", f"#!/bin/bash\n{launch}\n")
    found = [note for note in notes if note.startswith("left out of the launch")]
    assert found == ([f"left out of the launch: {told} in [template]"] if told else [])


def test_an_environment_that_the_template_does_not_start_is_told() -> None:
    _, notes = compose_settings("x", "#!/bin/bash\nconda run -n env torchrun train.py\n")
    assert "left out of the launch: conda run -n env; activate its environment in setup" in notes


def test_a_number_of_processes_that_the_template_does_not_know_is_told() -> None:
    for launch, option in (("mpirun -np 16 python train.py", "-np 16"), ("srun -n 8 python train.py", "-n 8"),
                           ("accelerate launch --num_processes=16 train.py", "--num_processes=16")):  # fmt: skip
        _, notes = compose_settings("x", f"#!/bin/bash\n{launch}\n")
        assert any(option in note and "gpus_per_node" in note for note in notes), notes


@pytest.mark.parametrize(
    ("nodes", "told"), [("1", False), ("1-1", False), ("16", True), ("2", True), ("1-4", False), ("2-4", True)]
)
def test_one_process_on_several_nodes_is_told(nodes: str, told: bool) -> None:
    _, notes = compose_settings("x", f"#!/bin/bash\n#SBATCH --nodes={nodes}\npython train.py\n")
    assert any("would be idle" in note for note in notes) == told


TAKEN: list[tuple[str, str, Any]] = [
    ("--array=5", "array", "1"),
    ("--array=0-9:3%2", "array", "0-9:3%2"),
    ("--array=abc", "array", "10"),
    ("--array=0", "array", "1"),
    ("--signal=USR1@90", "signal_lead_s", 90.0),
    ("--signal=USR1", "signal_lead_s", 300.0),
    ("--signal=B:USR1@70000", "signal_lead_s", 300.0),
    ("--signal=B:USR1@\u00b2", "signal_lead_s", 300.0),
]


@pytest.mark.parametrize(("directive", "name", "value"), TAKEN)
def test_what_resil_says_in_its_own_way_is_translated(tmp_path: Path, directive: str, name: str, value: Any) -> None:
    """A script's `--array=5` is one task; in resil.toml `array = "5"` would be five."""
    settings = settings_of(tmp_path, compose_settings("x", script(directive))[0])
    assert getattr(settings.submit, name) == value


HOSTILE = [
    "--job-name='my $(reboot) job'", "--job-name=", "-J ../../etc", '--comment="x\ny"', "--time=soon", "--time=",
    "--wrap='rm -rf /'", "--a.b=1", "'--x y=1'", '--"quo\\"te"=1', "--=1", "--partition", "--partition='a\"b\\\\c'",
    "--x='[table]'", "--x='\x07bell'", "--é=1", "--mail-user=\udcff", "--x={run}", "--wait", "--test-only", "---",
]  # fmt: skip


@pytest.mark.parametrize("directive", HOSTILE)
def test_a_hostile_directive_never_breaks_the_settings(tmp_path: Path, directive: str) -> None:
    text, notes = compose_settings("x", script("--ntasks=2", directive))
    assert settings_of(tmp_path, text.encode("utf-8", "replace").decode()).sbatch["ntasks"] == "2"
    assert all("\n" not in note for note in notes)


@hypothesis.settings(deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=4))
def test_whatever_a_script_says_the_settings_can_be_used(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    directory = tmp_path_factory.mktemp("x")
    settings_of(directory, compose_settings("x", script(*[f"--{line}" for line in lines], *lines))[0])


def test_a_bad_directive_is_left_out_with_a_note() -> None:
    text, notes = compose_settings("x", script("--time=soon", "--a.b=1"))
    assert "soon" not in text and "a.b" not in text
    assert any("'time' was left out: 'soon' is not a SLURM time" in note for note in notes)
    assert any("'a.b' was left out" in note for note in notes)
