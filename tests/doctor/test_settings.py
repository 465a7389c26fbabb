"""`resil config check` refuses what no submit could use, beyond the types."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.doctor.doctor import check_settings
from resilience.errors import ResilError
from resilience.runs.project import Project
from resilience.settings.load import load
from tests.lab.fakes import make_system


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
    "long lead": ('[submit]\nsignal_lead_s = "1d"\n', "above 65535 s", "300"),
    "signal": ('[submit]\nsignal = "US R1"\n', "is not a signal", "B:USR1@300"),
    "signal with a lead": ('[submit]\nsignal = "B:USR1@300"\n', "is not a signal", ""),
    "array": ('[submit]\narray = "ten"\n', "'ten' is not an array", "--array 10"),
    "time": ('[sbatch]\ntime = "soon"\n', "not a SLURM time", "20:00:00"),
    "array among sbatch's": ("[sbatch]\narray = 10\n", "cannot be set in [sbatch]", "[submit]"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_setting_that_no_submit_could_use_is_refused_with_exit_code_2(tmp_path: Path, case: str) -> None:
    text, message, hint = BAD[case]
    with pytest.raises(ResilError) as caught:
        check(tmp_path, text)
    assert message in caught.value.message and hint in caught.value.hint
    assert caught.value.exit_code == 2
