"""The set of the demo's night: a small disk, an environment without the person's own settings, a resil.toml."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from resilience.demo.receivers import Inbox
from resilience.errors import ResilError
from resilience.quantities import quote_toml
from resilience.settings.load import FILE_NAME
from resilience.system.files import make_folder, write_atomic
from resilience.system.world import World

RUN = "night"
DISK_BYTES = 4 * 2**20
TRAINING = Path(__file__).with_name("_training.py")


@dataclass(frozen=True, slots=True)
class Disk:
    """A small disk: a tmpfs where one may be mounted, else a quota that a command of the site's reports."""

    path: Path
    quota: Path | None

    @property
    def what(self) -> str:
        return "a tmpfs of 4 MiB" if self.quota is None else "as the quota command of this site says"

    def fill(self) -> None:
        """All but a little."""
        if self.quota is None:
            (self.path / "checkpoint.pt").write_bytes(bytes(DISK_BYTES - 2**16))
        else:
            self.quota.write_text(f"used {DISK_BYTES - 2**16} of {DISK_BYTES}\n", encoding="utf-8")

    def free(self) -> None:
        """Everything."""
        if self.quota is None:
            (self.path / "checkpoint.pt").unlink()
        else:
            self.quota.write_text(f"used 0 of {DISK_BYTES}\n", encoding="utf-8")

    def settings(self) -> str:
        """[watch.fs] for it."""
        lines = ["[watch.fs]", f"paths = [{quote_toml(str(self.path))}]", "crit_runway_s = 0", "warn_runway_s = 0"]
        if self.quota is not None:
            lines += [f'command = ["cat", {quote_toml(str(self.quota))}]']
            lines += ['used_regex = "used (\\\\d+)"', 'limit_regex = "of (\\\\d+)"']
        return "\n".join(lines)


@contextmanager
def small_disk(world: World, folder: Path) -> Iterator[Disk]:
    path = folder / "disk"
    make_folder(path, mode=0o755)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "resil-demo", str(path)]
    try:
        is_mounted = world.runner.run(mount, timeout_s=5).returncode == 0
    except ResilError:
        is_mounted = False
    disk = Disk(path, None if is_mounted else folder / "quota.txt")
    disk_is_ours = disk.quota is None
    try:
        if not disk_is_ours:
            disk.free()
        yield disk
    finally:
        if disk_is_ours:
            world.runner.run(["umount", "-l", str(path)], timeout_s=5)


def own_world(world: World, folder: Path) -> World:
    """This machine without the person's own settings, and with a queue of its own."""
    environ = {k: v for k, v in world.environ.items() if not k.startswith(("RESIL_", "SLURM_", "SBATCH_"))}
    environ["RESIL_LOCAL_SPOOL"] = str(folder / "spool")
    environ["RESIL_LOCAL_IDLE_S"] = "2"
    environ["RESIL_CONFIG"] = str(folder / FILE_NAME)
    return replace(world, cwd=folder, environ=environ)


def write_settings(folder: Path, inbox: Inbox, disk: Disk) -> None:
    training = [sys.executable, "-u", str(TRAINING), str(folder / "checkpoints"), "--steps", "150"]
    command = shlex.join(
        [*training, "--save-every", "40", "--pace", "0.03", "--faults", json.dumps({"1": ["hang", 30]})]
    )
    secret = folder / "slack-webhook"
    write_atomic(secret, inbox.slack_url + "\n", mode=0o600)
    write_atomic(
        folder / FILE_NAME,
        f"""\
[run]
name = "{RUN}"
command = {quote_toml(command)}
[submit]
signal_lead_s = 60
[scheduler]
name = "local"
[attempt]
beat_s = 1
[guard]
beat_s = 0.2
[sbatch]
time = "5"
{disk.settings()}
[watch.log]
timeout_s = 4
[watch.job]
min_queued = 0
[alert]
channels = ["email", "slack"]
group_s = 0
[channel.email]
to = ["you@example.org"]
host = "127.0.0.1"
port = {inbox.smtp_port}
[channel.slack]
webhook_file = {quote_toml(str(secret))}
""",
        mode=0o644,
    )
