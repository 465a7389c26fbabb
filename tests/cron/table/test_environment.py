"""What runs sees what is written down, and no secret that nobody meant it to see."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from resilience.cron.records import Entry, Kind
from resilience.cron.table.environment import environment_of, lasting_variables, secrets_of, short_path

LOGIN = {
    "HOME": "/somewhere/else",
    "USER": "somebody",
    "PATH": "/home/ada/bin:/opt/conda/bin",
    "LANG": "de_DE.UTF-8",
    "XDG_CONFIG_HOME": "/home/ada/.cfg",
    "SLURM_CONF": "/etc/slurm/slurm.conf",
    "SLURM_JWT": "jwt-secret",
    "SLURM_JOB_ID": "88",
    "SLURM_NTASKS": "4",
    "RESIL_CHECKS__FS__WARN_PERCENT": "80",
    "RESIL_CONFIG": "/another/resil.toml",
    "SLACK_BOT_TOKEN": "xoxb-1",
    "SMTP_PASSWORD": "hunter22",
    "AWS_SECRET_ACCESS_KEY": "aws",
    "LD_PRELOAD": "/tmp/evil.so",
    "BASH_FUNC_ls%%": "() { evil; }",
    "PS1": "$ ",
    "EDITOR": "vi",
}
NOTHING: Mapping[str, str] = MappingProxyType({})


def see(environ: Mapping[str, str], own: Mapping[str, str] = NOTHING, keep: tuple[str, ...] = ()) -> dict[str, str]:
    """What the run of an entry sees."""
    entry = Entry(
        name="cron.hourly/backup", place="cron/cron.hourly/backup", schedule="@hourly", kind=Kind.RUN, argv=("x",),
        environment=own,
    )  # fmt: skip
    return environment_of(
        entry, 1_800_000_000, environ=environ, home=Path("/home/ada"), user="ada", config=Path("/p/resil.toml"),
        python="/v/bin/python", resil_directory="/v/bin", tool_directories=("/opt/slurm/bin", "/usr/bin"), keep=keep,
    )  # fmt: skip


def test_with_nothing_around_it_is_small_and_whole() -> None:
    assert see({}) == {
        "HOME": "/home/ada",
        "LOGNAME": "ada",
        "USER": "ada",
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "PATH": "/v/bin:/opt/slurm/bin:/usr/local/bin:/usr/bin:/bin",
        "RESIL_CONFIG": "/p/resil.toml",
        "RESIL_PYTHON": "/v/bin/python",
        "RESIL_CRON_ENTRY": "cron.hourly/backup",
        "RESIL_CRON_SLOT": "1800000000",
    }


def test_a_slurm_of_the_system_does_not_come_before_the_one_that_the_person_uses() -> None:
    """`pip install --user` runs the system's Python, beside which another SLURM may lie."""
    system = "/usr/local/bin:/usr/bin:/bin"
    assert short_path(("/usr/bin", "/opt/slurm/bin")) == f"/opt/slurm/bin:{system}"
    assert short_path(("/usr/bin", "")) == system


def test_only_documented_variables_of_a_login_shell_pass() -> None:
    added = set(see(LOGIN)) - set(see({}))
    assert added == {"XDG_CONFIG_HOME", "SLURM_CONF", "SLURM_JWT", "RESIL_CHECKS__FS__WARN_PERCENT"}
    assert see(LOGIN)["LANG"] == "de_DE.UTF-8"
    assert see(LOGIN)["HOME"] == "/home/ada"
    assert see(LOGIN)["RESIL_CONFIG"] == "/p/resil.toml"


def test_secrets_of_channels_pass_only_when_settings_name_them() -> None:
    assert "SMTP_PASSWORD" not in see(LOGIN)
    assert see(LOGIN, keep=("SMTP_PASSWORD", "NOT_SET"))["SMTP_PASSWORD"] == "hunter22"
    assert "NOT_SET" not in see(LOGIN, keep=("NOT_SET",))


def test_the_crontab_s_own_lines_win_but_not_over_who_it_is() -> None:
    own = {"PATH": "/only", "SHELL": "/bin/bash", "LANG": "C", "FOO": "a=b c", "HOME": "/elsewhere"}
    seen = see(LOGIN, own | {"LOGNAME": "root", "USER": "root", "RESIL_CRON_SLOT": "1"})
    assert {name: seen[name] for name in own} == own
    assert (seen["LOGNAME"], seen["USER"], seen["RESIL_CRON_SLOT"]) == ("ada", "ada", "1800000000")


def test_no_name_or_value_that_the_kernel_would_refuse_comes_through() -> None:
    seen = see(LOGIN, {"A=B": "1", "": "2", "NUL": "a\0b", "GOOD": ""})
    assert seen["GOOD"] == "" and not {"A=B", "", "NUL"} & set(seen)


def test_variables_named_like_secrets_are_secrets() -> None:
    environment = {
        "SLURM_JWT": "jwt", "MY_TOKEN": "t", "DB_PASSWORD": "p", "RESIL_CRON__PING_URL": "https://hc/uuid",
        "TOKEN_FILE": "/etc/token", "PASSWORD_VARIABLE": "X", "PATH": "/bin", "EMPTY_SECRET": "", "HOOK": "named",
    }  # fmt: skip
    assert set(secrets_of(environment, keep=("HOOK",))) == {"jwt", "t", "p", "https://hc/uuid", "named"}


def test_what_is_written_into_tables_is_where_jobs_go_and_how_alerts_leave_and_nothing_else() -> None:
    kept = lasting_variables(
        {
            "HOME": "/home/alice", "SBATCH_ACCOUNT": "lab", "SBATCH_ARRAY_INX": "1-5", "SLURM_CONF": "/etc/slurm.conf",
            "SLURM_JWT": "runs out", "SLURM_JOB_ID": "7", "https_proxy": "http://proxy:3128", "AWS_SECRET": "x",
            "http_proxy": "http://me:secret@proxy:3128", "RESIL_CRON__TICK_S": "5", "RESIL_RUN_DIR": "/p/.resil/gpt",
            "RESIL_CONFIG": "/other/resil.toml", "XDG_CONFIG_HOME": "/home/alice/.config", "TZ": "",
            "XDG_RUNTIME_DIR": "/run/user/1001",
        }
    )  # fmt: skip
    assert set(kept) == {"SBATCH_ACCOUNT", "SLURM_CONF", "https_proxy", "RESIL_CRON__TICK_S", "XDG_CONFIG_HOME"}
