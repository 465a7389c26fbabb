"""`resil config check` refuses what no submit could use, beyond the types."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.doctor.settings import act_warnings, check_settings, find_errors, submit_warnings
from resilience.errors import ProbeError, ResilError
from resilience.runs.project import Project
from resilience.settings.load import load
from resilience.system.stuck import StuckMemory
from tests.lab.fakes import make_system
from tests.lab.hung import hung_directory as hung_disk


def check(directory: Path, text: str) -> None:
    (directory / "resil.toml").write_text(text)
    system = make_system(directory)
    check_settings(Project(system, load(system)))


@pytest.mark.parametrize(
    "text",
    ["", '[run]\nname = "gpt"\ntemplate = "torchrun"\n', '[scheduler]\nname = "local"\n', "[submit]\narray = 10\n",
     '[submit]\nsignal = "sigusr2"\nsignal_lead_s = "18h"\n', '[run]\nswitch_owners = "group"\n',
     "[sbatch]\ntime = 90\n",
     '[watch]\nchecks = ["fs", "big"]\n[watch.big]\nkind = "fs"\npaths = ["/tmp"]\nwarn_free_bytes = "1GiB"\n',
     '[alert]\nchannels = ["list"]\nescalation = ["1h: console"]\n[channel.list]\nkind = "email"\nto = "a@b.cd"\n'],
)  # fmt: skip
def test_good_settings_are_good(tmp_path: Path, text: str) -> None:
    check(tmp_path, text)


BAD = {
    "a watchdog that is none": ('[watch]\nchecks = ["sf"]\n', "there is no watchdog 'sf'", "did you mean fs?"),
    "a kind that is none": ('[watch.x]\nkind = "inode"\n', "'inode'", "did you mean inodes?"),
    "a watchdog's key": ("[watch.fs]\nwarn_percnt = 3\n", "'warn_percnt' in [watch.fs]", "did you mean warn_percent?"),
    "a watchdog's threshold": ('[watch.fs]\nwarn_percent = "140%"\n', "warn_percent", ""),
    "a regular expression": ('[watch.log]\nprogress_regex = "step ("\n', "progress_regex", ""),
    "a channel that is none": ('[alert]\nchannels = ["slcak"]\n', "'slcak'", "did you mean slack?"),
    "a channel's key": ('[channel.email]\ntoo = "a@b.example"\n', "'too' in [channel.email]", "to"),
    "nobody to write to": ('[channel.email]\nhost = "mail"\n', "recipient", "to ="),
    "an escalation": ('[alert]\nchannels = ["console"]\nescalation = ["soon: console"]\n', "soon", "1h"),
    "quiet hours": ('[alert]\nquiet_hours = "night"\n', "night", "22:00-07:00"),
    "a secret in the file": ('[channel.slack]\nwebhook = "https://hooks.slack.com/T/B/x"\n', "webhook", "webhook_file"),
    "name": ('[run]\nname = "my run"\n', "cannot be a run's name", "letters"),
    "template": ('[run]\ntemplate = "torchrnu"\n', "no template 'torchrnu'", "torchrun"),
    "scheduler": ('[scheduler]\nname = "slrum"\n', "'slrum'", "did you mean slurm?"),
    "policy": ('[run]\nswitch_owners = "everybody"\n', "not an owner policy", "owner, group, any"),
    "a group that is none": ('[run]\ngroup = "no-such-group"\n', "no group 'no-such-group'", "id -Gn"),
    "long lead": ('[submit]\nsignal_lead_s = "1d"\n', "above 65535 s", "300"),
    "signal": ('[submit]\nsignal = "US R1"\n', "is not a signal", "B:USR1@300"),
    "signal with a lead": ('[submit]\nsignal = "B:USR1@300"\n', "is not a signal", ""),
    "array": ('[submit]\narray = "ten"\n', "'ten' is not an array", "--array 10"),
    "time": ('[sbatch]\ntime = "soon"\n', "not a SLURM time", "20:00:00"),
    "a name no variable can have": ('[environment]\n"A B" = "x"\n', "'A B' cannot be the name of an environment", ""),
    "a variable of resil": ('[environment]\nRESIL_RUN = "x"\n', "RESIL_RUN is reserved", ""),
    "a line break for sbatch": ('[sbatch]\nmail-user = "a\\nb"\n', "mail-user", ""),
    "a template's name": (f'[run]\ntemplate = "{"x" * 5000}"\n', "there is no template", "there are"),
    "ticks without a pause": ("[cron]\ntick_s = 0\n", "tick_s = 0 in [cron]", "a duration"),
    "pulses without a pause": ("[cron]\npulse_s = 0\n", "pulse_s = 0 in [cron]", "a duration"),
    "fewer outputs than none": ("[cron]\nkeep_runs = -1\n", "keep_runs = -1 in [cron]", "20"),
    "a cron directory": ('[cron]\nfolder = "a\\u0000b"\n', "folder", ""),
    "array among sbatch's": ("[sbatch]\narray = 10\n", "cannot be set in [sbatch]", "[submit]"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_setting_that_no_submit_could_use_is_refused_with_exit_code_2(tmp_path: Path, case: str) -> None:
    text, message, hint = BAD[case]
    with pytest.raises(ResilError) as caught:
        check(tmp_path, text)
    assert message in caught.value.message and hint in caught.value.hint
    assert caught.value.exit_code == 2


EVERY_ERROR = """
[run]
name = "my run"
template = "torchrnu"
stat_dir = "/x"
[sbach]
time = 3
[scheduler]
name = "slrm"
[watch.fs]
warn_percnt = 3
crit_percent = "140x"
[watch.log]
progress_regex = "step ("
[alert]
channels = ["slcak", "emial"]
escalation = ["soon: console", "1h: consloe"]
quiet_hours = "night"
[channel.email]
too = "a@b.example"
[cron]
directory = "cron"
backend = "crontb"
mode = "puls"
catch_up = "twice"
digest_at = "25:00"
tick_s = "soon"
"""


def test_every_error_of_a_file_is_found_at_once(tmp_path: Path) -> None:
    (tmp_path / "resil.toml").write_text(EVERY_ERROR)
    _, errors = find_errors(make_system(tmp_path, environ={"RESIL_SUBMIT__SIGNAL_LEAD_S": "1d"}))
    found = [f"{error.message}; {error.hint}" for error in errors]
    for part in (
        "cannot be a run's name", "no template 'torchrnu'", "'stat_dir'", "'sbach'", "no scheduler 'slrm'",
        "did you mean slurm?", "'warn_percnt'", "crit_percent = '140x'", "progress_regex", "'slcak'", "'emial'",
        "'soon'", "'consloe'", "'night'", "'too'", "'directory'", "did you mean folder?", "'crontb'",
        "did you mean crontab?",
        "'puls'", "did you mean pulse?", "'twice'", "digest_at", "tick_s", "above 65535 s",
    ):  # fmt: skip
        assert any(part in text for text in found), part
    assert len(found) == len(set(found)) == 22
    assert all(error.exit_code == 2 for error in errors)


def test_values_outside_a_table_and_given_twice_are_found_with_the_others(tmp_path: Path) -> None:
    (tmp_path / "resil.toml").write_text(
        'name = "gpt"\n[run]\nstate_dir = "a"\nstate-dir = "b"\n[submit]\narray = []\n'
    )
    _, errors = find_errors(make_system(tmp_path))
    assert len(errors) == 3


def test_a_contradiction_of_two_tables_is_found(tmp_path: Path) -> None:
    (tmp_path / "resil.toml").write_text('[run]\nswitch_owners = "group"\n[guard]\nswitch_owners = "owner"\n')
    (error,) = find_errors(make_system(tmp_path))[1]
    assert "switch_owners is 'group' in [run] and 'owner' in [guard]" in error.message


def test_a_state_directory_that_hangs_is_a_warning_within_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StuckMemory, "of", classmethod(lambda cls, system: cls([tmp_path / "stuck"])))
    with hung_disk(tmp_path / "dead") as dead:
        text = f'[run]\nstate_dir = "{dead}"\ncommand = "python train.py"\n[watch]\ndeadline_s = 1\n'
        (tmp_path / "resil.toml").write_text(text)
        system = make_system(tmp_path)
        (found,) = submit_warnings(Project(system, load(system)))
    assert found.message.startswith(f"resil submit could not be checked: {dead}/")
    assert found.message.endswith("no answer within 1 s")


def test_a_settings_file_on_a_disk_that_hangs_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StuckMemory, "of", classmethod(lambda cls, system: cls([tmp_path / "stuck"])))
    monkeypatch.setattr("resilience.runs.open_project.START_S", 1.0)
    with hung_disk(tmp_path / "dead") as dead, pytest.raises(ProbeError, match="no answer within 1 s"):
        find_errors(make_system(tmp_path), dead / "resil.toml")


def test_what_act_of_alerts_will_not_do_is_a_warning(tmp_path: Path) -> None:
    def said(text: str) -> list[str]:
        (tmp_path / "resil.toml").write_text(text)
        system = make_system(tmp_path)
        return [found.message for found in act_warnings(Project(system, load(system)))]

    acting = '[alert]\nchannels = ["console"]\nact = ["6h: hold"]\n'
    assert said('[alert]\nchannels = ["console"]\n') == []
    assert said(acting) == [
        "[alert] act ignores the incidents of fs, inodes: they are about no run",
        "[alert] act only names what would be done",
    ]
    assert said(acting + '[act]\nenabled = true\n[watch]\nchecks = ["job"]\n') == []


@pytest.mark.parametrize(
    ("alert", "error"),
    [
        ('channels = ["console"]\nact = ["6h: kill"]', "'6h: kill' in [alert] act is neither hold nor cancel"),
        ('act = ["6h: hold"]', "[alert] has act but no channels"),
    ],
)
def test_a_deed_that_cannot_be_done_is_found(tmp_path: Path, alert: str, error: str) -> None:
    (tmp_path / "resil.toml").write_text(f"[alert]\n{alert}\n")
    (found,) = find_errors(make_system(tmp_path))[1]
    assert found.message == error
