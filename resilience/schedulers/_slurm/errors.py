"""Classifies SLURM's error messages, with hints. Pure.

Exit codes are not sufficient (scancel's is errno & 255, that of `squeue -u nosuch` is 0), so the text decides. The
texts are the same from 20.11 to 26.05.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from resilience.errors import NoSuchJob, NotSupported, SchedulerError, SchedulerUnavailable
from resilience.system.process import DeadlineExceeded, ProgramMissing

JOBS_KEEP_RUNNING = "slurmctld may be down or busy; jobs keep running; check with `scontrol ping`"


class Meaning(StrEnum):
    """The classification of a failed command."""

    REFUSED = "refused"
    """SLURM rejected the request; nothing was changed."""
    NOT_SENT = "not sent"
    """The client failed before it contacted the controller; nothing was changed, and nothing is known."""
    UNAVAILABLE = "unavailable"
    """The controller gave no reliable answer. The request may have been executed."""
    NO_SUCH_JOB = "no such job"
    NO_ACCOUNTING = "no accounting"
    UNCLEAR = "unclear"
    """An unknown error message. The request may have been executed."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The classification of a failed command, with an explanation and a hint."""

    meaning: Meaning
    words: str
    hint: str = ""

    def error(self, program: str) -> SchedulerError:
        """Return the exception for this diagnosis."""
        if self.meaning is Meaning.REFUSED:
            return SchedulerError(f"{program} refused: {self.words}", hint=self.hint)
        if self.meaning is Meaning.NO_SUCH_JOB:
            return NoSuchJob(f"{program}: {self.words}", hint=self.hint)
        if self.meaning is Meaning.NO_ACCOUNTING:
            return NotSupported(self.words, hint=self.hint)
        return SchedulerUnavailable(f"{program} gave no answer: {self.words}", hint=self.hint or JOBS_KEEP_RUNNING)


_Row = tuple[str, Meaning, str, str]
_R, _U, _N = Meaning.REFUSED, Meaning.UNAVAILABLE, Meaning.NOT_SENT
_ASSOCIATIONS = "`sacctmgr show assoc user=$USER` lists your accounts, partitions and QOS"
_PARTITIONS = "`sinfo` lists the partitions and their limits"
_NODES = "`sinfo -N -o '%N %c %m %G %f'` shows what the nodes have"

# The first match applies: connection errors come first.
_TABLE: tuple[_Row, ...] = (
    (r"Munge encode failed|Did you start munged", _N, "the authentication service munge does not respond on this host",
     "ask the administrators to start munged here; jobs keep running"),
    (r"Could not establish a configuration source|resolve_ctls_from_dns_srv|Unable to process configuration file"
     r"|cannot stat file .*slurm\.conf|s_p_parse_file",
     _N, "no usable slurm.conf was found", "is this a login node? check $SLURM_CONF; without SLURM: --scheduler local"),
    (r"[Aa]ccounting storage is disabled|not running with accounting|accounting_storage/none"
     r"|not running a supported accounting_storage", Meaning.NO_ACCOUNTING,
     "accounting is off on this cluster, so sacct has no records",
     "`scontrol show job` shows ended jobs for MinJobAge"),
    (r"Invalid field requested:.*SubmitLine", Meaning.NO_ACCOUNTING,  # before 21.08
     "sacct of this release does not record how jobs were submitted", ""),
    (r"slurm_persist_conn_open|Problem talking to the database|slurmdbd", _U,
     "the accounting database does not respond",
     "slurmdbd may be down; the queue is not affected, and its records arrive later"),
    (r"RPC (rate )?limit|rate.?limit", _U, "the controller limits the rate of requests", "retry later"),
    (r"Socket timed out|connect failure|Unable to contact slurm controller|Connection (refused|reset|timed out)"
     r"|Insane message length|Unexpected message rec|Zero Bytes were transmitted|Transport endpoint|Broken pipe"
     r"|Message (receive|send) failure|Header lengths are longer|Incompatible versions of client and server"
     r"|Protocol authentication error|Protocol version|Invalid authentication credential|standby mode"
     r"|controller not responding|temporarily unable to accept job|Resource temporarily unavailable"
     r"|Network is unreachable|No route to host|Temporary failure in name resolution|sleeping and retrying",
     _U, "the controller could not be reached", ""),
    (r"Invalid job id specified|Job \S+ not found|Invalid job id: \S+|Invalid job id \S+", Meaning.NO_SUCH_JOB,
     "there is no such job", "it may have ended and been purged; `sacct -j` shows it if accounting is on"),
    (r"Invalid job format specification", _U, "this release lacks a required column",
     "SLURM 20.11 or newer is needed; please report the release"),
    # ---- sbatch
    (r"[Ii]nvalid partition (specified|name)", _R, "there is no such partition", _PARTITIONS),
    (r"Invalid account or account/partition", _R, "this account does not exist, or may not use this partition, or you "
     "are not known to accounting", _ASSOCIATIONS),
    (r"[Ii]nvalid qos", _R, "there is no such QOS, or it is not yours", _ASSOCIATIONS),
    (r"Invalid job array specification", _R, "the array's indices are wrong or beyond MaxArraySize",
     "`scontrol show config | grep MaxArraySize`; the largest index is one less"),
    (r"[Jj]ob dependency problem", _R, "the dependency is invalid or names a job that SLURM has purged",
     "write it with its type, for instance afterany:123"),
    (r"[Tt]ime limit is invalid|Requested time limit", _R, "the time limit is beyond the partition's", _PARTITIONS),
    (r"accounting/QOS policy|Assoc\w+Limit|QOS\w+Limit|MaxSubmit\w*", _R, "a limit of your account or QOS is reached",
     "wait for jobs to end (an array counts with all its tasks); `sacctmgr show assoc user=$USER` shows the limits"),
    (r"More processors requested", _R, "it requests more processors than the partition permits", _PARTITIONS),
    (r"Memory specification can not be satisfied|Requested node configuration is not available|Node count"
     r"|Too many tasks|CPU count", _R, "no node of the partition satisfies the request", _NODES),
    (r"Invalid generic resource|[Ii]nvalid gres|Invalid Trackable RESource", _R, "there is no such generic resource",
     _NODES),
    (r"[Ii]nvalid node name", _R, "there is no such node", "`sinfo -N` lists the nodes"),
    (r"[Ii]nvalid feature", _R, "no node has this feature", _NODES),
    (r"Required partition not available|inactive or drain", _R, "the partition takes no jobs now", _PARTITIONS),
    (r"group not permitted", _R, "your group may not use this partition", _PARTITIONS),
    (r"account not permitted|not permitted to use this partition", _R, "your account may not use this partition",
     _PARTITIONS),
    (r"[Rr]eservation", _R, "the reservation does not exist, is over, or is not yours",
     "`scontrol show reservation` lists them"),
    (r"[Ll]icense", _R, "the licence is unknown", "`scontrol show licenses` lists them"),
    (r"does not look like a batch script", _R, "the script does not start with #!",
     "its first line must be #!/bin/bash"),
    (r"DOS line breaks", _R, "the script has DOS line breaks", "`dos2unix` the script or its template"),
    (r"Batch script is empty", _R, "the script is empty", ""),
    (r"Unable to open file", _R, "the script cannot be read", "is it there, and readable from this host?"),
    (r"too long", _R, "a parameter is too long (a comment holds about 1 KB)", "shorten the comment or the path"),
    (r"only permitted by root", _R, "only root may do that", ""),
    (r"mutually exclusive", _R, "two options exclude each other",
     "SBATCH_* variables count as options too: `env | grep SBATCH_`"),
    (r"unrecognized option|Try \"\w+ --help\"|invalid option --|requires an argument|ambiguous", _R,
     "an option is not known to this release", "`sbatch --help` lists the options"),
    (r"Invalid --?[\w-]+ specification|[Ii]nvalid .{0,60}specification|Invalid argument|Invalid numeric value", _R,
     "an option's value is wrong", "`sbatch --help` shows the form"),
    (r"Unable to allocate resources|allocation failure", _R, "the request was refused", "run `resil doctor`"),
    # job_submit plugins of the site refuse with a text of their own and this errno
    (r"Unspecified error|job_submit|cli_filter", _R, "a rule of this site refused it",
     "the message is from the administrators; ask them"),
    (r"[Rr]equest denied|[Jj]ob submit/allocate failed|Job (cannot|can not) be submitted", _R, "it was refused", ""),
    # ---- scontrol, scancel
    (r"disabled for job|[Oo]peration is presently disabled", _R, "the job forbids it",
     "a job submitted with --no-requeue cannot be requeued: submit a new job"),
    (r"pending execution for job", _R, "the job is already pending", "`scontrol release` it if it is held"),
    (r"no longer pending", _R, "the job has started: only pending jobs can be changed like this", ""),
    (r"[Aa]lready finished|already completing|already completed", _R, "the job has ended", ""),
    (r"permission denied|Invalid user id", _R, "the job is another user's, or this is for administrators only "
     "(owners may shorten a time limit, never lengthen it)", "`squeue -j` shows whose job it is"),
    (r"scrontab jobs", _R, "the job belongs to scrontab", "change it by `scrontab -e`"),
    (r"Unknown job signal", _R, "there is no such signal", "write for instance USR1"),
    (r"Invalid time specif", _R, "this release does not accept the time", ""),
    (r"Invalid user: \S+", _R, "there is no such user", "check the name with `id NAME`"),
)  # fmt: skip
_PREFIX = re.compile(r"^(?:\[[^\]]*\] )?(?:\w+: )?(?:error|fatal): ")


def diagnose(stderr: str, returncode: int) -> Diagnosis:
    """Classify the standard error of a failed command. SLURM's message is included."""
    said = quote(stderr)
    for pattern, meaning, words, hint in _TABLE:  # compiled at the first failure
        if re.search(pattern, stderr):
            return Diagnosis(meaning, f"{words} ({said})", hint)
    if not said:
        return Diagnosis(Meaning.UNCLEAR, f"exit code {returncode} without a message")
    return Diagnosis(Meaning.UNCLEAR, f"{said} [{returncode}]")


def quote(stderr: str) -> str:
    """Return standard error as one short line without prefixes such as `sbatch: error:`."""
    lines = [_PREFIX.sub("", line.strip()).strip() for line in stderr.splitlines()]
    return "; ".join(dict.fromkeys(line for line in lines if line))[:400]


def complains(stderr: str) -> bool:
    """Return whether SLURM's client wrote an error, regardless of the exit code (0 for `squeue -u nosuch`).

    Other lines (of a dynamic loader, a locale warning) do not make complete rows unreliable.
    """
    own = r"^(?:(?:squeue|sinfo|scontrol|sacct|scancel|slurm_\w+)\b.*(?:error|fatal|limit|retry)|.*(?:RPC|Invalid ).*)"
    return re.search(own, stderr, re.MULTILINE) is not None


def runner_error(error: Exception, program: str) -> SchedulerUnavailable:
    """Return the error for a program that could not be run or did not end in time."""
    if isinstance(error, ProgramMissing):
        return SchedulerUnavailable(
            f"{program} is not installed on this machine",
            hint="use a login node, install SLURM's clients, or try `--scheduler local`",
            transient=False,
        )
    if isinstance(error, DeadlineExceeded):
        return SchedulerUnavailable(f"{program} did not answer: {error}", hint=JOBS_KEEP_RUNNING)
    return SchedulerUnavailable(f"{program} failed: {error}", hint=JOBS_KEEP_RUNNING)
