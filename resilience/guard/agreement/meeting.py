"""How ranks find rank 0: a file with its address and a token, readable by the run's owner only."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
from pathlib import Path

from resilience.guard.agreement.frames import random_word
from resilience.guard.agreement.network import Address, NetworkAgreement
from resilience.guard.small_files import read_own, write_whole
from resilience.model import layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from resilience.guard.agreement.coordinator import Heard
    from resilience.guard.gate import Gate
    from resilience.guard.place import Place
    from resilience.guard.recorder import Recorder
    from resilience.guard.settings import GuardSettings


def meet(
    gate: Gate,
    hear: Callable[[Heard], None],
    place: Place,
    settings: GuardSettings,
    locate: Callable[[], Address | None] | None,
    recorder: Recorder,
) -> NetworkAgreement:
    """The agreement over TCP for this rank. `locate` asks a helper of the node; without it the file is read here."""
    path = address_file(place)

    def listen() -> tuple[socket.socket, str]:
        host = listening_host(place, settings.interface)
        listener = socket.create_server((host, 0), backlog=min(place.world, 4096))
        allow_descriptors(place.world + 256)
        token = random_word()
        address = {"host": host, "port": listener.getsockname()[1], "token": token}
        try:
            make_private_folder(path.parent)
            write_whole(path, json.dumps(address) + "\n", mode=0o600)
        except OSError as error:
            recorder.warn(f"no decision can be made: {path} could not be written: {error}")
        return listener, token

    return NetworkAgreement(
        gate,
        place.rank,
        place.world,
        locate=locate or (lambda: read_address(path)),
        listen=listen if place.is_first else None,
        hear=hear,
        round_s=settings.round_s,
        lost_s=settings.agreement_timeout_s,
        skew_steps=settings.skew_steps,
    )


def address_file(place: Place) -> Path:
    """Where rank 0 writes its address: in the run directory, or, for ranks of one node, in a private folder there."""
    if place.run_dir:
        return Path(place.run_dir) / layout.AGREEMENT / place.meeting
    root = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(root) / f"resil-{os.getuid()}" / place.meeting


def read_address(path: Path) -> Address | None:
    """What rank 0 wrote, or None while there is nothing that can be believed: a file of our own, closed to others."""
    found = read_own(path)
    if found is None:
        return None
    try:
        fields = json.loads(found)
        return Address(str(fields["host"]), int(fields["port"]), str(fields["token"]))
    except (ValueError, TypeError, KeyError):
        return None


def listening_host(place: Place, interface: str) -> str:
    """The address to listen on: loopback when all ranks are on one node, else the job's own interface."""
    if interface:
        return interface
    if place.is_one_node or not place.run_dir:
        return "127.0.0.1"
    for name in (os.environ.get("MASTER_ADDR", ""), place.host, socket.gethostname()):
        host = _address_of(name)
        if host and _is_ours(host) and not host.startswith("127."):
            return host
    return "127.0.0.1"


def make_private_folder(path: Path) -> None:
    """Make the folder 0700, and refuse one that is somebody else's."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = path.lstat()
    if info.st_uid != os.getuid():
        raise OSError(f"{path} belongs to somebody else")


def allow_descriptors(wanted: int) -> None:
    """Raise the soft limit of open files as far as is needed and allowed: one connection per rank."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted + 256:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, wanted + 256), hard))


def _address_of(name: str) -> str:
    if not name:
        return ""
    try:
        return socket.gethostbyname(name)
    except OSError:
        return ""


def _is_ours(host: str) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True
