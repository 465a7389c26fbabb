"""The rendezvous of the ranks: the address on which rank 0 listens (never all interfaces), and how ranks find it."""

from __future__ import annotations

import contextlib
import os
import socket
import struct

from resilience.guard.agreement.address_file import Address, AddressFile, address_file, read_address
from resilience.guard.agreement.base import Agreement
from resilience.guard.agreement.frames import random_word
from resilience.guard.agreement.network import FollowerAgreement, LeaderAgreement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from resilience.guard.agreement.base import AgreementEvent
    from resilience.guard.gate import Gate
    from resilience.guard.rank_info import RankInfo
    from resilience.guard.recorder import Recorder
    from resilience.guard.settings import GuardSettings

LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915
"""ioctl for the IPv4 address of an interface (netdevice(7))."""


def rendezvous(
    gate: Gate,
    on_event: Callable[[AgreementEvent], None],
    place: RankInfo,
    settings: GuardSettings,
    locate: Callable[[], Address | None] | None,
    recorder: Recorder,
    step_s: Callable[[], float] = float,
) -> Agreement:
    """Return the agreement over TCP for this rank. `locate` queries the node's writer process; without it this process
    reads the file.

    `step_s` returns how long a step takes here, in seconds.
    """
    if not place.run_dir and are_on_several_nodes(place, os.environ.get("MASTER_ADDR", "")):
        recorder.warn(
            f"rank {place.rank}: the ranks are on several nodes without a run directory for their rendezvous "
            "(RESIL_RUN_DIR): no rank can request a save or a stop of the others",
            key="meeting",
        )
        return Agreement(gate)
    path = address_file(place)
    file = AddressFile(path, place, recorder)

    def listen() -> tuple[socket.socket, str]:
        listener = open_listener(place, settings.interface, recorder)
        allow_descriptors(place.world + 256)
        token = random_word()
        host, port = listener.getsockname()[:2]
        file.publish(Address(host, port, token))
        return listener, token

    if place.is_first:
        return LeaderAgreement(gate, place.world, settings, on_event, step_s, listen=listen, withdraw=file.withdraw)
    locate = locate or (lambda: read_address(path))
    return FollowerAgreement(gate, place.rank, place.world, settings, on_event, step_s, locate=locate)


def are_on_several_nodes(place: RankInfo, master: str) -> bool:
    """Return whether ranks are known to be on several nodes: by SLURM, or because MASTER_ADDR is another machine."""
    if place.nodes:
        return place.nodes > 1
    return bool(master) and not is_ours(master)


def open_listener(place: RankInfo, interface: str, recorder: Recorder) -> socket.socket:
    """Return a listening socket that all ranks can reach. Raise OSError if impossible."""
    local = place.is_one_node or not place.run_dir
    host = listening_host(interface, local=local, names=(os.environ.get("MASTER_ADDR", ""), place.host))
    try:
        return _listen_on(host, place.world)
    except OSError as error:
        if not interface:
            raise
        listener = open_listener(place, "", recorder)
        host = listener.getsockname()[0]
        recorder.warn(f"rank 0 cannot listen on the interface {interface!r} ({error}); it listens on {host}")
        return listener


def allow_descriptors(count: int) -> None:
    """Raise the soft limit of open files for `count` more, as far as allowed: one connection per rank."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count + 256:
        most = count + 256 if hard == resource.RLIM_INFINITY else min(hard, count + 256)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def _listen_on(host: str, world: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family, backlog=min(world + 64, 4096))


def listening_host(interface: str, *, local: bool, names: Sequence[str]) -> str:
    """Return the address to listen on.

    `interface` takes precedence: an address, a host name, or an interface (`ib0`). Else loopback if all ranks are on
    this node (`local`); else the first of `names` (the launcher's MASTER_ADDR, SLURM's name of the node) or this host's
    name that resolves to an address of this machine other than loopback.
    """
    if interface:
        return _address_of_interface(interface) or next(iter(_addresses_of(interface)), interface)
    if local:
        return LOOPBACK
    for name in (*names, socket.gethostname()):
        for host in _addresses_of(name):
            if not _is_loopback(host) and _can_bind(host):
                return host
    return _address_towards_others() or LOOPBACK


def is_ours(name: str) -> bool:
    """Return whether a host name or address is of this machine; False for an unknown name."""
    return any(_is_loopback(host) or _can_bind(host) for host in _addresses_of(name))


def _addresses_of(name: str) -> list[str]:
    """Return the addresses of a name, IPv4 first, as compute nodes nearly always use it."""
    if not name:
        return []
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    ordered = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)
    return list(dict.fromkeys(str(entry[4][0]) for entry in ordered))


def _address_of_interface(name: str) -> str:
    if len(name.encode()) > 15:  # IFNAMSIZ
        return ""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()))
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])


def _address_towards_others() -> str:
    """Return the address that the default route uses. Sends nothing: a datagram socket only looks up the route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1, RFC 5737: unassigned
            host = str(probe.getsockname()[0])
        except OSError:
            return ""
    return "" if _is_loopback(host) else host


def _is_loopback(host: str) -> bool:
    return host.startswith("127.") or host == "::1"


def _can_bind(host: str) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True
