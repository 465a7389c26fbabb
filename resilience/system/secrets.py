"""Reads secrets from a file that only its owner can read, or from an environment variable, as set in resil.toml.

resil.toml never contains a secret itself. A plugin's settings have `x_file` and `x_variable` for each secret `x`.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resilience.base.files import NOT_REGULAR, read_regular
from resilience.errors import DeliveryError, ResilError, SettingsError
from resilience.messages import quoted
from resilience.system import redaction
from resilience.system.ports import System
from resilience.system.redaction import MIN_LENGTH, REDACTED

LIMIT_BYTES = 16 * 1024
"""Maximum size of a secret's file, which detects a log file named by mistake."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_IS_A_SECRET = re.compile(r"(?i)\s*(?:[a-z][a-z0-9+.-]*://|xox[a-z]-|xapp-|bearer\s|basic\s|ghp_|sk-|eyJ)")
"""Prefixes of addresses and tokens: in `x_file` they are a mistake."""

_TRANSIENT = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.EMFILE, errno.ENFILE}


class Secret:
    """A secret text that is not shown by str(), repr() and format()."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text
        redaction.remember(text)

    def reveal(self) -> str:
        """Return the secret, for the call that needs it; never use it in messages."""
        return self._text

    def __repr__(self) -> str:
        return f"Secret({REDACTED})"

    def __str__(self) -> str:
        return REDACTED

    def __format__(self, specification: str) -> str:
        return REDACTED

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> str:
        raise TypeError("a secret cannot be pickled")


def check_secret(settings: Any, name: str, *, required: bool = True) -> bool:
    """Return whether settings name a source of the secret `name`. The source is not read.

    Raise SettingsError if the settings name no source although one is required, two sources, or the secret itself.
    """
    file, variable = _sources(settings, name)
    if file and variable:
        raise SettingsError(
            f"both {name}_file and {name}_variable are given", hint="keep the one that holds the secret"
        )
    if file:
        if _IS_A_SECRET.match(file) or any(c in file for c in "\0\r\n"):
            raise SettingsError(
                f"{name}_file must name a file, and seems to be the secret itself",
                hint=f'write it into a file of mode 0600 and name that: {name}_file = "~/.config/resil/{name}"',
            )
        if not file.startswith(("/", "~/")):
            raise SettingsError(
                f"{name}_file = {file!r} must be an absolute path: cron and other nodes have another current directory",
                hint=f'{name}_file = "~/.config/resil/{name}"',
            )
    if variable and not _VARIABLE.fullmatch(variable):
        raise SettingsError(
            f"{name}_variable must be the name of an environment variable, not its value",
            hint=f'{name}_variable = "RESIL_{name.upper()}"',
        )
    if required and not (file or variable):
        raise SettingsError(
            f"neither {name}_file nor {name}_variable is given",
            hint=f'write the secret into a file of mode 0600 and name it: {name}_file = "~/.config/resil/{name}"',
        )
    return bool(file or variable)


def read_secret(settings: Any, name: str, system: System) -> Secret | None:
    """Return the secret `name`, or None if settings name no source.

    Raise SettingsError if the source is invalid (a file that others can read, an empty variable), DeliveryError for a
    transient error of the file system. No error contains any part of the secret.
    """
    lines = _read_lines(settings, name, system, is_one=True)
    return lines[0] if lines else None


def read_secret_lines(settings: Any, name: str, system: System) -> tuple[Secret, ...]:
    """As `read_secret`, for a file with one secret per line; empty lines and comments (#) are ignored."""
    return _read_lines(settings, name, system, is_one=False)


def _read_lines(settings: Any, name: str, system: System, *, is_one: bool) -> tuple[Secret, ...]:
    check_secret(settings, name, required=False)
    file, variable = _sources(settings, name)
    if file:
        path = system.host.home / file[2:] if file.startswith("~/") else Path(file)
        place, text = str(path), _read(path)
    elif variable:
        place = f"the environment variable {variable}"
        if variable not in system.environ:
            raise _refused(place, "is not set", f"export it where resil runs; cron does not read your shell's files: "
                           f"there {name}_file is easier")  # fmt: skip
        text = system.environ[variable]
    else:
        return ()
    lines = [line.strip() for line in text.replace("\r", "\n").split("\n")]
    lines = [line for line in lines if line and not (line.startswith("#") and len(lines) > 1)]
    if not lines:
        raise _refused(place, "is empty", "write the secret into it")
    if is_one and len(lines) > 1:
        raise _refused(place, "has more than one line", "keep only the line with the secret")
    for line in lines:
        if any(not c.isprintable() for c in line):
            raise _refused(place, "contains non-printable characters", "rewrite it: plain text, one line")
        if len(line) < MIN_LENGTH:
            raise _refused(place, f"is shorter than {MIN_LENGTH} characters", "does it contain the complete secret?")
    return tuple(Secret(line) for line in lines)


def scrubbed_environment(environ: Mapping[str, str], keep: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the environment for a child program: common variables, and the variables named in `keep`.

    An allow list, because an environment may contain secrets under any name.
    """
    return {
        name: value for name, value in environ.items() if name in _ALLOWED or name.startswith("LC_") or name in keep
    }


_ALLOWED = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"}


def _sources(settings: Any, name: str) -> tuple[str, str]:
    return getattr(settings, f"{name}_file", ""), getattr(settings, f"{name}_variable", "")


def _read(path: Path) -> str:
    """Return the content of a secret's file. All checks and reads use one descriptor, to exclude races."""
    try:
        found = read_regular(path, limit_bytes=LIMIT_BYTES)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such file")
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _refused(path, "is a symbolic link", "name the file itself") from None
        if error.errno in NOT_REGULAR:
            raise _refused(path, "is not a regular file", "name a file that contains only the secret") from None
        raise _unreadable(path, error) from None
    content, info = found
    if info.st_uid not in (os.geteuid(), 0):
        raise _refused(path, f"belongs to another user (uid {info.st_uid})", "use a file of your own")
    if info.st_mode & 0o177:
        mode = stat.S_IMODE(info.st_mode)
        raise _refused(path, f"has mode {mode:04o}, and a secret must have 0600", f"chmod 600 {quoted(path)}")
    if info.st_size > LIMIT_BYTES:
        raise _refused(path, f"has {info.st_size} bytes, too many for a secret", "is it the right file?")
    return content.decode("utf-8", "surrogateescape")


def _unreadable(path: Path, error: OSError) -> ResilError:
    why = os.strerror(error.errno) if error.errno else "it cannot be read"
    said = f"cannot read the secret file {path}: {why}"
    if error.errno in _TRANSIENT:
        return DeliveryError(said, hint="the file system is faulty; the delivery will be retried")
    return SettingsError(said, hint=f"ls -l {quoted(path)}")


def _refused(place: Path | str, why: str, hint: str) -> SettingsError:
    place = f"the secret file {place}" if isinstance(place, Path) or place.startswith("/") else place
    return SettingsError(f"{place} {why}", hint=hint)
