"""On which address of this machine rank 0 listens: never on all of them."""

from __future__ import annotations

import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915
"""ioctl that tells the IPv4 address of an interface (netdevice(7))."""


def listening_host(interface: str, *, local: bool, names: Sequence[str]) -> str:
    """Given what the settings say, return the address to listen on.

    `interface` wins: an address, a host name, or an interface (`ib0`). Else loopback when all ranks are on this node
    (`local`); else the first of `names` (the launcher's MASTER_ADDR, the node as SLURM calls it), or of our own host
    name, that is an address of this machine which others can reach.
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
    """Whether a host name or address is of this machine. A name that nobody knows is not."""
    return any(_is_loopback(host) or _can_bind(host) for host in _addresses_of(name))


def _addresses_of(name: str) -> list[str]:
    """IPv4 first: that is where the names of compute nodes nearly always are."""
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
    """The address that the default route uses. Nothing is sent: a datagram socket only looks up the way (udp(7))."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1, RFC 5737: nobody's
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
