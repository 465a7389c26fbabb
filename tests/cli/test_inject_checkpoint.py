"""`resil inject checkpoint`: typed by a person, on files of each layout."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from resilience.inject.checkpoint import alter
from tests.checkpoints.saves import new_store
from tests.inject.checkpoint.files import MAKERS, leaves, safetensors
from tests.lab.fakes import DOWN
from tests.lab.shell import SETTINGS, Shell


@pytest.fixture
def model(shell: Shell) -> Path:
    return safetensors(shell.directory / "m.safetensors")


def test_a_copy_is_altered_and_told_with_its_bits(shell: Shell, model: Path) -> None:
    original = model.read_bytes()
    said = shell.resil("inject", "checkpoint", "m.safetensors", "--locations", "conv1.bias", "--seed", "1", "--report")
    first, place, before, after, written, repeat = said.out.splitlines()
    assert said.code == 0 and not said.err
    assert first == "m.safetensors (safetensors): 1 of 1 attempt altered 1 number in 1 location"
    assert place.startswith("  conv1.bias [") and "float32, bit " in place
    assert before.startswith(("    before  0 ", "    before  1 "))
    assert after.startswith("    after ") and before.split("  ")[-2] != after.split("  ")[-2]
    assert (written, repeat) == ("  written: m.altered.safetensors", "  to repeat: --seed 1")
    assert model.read_bytes() == original != (shell.directory / "m.altered.safetensors").read_bytes()


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_each_layout_can_be_listed_altered_and_undone_by_typing(shell: Shell, name: str) -> None:
    path = MAKERS[name](shell.directory)
    listed = shell.resil("inject", "checkpoint", path.name, "--list")
    assert listed.code == 0 and "LOCATION" in listed.out
    words = ("inject", "checkpoint", path.name, "--attempts", "5", "--save-sequence", "flips.json", "-o", "out")
    said = shell.resil(*words)
    assert said.code == 0 and "to undo: resil inject checkpoint out --undo flips.json" in said.out
    undone = shell.resil("inject", "checkpoint", "out", "--undo", "flips.json", "--in-place")
    assert undone.out == "restored out: 5 alterations undone, SHA-256 as before\n"
    assert leaves(shell.directory / "out") == leaves(path)
    assert (
        "is the original already"
        in shell.resil("inject", "checkpoint", "out", "--undo", "flips.json", "--in-place").out
    )


def test_a_dry_run_writes_nothing_and_says_what_it_would_do(shell: Shell, model: Path) -> None:
    before = sorted(shell.directory.iterdir())
    said = shell.resil("inject", "checkpoint", "m.safetensors", "--dry-run", "--attempts", "2", "--seed", "3")
    assert "2 of 2 attempts would alter 2 numbers" in said.out and said.out.count("before") == 2
    dry = shell.resil("inject", "checkpoint", "m.safetensors", "--dry-run", "--seed", "3", "--json").json
    assert dry["dry_run"] is True and dry["altered"] == len(dry["alterations"]) == 1
    assert sorted(shell.directory.iterdir()) == before


def test_a_file_of_settings_is_read_and_options_are_over_it(shell: Shell, model: Path) -> None:
    (shell.directory / "flips.toml").write_text('attempts = 4\nlocations = ["half"]\nfirst_bit = 15\nseed = 1\n')
    words = ("inject", "checkpoint", "m.safetensors", "--config", "flips.toml", "--json", "--attempts", "3")
    found = shell.resil(*words).json
    assert (found["attempts"], found["seed"]) == (3, 1)
    assert {(one["location"], tuple(one["bits"])) for one in found["alterations"]} == {("half", (15,))}
    (shell.directory / "flips.toml").write_text("atempts = 4\n")
    said = shell.resil(*words)
    assert said.code == 2 and "unknown key 'atempts' in flips.toml" in said.err and "did you mean attempts?" in said.err


REFUSED = [
    (("--probability", "1.5"), "is no probability"),
    (("--probability", "nan"), "is not a number"),
    (("--bit-mask", "1" * 33, "--locations", "conv1"), "has 33 bits, and conv1.bias has numbers of 32 bits"),
    (("--locations", "conv"), "no location is conv or below it"),
    (("--locations", "odd"), "odd has no bits to change"),
    (("--last-bit", "20"), "there is no bit 20: brain"),
    (("--in-place", "-o", "x"), "exclude each other"),
    (("--undo", "x.json", "--attempts", "3"), "--undo decides what is done, and --attempts as well"),
    (("--sequence", "x.json", "--seed", "3"), "--sequence decides what is done, and --seed as well"),
    (("--sequence", "x.json"), "there is no sequence"),
    (("--map", "a=b"), "--map is for replays"),
    (("--config", "x.toml"), "there is no file x.toml"),
    (("-o", "no/where"), "there is no directory"),
    (("-o", "m.safetensors"), "exists already"),
    (("-o", "../project/./m.safetensors"), "exists already"),
    (("--save-sequence", "m.safetensors"), "exists already"),
    (("--burst", "100", "--locations", "half"), "a burst of 100 bits is more than the 15"),
]


@pytest.mark.parametrize(("words", "told"), REFUSED)
def test_a_refusal_says_what_to_try_and_leaves_no_file(
    shell: Shell, model: Path, words: tuple[str, ...], told: str
) -> None:
    before = {path: path.stat().st_mtime_ns for path in shell.directory.rglob("*")}
    said = shell.resil("inject", "checkpoint", "m.safetensors", *words)
    assert said.code == 2 and told in said.err and "\n  try: " in said.err, said.err
    assert {path: path.stat().st_mtime_ns for path in shell.directory.rglob("*")} == before


def test_a_checkpoint_of_a_live_run_is_not_altered_in_place(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shell.resil("submit").code == 0
    store = new_store(shell.directory / "ckpt")
    (store.own / "store.json").write_text(json.dumps({"format": 1, "run": "gpt", "id": "x"}))
    (store.path / "step-00000010").mkdir()
    path = safetensors(store.path / "step-00000010" / "m.safetensors")
    raw = path.read_bytes()
    words = ("inject", "checkpoint", str(path), "--in-place", "--save-sequence", "undo.json")
    shell.fake.trouble = DOWN
    said = shell.resil(*words)
    assert said.code == 1 and "whether the run gpt trains now is unknown" in said.err
    shell.fake.trouble = None
    said = shell.resil(*words)
    assert said.code == 1 and "is in use: the run gpt has the live job 101" in said.err
    monkeypatch.chdir(shell.directory.parent)  # the settings are found above the checkpoint
    assert "has the live job 101" in shell.resil(*words).err
    (shell.directory / "resil.toml").rename(shell.directory / "away.toml")
    assert "no settings here, or above it, lead to its run directory" in shell.resil(*words).err
    monkeypatch.chdir(shell.directory)
    assert path.read_bytes() == raw and not (shell.directory / "undo.json").exists()
    assert shell.resil("inject", "checkpoint", str(path), "-o", "copy.safetensors").code == 0


def test_a_replay_without_a_map_names_the_location_that_it_lacks(shell: Shell, model: Path) -> None:
    other = safetensors(shell.directory / "other.safetensors", {"net.bias": ("F32", (4,))})
    shell.resil(
        "inject", "checkpoint", model.name, "--locations", "conv1.bias", "--save-sequence", "s.json", "--seed", "1"
    )
    said = shell.resil("inject", "checkpoint", other.name, "--sequence", "s.json")
    assert said.code == 2 and "no location is conv1.bias" in said.err and "--map conv1.bias=" in said.err
    said = shell.resil("inject", "checkpoint", other.name, "--sequence", "s.json", "--map", "conv1=net", "--json")
    assert said.json["altered"] == 1 and said.json["seed"] is None


def test_a_dry_run_of_an_undo_refuses_what_the_undo_would_refuse(shell: Shell) -> None:
    path = MAKERS["npz"](shell.directory)
    for name in ("one", "other"):
        words = ("--seed", str(len(name)), "--save-sequence", f"{name}.json", "-o", name)
        assert shell.resil("inject", "checkpoint", path.name, *words).code == 0
    wrong = shell.resil("inject", "checkpoint", "other", "--undo", "one.json", "--in-place", "--dry-run")
    assert wrong.code == 1 and "is not what one.json altered" in wrong.err
    assert "would restore" in shell.resil("inject", "checkpoint", "one", "--undo", "one.json", "--dry-run").out


@pytest.mark.parametrize("where", ["store", "run directory"])
def test_a_checkpoint_that_a_framework_saves_for_a_live_run_is_in_use_too(shell: Shell, where: str) -> None:
    """Its directory is known from the settings alone: nothing is sealed there yet."""
    shell.settings(SETTINGS + '[checkpoints]\npath = "ckpt/{run}"\npattern = "iter_{step:07d}"\n')
    assert shell.resil("submit").code == 0
    directory = (shell.directory / "ckpt" / "gpt" if where == "store" else shell.run_dir) / "iter_0000010"
    directory.mkdir(parents=True)
    path = safetensors(directory / "m.safetensors")
    other = safetensors(shell.directory / "ckpt" / "m.safetensors") if where == "store" else None
    words = ("--in-place", "--save-sequence", "undo.json")
    said = shell.resil("inject", "checkpoint", str(path), *words)
    assert said.code == 1 and "is in use: the run gpt has the live job 101" in said.err
    assert not (shell.directory / "undo.json").exists()
    if other is not None:
        assert shell.resil("inject", "checkpoint", str(other), *words).code == 0


def test_a_checkpoint_of_a_run_that_has_ended_may_be_altered_in_place(shell: Shell) -> None:
    shell.settings(SETTINGS + '[checkpoints]\npath = "ckpt"\n')
    (shell.directory / "ckpt").mkdir()
    path = safetensors(shell.directory / "ckpt" / "m.safetensors")
    assert shell.resil("submit").code == 0
    shell.fake.cancel([job.id for job in shell.fake.records])
    said = shell.resil("inject", "checkpoint", str(path), "--in-place")
    assert said.code == 0, said.err


def test_sigterm_removes_the_copy(shell: Shell, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(*_: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(alter, "_patch", end)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with pytest.raises(SystemExit) as told:
            shell.resil("inject", "checkpoint", model.name)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert told.value.code == 143 and not list(shell.directory.glob(".m.*")) and not list(shell.directory.glob("*alt*"))


def test_what_cannot_be_printed_is_no_fault_of_the_checkpoint(shell: Shell, model: Path) -> None:
    words = [sys.executable, "-m", "resilience", "inject", "checkpoint", model.name, "-o", "out"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 1 and "cannot write to standard output" in done.stderr
    assert (shell.directory / "out").exists()


def test_an_empty_mask_is_no_mask_that_was_left_out(shell: Shell, model: Path) -> None:
    said = shell.resil("inject", "checkpoint", model.name, "--bit-mask", "")
    assert said.code == 2 and "--bit-mask has an empty value" in said.err
