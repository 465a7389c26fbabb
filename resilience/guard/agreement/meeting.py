"""How ranks find rank 0: a file with its address and a token, readable by the run's owner only.

Rank 0 alone writes it, from a thread of its own: a file system that hangs or refuses costs the decisions and never
the training.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import tempfile
import threading
from pathlib import Path

from resilience import layout
from resilience.base.files import read_own, replace_file
from resilience.guard.agreement.alone import Agreement
from resilience.guard.agreement.frames import random_word
from resilience.guard.agreement.interface import is_ours, listening_host
from resilience.guard.agreement.network import NetworkAgreement
from resilience.guard.agreement.stale import owner_fields, remove_stale
from resilience.guard.agreement.wire import Address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from resilience.guard.agreement.heard import Heard
    from resilience.guard.gate import Gate
    from resilience.guard.place import Place
    from resilience.guard.recorder import Recorder
    from resilience.guard.settings import GuardSettings

RETRY_S = 5.0
"""How often the file is written again when it could not be: a file system may recover."""
REMOVE_S = 2.0
ABSENT_S = 60.0
"""After how long people are told that a rank is missing."""


def meet(
    gate: Gate,
    hear: Callable[[Heard], None],
    place: Place,
    settings: GuardSettings,
    locate: Callable[[], Address | None] | None,
    recorder: Recorder,
    step_s: Callable[[], float] = float,
) -> Agreement:
    """The agreement over TCP for this rank. `locate` asks a helper of the node; without it the file is read here.

    `step_s` tells how long a step takes here, in seconds.
    """
    if not place.run_dir and are_on_several_nodes(place, os.environ.get("MASTER_ADDR", "")):
        recorder.warn(
            f"rank {place.rank}: the ranks are on several nodes and there is no run directory to meet in "
            "(RESIL_RUN_DIR): no rank can ask the others to save or to stop",
            key="meeting",
        )
        return Agreement(gate)
    file = AddressFile(address_file(place), place, recorder)

    def listen() -> tuple[socket.socket, str]:
        listener = open_listener(place, settings.interface, recorder)
        allow_descriptors(place.world + 256)
        token = random_word()
        host, port = listener.getsockname()[:2]
        file.publish(Address(host, port, token))
        return listener, token

    return NetworkAgreement(
        gate,
        place.rank,
        place.world,
        locate=locate or file.read,
        listen=listen if place.is_first else None,
        withdraw=file.withdraw if place.is_first else None,
        hear=hear,
        round_s=settings.round_s,
        lost_s=settings.agreement_timeout_s,
        skew_steps=settings.skew_steps,
        by_time=settings.decide_by == "time",
        on_leader_lost=settings.on_leader_lost,
        absent_s=ABSENT_S,
        step_s=step_s,
    )


class AddressFile:
    """The file that says where rank 0 listens."""

    def __init__(self, path: Path, place: Place, recorder: Recorder) -> None:
        self._path = path
        self._place = place
        self._recorder = recorder
        self._over = threading.Event()
        self._written = ""
        self._thread: threading.Thread | None = None

    def read(self) -> Address | None:
        """See `read_address`."""
        return read_address(self._path)

    def publish(self, address: Address) -> None:
        """Write it, as soon as that is possible, without waiting for it; it stays until `withdraw`."""
        fields: dict[str, str | int] = {"host": address.host, "port": address.port, "token": address.token}
        text = json.dumps({**fields, **owner_fields(self._place)}) + "\n"
        self._thread = threading.Thread(target=self._keep, args=(text,), name="resil-meeting", daemon=True)
        self._thread.start()

    def withdraw(self) -> None:
        """The launch has ended well: take the file away, unless another launch has written there since."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(REMOVE_S)

    def _keep(self, text: str) -> None:
        while True:
            try:
                make_private_folder(self._path.parent)
                replace_file(self._path, text, mode=0o600)
                break
            except OSError as error:
                self._recorder.warn(
                    f"no rank can ask the others to save or to stop, because rank 0's address could not be written: "
                    f"{self._path}: {error}",
                    key="meeting",
                )
            if self._over.wait(RETRY_S):
                return
        remove_stale(self._path, self._place, self._over)
        self._over.wait()
        with contextlib.suppress(OSError):
            if read_own(self._path) == text:
                self._path.unlink()


def address_file(place: Place) -> Path:
    """Where rank 0 writes its address: in the run directory, or, for ranks of one node, in a private folder there."""
    if place.run_dir:
        return Path(place.run_dir) / layout.AGREEMENT / place.meeting
    root = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(root) / f"resil-{os.getuid()}" / place.meeting


def read_address(path: Path) -> Address | None:
    """What rank 0 wrote, or None while there is nothing that can be believed.

    Believed is a regular file of our own that is closed to others, in a folder of our own that nobody else may write.
    """
    try:
        folder = path.parent.lstat()
    except OSError:
        return None
    if not stat.S_ISDIR(folder.st_mode) or folder.st_uid != os.getuid() or folder.st_mode & 0o022:
        return None
    found = read_own(path)
    if found is None:
        return None
    try:
        fields = json.loads(found)
        host, port, token = fields["host"], fields["port"], fields["token"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not isinstance(host, str) or not isinstance(token, str) or type(port) is not int or not 0 < port < 65536:
        return None
    return Address(host, port, token)


def make_private_folder(path: Path) -> None:
    """Make the folder 0700, and refuse one that is somebody else's, or no folder. Raise OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    info = path.lstat()
    if not stat.S_ISDIR(info.st_mode):
        raise OSError(f"{path} is no folder but something that lies in its place")
    if info.st_uid != os.getuid():
        raise OSError(f"{path} belongs to somebody else (uid {info.st_uid})")
    if info.st_mode & 0o077:
        path.chmod(0o700)


def are_on_several_nodes(place: Place, master: str) -> bool:
    """Whether ranks are known to be on several nodes: SLURM says so, or the training meets at another machine."""
    if place.nodes:
        return place.nodes > 1
    return bool(master) and not is_ours(master)


def open_listener(place: Place, interface: str, recorder: Recorder) -> socket.socket:
    """A listening socket where all ranks can reach it. Raise OSError if there is none to be had."""
    local = place.is_one_node or not place.run_dir
    host = listening_host(interface, local=local, names=(os.environ.get("MASTER_ADDR", ""), place.host))
    try:
        return _listen_on(host, place.world)
    except OSError as error:
        if not interface:
            raise
        host = listening_host("", local=local, names=(os.environ.get("MASTER_ADDR", ""), place.host))
        recorder.warn(f"rank 0 cannot listen on the interface {interface!r} ({error}); it listens on {host}")
        return _listen_on(host, place.world)


def allow_descriptors(wanted: int) -> None:
    """Raise the soft limit of open files as far as is needed and allowed: one connection per rank."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted + 256:
        most = wanted + 256 if hard == resource.RLIM_INFINITY else min(hard, wanted + 256)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def _listen_on(host: str, world: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family, backlog=min(world + 64, 4096))
