"""Every error text that real SLURM was seen to write, and what is made of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.errors import NoSuchJob, NotSupported, SchedulerError, SchedulerUnavailable
from resilience.schedulers._slurm.errors import Meaning, complains, diagnose, quote

FAILED = "sbatch: error: Batch job submission failed: "

REFUSED = [
    ("sbatch: error: invalid partition specified: nosuch\n" + FAILED + "Invalid partition name specified", "sinfo"),
    (FAILED + "Invalid account or account/partition combination specified", "sacctmgr show assoc"),
    (FAILED + "Invalid qos specification", "sacctmgr show assoc"),
    (FAILED + "Invalid job array specification", "MaxArraySize"),
    (FAILED + "Job dependency problem", "afterany:"),
    (FAILED + "Invalid node name specified", "sinfo"),
    (FAILED + "Invalid feature specification", "sinfo"),
    (FAILED + "Requested node configuration is not available", "sinfo"),
    (FAILED + "Requested reservation is invalid", "scontrol show reservation"),
    (FAILED + "Requested time limit is invalid (missing or exceeds some limit)", "sinfo"),
    (FAILED + "More processors requested than permitted", "sinfo"),
    (FAILED + "Required partition not available (inactive or drain)", "sinfo"),
    (FAILED + "User's group not permitted to use this partition", "sinfo"),
    (FAILED + "Pathname of a file, directory or other parameter too long", "shorten"),
    (FAILED + "Unspecified error", "administrators"),
    ("sbatch: error: your project is over its quota\n" + FAILED + "Unspecified error", "administrators"),
    ("sbatch: error: AssocMaxSubmitJobLimit\n" + FAILED + "Job violates accounting/QOS policy (job submit limit, "
     "user's size and/or time limits)", "sacctmgr"),
    ("sbatch: error: QOSMaxSubmitJobPerUserLimit\n" + FAILED + "Job violates accounting/QOS policy", "sacctmgr"),
    ("sbatch: error: Memory specification can not be satisfied\n" + FAILED + "Requested node configuration is not "
     "available", "sinfo"),
    ("sbatch: error: Invalid generic resource (gres) specification", "sinfo"),
    ("sbatch: error: Invalid --time specification", "--help"),
    ("sbatch: error: Invalid --signal specification", "--help"),
    ("sbatch: unrecognized option '--no-such-option'\nTry \"sbatch --help\" for more information", "--help"),
    ("sbatch: error: This does not look like a batch script.  The first\n"
     "sbatch: error: line must start with #! followed by the path to an interpreter.", "#!"),
    ("sbatch: error: Batch script contains DOS line breaks (\\r\\n)", "dos2unix"),
    ("sbatch: error: Unable to open file /nonexistent.sh", "readable"),
    ("sbatch: error: --uid only permitted by root user", ""),
    ("allocation failure: Invalid partition name specified", "sinfo"),
    ("sbatch: fatal: SLURM_MEM_PER_CPU, SLURM_MEM_PER_GPU, and SLURM_MEM_PER_NODE are mutually exclusive.", "SBATCH_"),
    ("Requested operation is presently disabled for job 2", "--no-requeue"),
    ("Job is pending execution for job 1", "release"),
    ("Access/permission denied for job 1", "squeue"),
    ("scancel: error: Kill job error on job id 1: Access/permission denied", "squeue"),
    ("Invalid user id for job 1", "squeue"),
    ("slurm_suspend error: Invalid user id", "squeue"),
    ("Job has already finished for job 7", ""),
    ("Cannot modify scrontab jobs through scontrol", "scrontab"),
    ("squeue: error: Invalid user: nosuch", "id NAME"),
    ("Unknown job signal: BLA", "USR1"),
]  # fmt: skip
UNAVAILABLE = [
    "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
    "slurm_load_jobs error: Socket timed out on send/recv operation",
    FAILED + "Unable to contact slurm controller (connect failure)",
    FAILED + "Socket timed out on send/recv operation",
    "slurm_load_partitions: Unable to contact slurm controller (connect failure)",
    "scancel: error: Kill job error on job id 49: Socket timed out on send/recv operation",
    "Unexpected message received for job 15",
    "slurm_load_jobs error: Insane message length",
    "slurm_load_jobs error: Zero Bytes were transmitted or received",
    FAILED + "Protocol authentication error",
    "slurm_load_jobs error: RPC limit exceeded",
    "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection to host:127.0.0.1:20001: "
    "Connection refused\nsacct: error: Problem talking to the database: Connection refused",
    "squeue: error: Invalid job format specification: exit_code",
]
NOT_SENT = [
    "squeue: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
    "squeue: fatal: Could not establish a configuration source",
    "squeue: error: s_p_parse_file: cannot stat file /nonexistent: No such file or directory, retrying in 1sec up to "
    "60sec\nsqueue: fatal: Unable to process configuration file",
    "sbatch: error: If munged is up, restart with --num-threads=10\n"
    'sbatch: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": '
    "No such file or directory (Did you start munged?)\n"
    + FAILED + "Protocol authentication error",
]  # fmt: skip
NO_SUCH_JOB = [
    "slurm_load_jobs error: Invalid job id specified",
    "Invalid job id specified for job 99999",
    "Job 3_9 not found",
    "scancel: error: Invalid job id abc",
]


@pytest.mark.parametrize(("text", "hint"), REFUSED)
def test_a_refusal_says_what_happened_and_what_to_try(text: str, hint: str) -> None:
    diagnosis = diagnose(text, 1)
    error = diagnosis.error("sbatch")
    assert diagnosis.meaning is Meaning.REFUSED
    assert type(error) is SchedulerError and not error.transient
    assert hint in error.hint
    assert error.message.startswith("sbatch refused: ")
    assert quote(text)[:40] in error.message  # SLURM's own words are kept


@pytest.mark.parametrize("text", UNAVAILABLE + NOT_SENT)
def test_no_answer_is_unavailable_and_worth_a_retry(text: str) -> None:
    error = diagnose(text, 1).error("squeue")
    assert isinstance(error, SchedulerUnavailable) and error.transient and error.hint


@pytest.mark.parametrize("text", NOT_SENT)
def test_a_client_that_never_spoke_to_the_controller_is_known_as_that(text: str) -> None:
    assert diagnose(text, 1).meaning is Meaning.NOT_SENT


@pytest.mark.parametrize("text", NO_SUCH_JOB)
def test_an_unknown_job_is_named_so(text: str) -> None:
    assert isinstance(diagnose(text, 1).error("scontrol"), NoSuchJob)


def test_a_release_without_submit_lines_cannot_be_searched() -> None:
    error = diagnose('sacct: fatal: Invalid field requested: "SubmitLine"', 1).error("sacct")
    assert isinstance(error, NotSupported)


def test_a_cluster_without_accounting_says_so() -> None:
    error = diagnose("Slurm accounting storage is disabled", 1).error("sacct")
    assert isinstance(error, NotSupported) and "accounting is off on this cluster" in error.message


@pytest.mark.parametrize("text", ["", "gibberish", FAILED + "A new reason nobody has seen"])
def test_an_unknown_text_proves_nothing(text: str) -> None:
    diagnosis = diagnose(text, 1)
    assert diagnosis.meaning is Meaning.UNCLEAR
    assert isinstance(diagnosis.error("sbatch"), SchedulerUnavailable)


def test_what_a_loader_or_a_locale_says_is_no_complaint_of_slurm() -> None:
    assert not complains("perl: warning: Setting locale failed.\n")
    assert not complains("ERROR: ld.so: object 'x.so' from LD_PRELOAD cannot be preloaded: ignored.\n")
    assert not complains("sbatch: NOTE: please use --account")
    assert complains("squeue: error: Invalid user: nosuch\n")
    assert complains("squeue: RPC limit exceeded, sleeping for 1 s\n")


@given(st.text(), st.integers(-64, 255))
def test_any_text_gets_a_typed_error_with_words(text: str, returncode: int) -> None:
    error = diagnose(text, returncode).error("sbatch")
    assert isinstance(error, SchedulerError) and error.message
