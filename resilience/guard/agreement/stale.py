"""Which address files have outlived their launch: rank 0 was killed, and nobody took its file away.

The node's mirror process removes the file of a rank 0 that it has seen die (`is_of`). Where that was killed as well, or
there is none, rank 0 of a later launch does (`remove_stale`). When in doubt a file stays: it costs a few bytes, and a
living launch needs it for ranks that come late.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time

from resilience.base.files import open_directory, read_regular, remove_same
from resilience.guard.mirror.run_folder import remove_remains

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from pathlib import Path
    from typing import Any

    from resilience.guard.place import Place

OLD_S = 7 * 86_400.0
"""No launch lasts so long without that its listener answers: then a file of which nothing else is known may go."""
ANSWER_S = 1.0
MOST_FILES = 1_000
_NOBODY = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT)


def owner_fields(place: Place) -> dict[str, str | int]:
    """What the file says of its writer, besides the address: by it others know that it has outlived it."""
    return {"node": place.host, "pid": os.getpid(), "attempt": place.attempt}


def is_of(text: str, node: str, pid: int) -> bool:
    """Whether this process of this node has written the address file with this text."""
    fields = _fields(text)
    return bool(fields) and (fields.get("node"), fields.get("pid")) == (node, pid)


def remove_own(path: str, node: str, pid: int) -> bool:
    """Remove an address file if it is still the one that this process, which is gone, has written. Raise OSError."""
    return _remove_if(path, lambda text, info: is_of(text, node, pid))


def remove_stale(path: Path, place: Place, over: threading.Event) -> None:
    """Sweep the folder in which our own address file lies. Ends soon once `over` is set; never raises."""
    folder = os.fspath(path.parent)
    remove_remains(folder, time.time())
    try:
        names = sorted(os.listdir(folder))[:MOST_FILES]
    except OSError:
        return
    for name in names:
        if over.is_set():
            return
        if name != path.name and not name.startswith("."):
            with contextlib.suppress(OSError):
                _remove_if(os.path.join(folder, name), lambda text, info, name=name: is_stale(name, text, info, place))


def is_stale(name: str, text: str, info: os.stat_result, place: Place) -> bool:
    """Whether the launch of another address file is over, as rank 0 of a newer launch can tell.

    Of an earlier start of our own job, and of an earlier attempt of our run: unless somebody listens there. Of our own
    node: if its process is gone and the kernel refuses a connection. Of another: only after `OLD_S`, and if its node
    refuses; a firewall refuses, too.
    """
    fields = _fields(text)
    if not fields:
        return time.time() - info.st_mtime > OLD_S
    if _is_earlier(name, fields, place):
        return _answer(fields) in _NOBODY
    if fields.get("node") == place.host:
        return not _is_running(fields.get("pid")) and _answer(fields) == errno.ECONNREFUSED
    return time.time() - info.st_mtime > OLD_S and _answer(fields) == errno.ECONNREFUSED


def _is_earlier(name: str, fields: dict[str, Any], place: Place) -> bool:
    """Whether it is of an earlier start of this job, or of an earlier attempt of this run: those do not go on."""
    job_id, _, rest = name.partition("-")
    restart = rest.partition("-")[0]
    if place.job_id != "0" and job_id == place.job_id and restart.isdigit():
        return int(restart) < place.restart
    attempt = fields.get("attempt")
    return bool(place.run_dir) and type(attempt) is int and 0 < attempt < place.attempt


def _is_running(pid: object) -> bool:
    """Whether there is such a process. Unknown counts as no: whoever listens is asked as well."""
    return type(pid) is int and pid > 0 and os.path.exists(f"/proc/{pid}")


def _answer(fields: dict[str, Any]) -> int:
    """What comes of a connection to where the file says that rank 0 listens: 0, or an errno; -1 for no address."""
    try:
        socket.create_connection((str(fields["host"]), int(fields["port"])), timeout=ANSWER_S).close()
    except TimeoutError:
        return errno.ETIMEDOUT
    except OSError as error:
        return error.errno or -1
    except (KeyError, ValueError, TypeError, OverflowError):
        return -1
    return 0


def _fields(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _remove_if(path: str, is_wanted: Any) -> bool:
    """Remove a private file of our own that is wanted away, unless another one has taken its place meanwhile."""
    parent, name = os.path.split(path)
    folder = open_directory(parent)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            return False
        found = read_regular(name, directory=folder)
        if found is None or found[1].st_uid != os.geteuid() or found[1].st_mode & 0o077:
            return False
        text, info = found[0].decode("utf-8", "replace"), found[1]
        return is_wanted(text, info) and remove_same(name, info.st_ino, info.st_mtime_ns, directory=folder)
    finally:
        os.close(folder)
