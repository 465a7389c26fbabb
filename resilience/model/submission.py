"""What is handed to a scheduler, and what comes back. Pure words."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from resilience.errors import UsageError
from resilience.model.job import JobId

COMMENT_PREFIX = "resil"
MAX_LEAD_S = 65535
"""Largest lead that sbatch accepts in --signal (sbatch(1))."""
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_run_name(name: str) -> str:
    """Given a run's name, return it. Raise UsageError if it cannot be a folder, a comment field and a word alike."""
    if _RUN_NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name!r} cannot be a run's name",
            hint="use letters, digits, dot, dash and underscore, at most 100, starting with a letter or digit",
        )
    return name


def make_comment(run: str, token: str) -> str:
    """The text kept in a job's --comment: `resil:<run>:<token>`."""
    return f"{COMMENT_PREFIX}:{run}:{token}"


def split_comment(comment: str) -> tuple[str, str] | None:
    """Given a job's comment, return (run, token), or None when it is not one of ours."""
    prefix, _, rest = comment.partition(":")
    run, _, token = rest.partition(":")
    return (run, token.split(" ")[0]) if prefix == COMMENT_PREFIX and run and token else None


@dataclass(frozen=True, slots=True)
class Submission:
    """One intent to queue one job or one array: exactly one job may ever come of it.

    Attributes:
        token: random word that identifies the intent; it is looked up before any retry.
        run: name of the run it belongs to.
        script: absolute path of the batch script.
        script_args: arguments of the script.
        options: sbatch's long options without dashes, in order, to their values; None for a flag that takes none.
            For instance `{"array": "1-10%1", "requeue": None}`.
        extra_args: sbatch arguments passed through as they are, before the script.
        directory: where to submit from; the job's working directory unless `chdir` says otherwise.
        environment: variables added to the environment of the submission.
        variables: of the person's SBATCH_* those that count; None: all, as with sbatch.
        fresh: the token was made just now and was never sent: it need not be looked up before the first try.
    """

    token: str
    run: str
    script: str
    script_args: tuple[str, ...] = ()
    options: Mapping[str, str | None] = field(default_factory=dict)
    extra_args: tuple[str, ...] = ()
    directory: str = "."
    environment: Mapping[str, str] = field(default_factory=dict)
    variables: Collection[str] | None = None
    fresh: bool = False

    def counted(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Given an environment, return it without the SBATCH_* that do not count."""
        return {
            name: value
            for name, value in environ.items()
            if self.variables is None or not name.startswith("SBATCH_") or name in self.variables
        }

    @property
    def comment(self) -> str:
        """The text by which the job is found again."""
        return make_comment(self.run, self.token)


class Submitted(NamedTuple):
    """The one job that came of a submission.

    Attributes:
        id: the job's or array's id.
        notes: what the scheduler said besides, a line each (for instance a site's job_submit message).
        recovered: True when the call failed or timed out and the job was found by its token.
    """

    id: JobId
    notes: tuple[str, ...] = ()
    recovered: bool = False
