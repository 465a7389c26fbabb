"""Numbers and names that no cluster can mean are refused where they are read, before anything grows."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.conftest import REPOSITORY
from tests.lab.shell import SETTINGS, Shell

LONG = "x" * 10_000
REFUSED = [
    (("submit", "-n", "--chain", "100000000"), "more than 1000 jobs one by one"),
    (("submit", "-n", "--chain", "9" * 30), "more than 1000 jobs one by one"),
    (("submit", "-n", "--chain", "0"), "would queue nothing"),
    (("submit", "-n", "--chain", "-3"), "would queue nothing"),
    (("submit", "-n", "--array", "0-99999999"), "SLURM's indices end at 4000000"),
    (("submit", "-n", "--array", "99999999"), "SLURM's indices end at 4000000"),
    (("submit", "-n", "--array", "1-10%99999999999"), "more than the 4000001 tasks"),
    (("submit", "-n", "--array", "0"), "would queue nothing"),
    (("submit", "-n", "--time", "35791395"), "longer than SLURM can count"),
    (("submit", "-n", "--time", "999999999-0"), "longer than SLURM can count"),
    (("submit", "-n", "--", f"--job-name={LONG}"), "SLURM refuses more than 1024"),
    (("submit", "-n", "--run", LONG), "cannot be a run's name"),
    (("submit", "-n", "--run", "a\nb"), "cannot be a run's name"),
    (("adopt", "12", "--run", "a b"), "there is no job"),
    (("status", LONG), "there is no run"),
    (("kill", LONG), "there is no run"),
    (("status", "--watch", "--interval", "nan"), "'nan' is not a number."),
    (("status", "--watch", "--interval", "inf"), "--interval"),
    (("status", "--watch", "--interval", "1e300"), "--interval"),
    (("status", "--watch", "--interval", "0"), "--interval"),
    (("status", "--watch", "--interval", "-5"), "--interval"),
    (("watch", "fs", "--every", "0s"), "must be at least"),
    (("watch", "fs", "--every", ""), "--every has an empty value"),
    (("watch", "fs", "--deadline="), "--deadline has an empty value"),
    (("watch", "--all", "--deadline", ""), "--deadline has an empty value"),
    (("cron", "add", "a", "--hourly", "--timeout", "", "--", "true"), "--timeout has an empty value"),
    (("adopt", "", "-n"), "'' is neither a job id nor a script"),
    (("logs", "--lines", "nan"), "'nan' is not a whole number."),
    (("submit", "-n", "--chain", "inf"), "'inf' is not a whole number."),
    (("status", "--interval", "soon"), "'soon' is not a number."),
    (("status", "--watch", "--interval", "1_0"), "'1_0' is not a number."),
    (("logs", "--lines", "\u0663"), "'\u0663' is not a whole number."),
    (("submit", "-n", "--chain", "1_0"), "'1_0' is not a whole number."),
    (("cron", "history", "--last", "1_0"), "'1_0' is not a whole number."),
    (("watch", "fs", "--top", "--limit", "1_0"), "'1_0' is not a whole number."),
    (("watch", "fs", "--every", "1m", "--count", "1_0"), "'1_0' is not a whole number."),
    (("watch", "fs", "--every", "1_0"), "is not a duration"),
    (("watch", "fs", "--deadline", "\u0663"), "is not a duration"),
    (("submit", "-n", "--begin", "nan"), "--begin=nan is not a time"),
    (("submit", "-n", "--begin", "\u0663\u0663:00"), "is not a time"),
    (("submit", "-n", "--signal", "nan"), "'nan' is not a signal"),
    (("submit", "-n", "--", "--nodes=-3"), "--nodes=-3 is not a number of nodes"),
    (("watch", "fs", "--every", "99999999999d"), "longer than 100 years"),
    (("alert", "silence", "--check", "fs", "--for", "99999999999d"), "longer than 100 years"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_what_no_cluster_can_mean_is_refused_in_words(shell: Shell, words: tuple[str, ...], message: str) -> None:
    said = shell.resil(*words)
    assert said.code in (1, 2, 3) and message in said.err, said.err[:400]
    assert len(said.err) < 3000 and "internal error" not in said.err
    assert not shell.run_dir.exists()


RUN = SETTINGS.partition("[sbatch]")[0]
SETTINGS_REFUSED = [
    ("[attempt]", "beat_s", "1e300"),
    ("[attempt]", "beat_s", "0"),
    ("[attempt]", "previous_wait_s", '"99999999999d"'),
    ("[scheduler]", "deadline_s", "0"),
    ("[scheduler]", "deadline_s", "inf"),
    ("[submit]", "signal_lead_s", "1e300"),
    ("[submit]", "signal_lead_s", "nan"),
    ("[submit]", "array", '"99999999"'),
    ("[submit]", "signal", '"nan"'),
    ("[sbatch]", "nodes", "-3"),
    ("[sbatch]", "nodes", "nan"),
    ("[sbatch]", "ntasks", "1.5"),
    ("[sbatch]", "begin", '"nan"'),
    ("[sbatch]", "comment", '"a\\u0000b"'),
    ("[alert]", "flap_count", "-1"),
    ("[alert]", "flap_count", "10000000000"),
    ("[run]", "group", '"a\\u0000b"'),
    ("[run]", "setup", '["a\\u001b"]'),
    ("[run]", "state_dir", f'"{"x/" * 2500}"'),
    ("[run]", "state_dir", f'"{"x" * 256}"'),
    ("[cron]", "ping_url_file", '"a\\u0000b"'),
    ("[cron]", "keep_runs", "-1"),
    ("[guard]", "switch_owners", '"a\\u0000b"'),
    ("[environment]", "A", '"a\\u0000b"'),
]


@pytest.mark.parametrize(("table", "key", "value"), SETTINGS_REFUSED)
def test_the_same_holds_for_settings(shell: Shell, table: str, key: str, value: str) -> None:
    shell.settings(f"{RUN}{table.replace('[run]', '')}\n{key} = {value}\n")
    for words in (("config", "check"), ("submit", "-n")):
        said = shell.resil(*words)
        assert said.code == 2 and "error:" in said.err and key in said.err and len(said.err) < 3000


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[sbatch]\ntiem = 5", "sbatch has no option --tiem, unless a plugin of this site adds it"),
        ("[template]\ngpus_per_nod = 5", "template torchrun has no variable 'gpus_per_nod'"),
    ],
)
def test_a_misspelt_option_is_a_warning_with_the_nearest(shell: Shell, line: str, message: str) -> None:
    shell.settings(f'{RUN}template = "torchrun"\n{line}\n')
    for words in (("config", "check"), ("submit", "-n")):
        said = shell.resil(*words)
        assert said.code == 0 and message in said.err and "did you mean" in said.err


@pytest.mark.parametrize(
    "words", [("--chain", "100000000"), ("--array", "0-2000000,1-2000000"), ("--array", "4000000")]
)
def test_a_refusal_takes_little_memory(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "resil.toml").write_text(SETTINGS)
    environ = {"HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY), "RESIL_SCHEDULER__NAME": "local", "PATH": "/bin"}
    bound = 300 * 2**20
    said = subprocess.run(
        [sys.executable, "-m", "resilience", "submit", "-n", *words],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (bound, bound)),
    )
    assert said.returncode == 2 and said.stderr.startswith("resil: error:"), said.stderr
