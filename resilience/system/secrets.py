"""Reads secrets from where settings say that they lie: a file that only its owner can read, or an environment variable.

A secret itself never stands in resil.toml. A plugin's settings have `x_file` and `x_variable` for each secret `x`.
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
from resilience.system import redaction
from resilience.system.ports import System
from resilience.system.redaction import MIN_LENGTH, REDACTED

LIMIT_BYTES = 16 * 1024
"""No token, password or address is longer; a log file named by mistake is."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_IS_A_SECRET = re.compile(r"(?i)\s*(?:[a-z][a-z0-9+.-]*://|xox[a-z]-|xapp-|bearer\s|basic\s|ghp_|sk-|eyJ)")
"""How addresses and tokens begin: found in `x_file`, they were meant to lie in that file."""

_MOMENTARY = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.EMFILE, errno.ENFILE}


class Secret:
    """A text that shows itself only to who asks for it by name."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text
        redaction.remember(text)

    def reveal(self) -> str:
        """The secret itself: for the one call that needs it, never for a message."""
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
        raise TypeError("a secret is not written down")


def check_secret(settings: Any, name: str, *, required: bool = True) -> bool:
    """Return whether settings say where the secret `name` lies. Looks at nothing.

    Raise SettingsError if they name no place (and one is required), two places, or the secret itself.
    """
    file, variable = _places(settings, name)
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
                f"{name}_file = {file!r} must be a whole path: cron and other nodes have another current directory",
                hint=f'{name}_file = "~/.config/resil/{name}"',
            )
    if variable and not _VARIABLE.fullmatch(variable):
        raise SettingsError(
            f"{name}_variable must be the name of an environment variable, not what it holds",
            hint=f'{name}_variable = "RESIL_{name.upper()}"',
        )
    if required and not (file or variable):
        raise SettingsError(
            f"neither {name}_file nor {name}_variable is given",
            hint=f'write the secret into a file of mode 0600 and name it: {name}_file = "~/.config/resil/{name}"',
        )
    return bool(file or variable)


def read_secret(settings: Any, name: str, system: System) -> Secret | None:
    """The secret `name`, or None where settings name no place for it.

    Raise SettingsError if it must not be used (a file that others can read, a variable that is empty), DeliveryError if
    the file system does not answer well now. No error shows anything of its content.
    """
    lines = _read_lines(settings, name, system, is_one=True)
    return lines[0] if lines else None


def read_secret_lines(settings: Any, name: str, system: System) -> tuple[Secret, ...]:
    """As `read_secret`, for a file that holds a secret on each line; empty lines and comments (#) are passed over."""
    return _read_lines(settings, name, system, is_one=False)


def _read_lines(settings: Any, name: str, system: System, *, is_one: bool) -> tuple[Secret, ...]:
    check_secret(settings, name, required=False)
    file, variable = _places(settings, name)
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
        raise _refused(place, "has more than one line", "keep the line that is the secret")
    for line in lines:
        if any(not c.isprintable() for c in line):
            raise _refused(place, "has bytes that no secret has", "write it anew: plain text, one line")
        if len(line) < MIN_LENGTH:
            raise _refused(place, f"is shorter than {MIN_LENGTH} characters", "is the whole secret in it?")
    return tuple(Secret(line) for line in lines)


def scrubbed_environment(environ: Mapping[str, str], keep: tuple[str, ...] = ()) -> dict[str, str]:
    """The environment for a program that we start: what every program needs, and the variables named in `keep`.

    An environment may hold secrets under any name; so it is said what may pass, not what may not.
    """
    return {name: value for name, value in environ.items() if name in _PASSED or name.startswith("LC_") or name in keep}


_PASSED = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"}


def _places(settings: Any, name: str) -> tuple[str, str]:
    return getattr(settings, f"{name}_file", ""), getattr(settings, f"{name}_variable", "")


def _read(path: Path) -> str:
    """The text of a secret's file, looked at through one descriptor: what was judged is what is read."""
    try:
        found = read_regular(path, limit_bytes=LIMIT_BYTES)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such file")
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _refused(path, "is a symbolic link", "name the file itself") from None
        if error.errno in NOT_REGULAR:
            raise _refused(path, "is no regular file", "name a file that holds the secret and nothing else") from None
        raise _unreadable(path, error) from None
    content, info = found
    if info.st_uid not in (os.geteuid(), 0):
        raise _refused(path, f"belongs to another user (uid {info.st_uid})", "use a file of your own")
    if info.st_mode & 0o177:
        mode = stat.S_IMODE(info.st_mode)
        raise _refused(path, f"has mode {mode:04o}, and a secret must have 0600", f"chmod 600 {path}")
    if info.st_size > LIMIT_BYTES:
        raise _refused(path, f"has {info.st_size} bytes: that is no secret", "is it the right file?")
    return content.decode("utf-8", "surrogateescape")


def _unreadable(path: Path, error: OSError) -> ResilError:
    why = os.strerror(error.errno) if error.errno else "it cannot be read"
    said = f"cannot read the secret file {path}: {why}"
    if error.errno in _MOMENTARY:
        return DeliveryError(said, hint="the file system is not well; it is tried again")
    return SettingsError(said, hint=f"ls -l {path}")


def _refused(place: Path | str, why: str, hint: str) -> SettingsError:
    place = f"the secret file {place}" if isinstance(place, Path) or place.startswith("/") else place
    return SettingsError(f"{place} {why}", hint=hint)
