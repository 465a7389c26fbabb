"""The database behind sacct for a test cluster: a private MariaDB and slurmdbd, on loopback and in its directory."""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path

from tests.lab.slurm import host
from tests.lab.slurm.configuration import Layout

PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db", "sacct", "sacctmgr")
HOW_TO_GET = "scripts/system-packages --accounting (as root)"


def slurm_conf_lines(layout: Layout, host_name: str, port: int) -> str:
    """Return what slurm.conf says about accounting; the clients' way to slurmdbd needs munge's socket once more."""
    return f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={host_name}
AccountingStoragePort={port}
AccountingStoragePass={layout.munge_socket}
AccountingStoreFlags=job_comment
"""


def mariadbd_argv(directory: Path, port: int) -> list[str]:
    """Return the server's command: small, on loopback, with no setting of the machine's own and its own tmpdir.

    Servers that share a tmpdir delete each other's temporary tables when they start.
    """
    return [
        "mariadbd", "--no-defaults", "--user=root", f"--datadir={directory}/data", f"--tmpdir={directory}/tmp",
        f"--socket={directory}/socket", f"--pid-file={directory}/pid", f"--port={port}", "--bind-address=127.0.0.1",
        f"--init-file={directory}/init.sql", "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M",
        "--innodb-flush-log-at-trx-commit=0", "--innodb-lock-wait-timeout=900", "--performance-schema=0",
    ]  # fmt: skip


def create(layout: Layout, host_name: str, database_port: int, port: int) -> None:
    """Write slurmdbd.conf and an empty database that knows slurmdbd's user; nothing is started."""
    directory = layout.root / "db"
    directory.mkdir(mode=0o700)
    (directory / "tmp").mkdir()
    password = secrets.token_hex(16)
    _private(
        directory / "init.sql",
        "CREATE DATABASE IF NOT EXISTS slurm;\n"
        f"CREATE USER IF NOT EXISTS slurm@'127.0.0.1' IDENTIFIED BY '{password}';\n"
        f"CREATE USER IF NOT EXISTS slurm@localhost IDENTIFIED BY '{password}';\n"
        "GRANT ALL ON slurm.* TO slurm@'127.0.0.1';\nGRANT ALL ON slurm.* TO slurm@localhost;\n",
    )
    _private(
        layout.root / "slurmdbd.conf",
        f"AuthType=auth/munge\nAuthInfo=socket={layout.munge_socket}\nSlurmUser=root\n"
        f"DbdHost={host_name}\nDbdAddr=127.0.0.1\nDbdPort={port}\nPidFile={layout.root}/slurmdbd.pid\n"
        f"LogFile={layout.logs}/slurmdbd.log\nDebugLevel=info\nStorageType=accounting_storage/mysql\n"
        f"StorageHost=127.0.0.1\nStoragePort={database_port}\nStorageUser=slurm\nStoragePass={password}\n"
        f"StorageLoc=slurm\n{host.plugin_dir()}",
    )
    made = subprocess.run(
        ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={directory}/data", "--skip-test-db",
         "--auth-root-authentication-method=socket", f"--tmpdir={directory}/tmp"],
        capture_output=True, text=True, env={"PATH": host.PATH}, timeout=60,
    )  # fmt: skip
    if made.returncode:
        raise RuntimeError(f"mariadb-install-db ended with {made.returncode}\n{made.stdout}{made.stderr}")


def _private(path: Path, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(text)
