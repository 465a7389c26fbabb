"""Which line of a log is the cause, and which are echoes; what the batch shell and the scheduler say comes first."""

from __future__ import annotations

import pytest

from resilience.attempts.classify import Evidence, classify
from resilience.attempts.failure import Confidence, FailureClass, RankError
from resilience.job import JobState
from resilience.runs.attempts import AttemptEnd

C = FailureClass
STEPS = "\n".join(f"[rank0]: step {step} | loss 2.{step % 90 + 10} | 812 ms" for step in range(200)) + "\n"
OWN = """[rank3]: Traceback (most recent call last):
[rank3]:   File "/home/ada/train.py", line 88, in step
[rank3]:     loss = model(batch)
[rank3]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1736, in _call_impl
[rank3]:     return forward_call(*args, **kwargs)
[rank3]:   File "/home/ada/model.py", line 12, in forward
[rank3]:     return self.table[index]
[rank3]: KeyError: 'en'
"""
ECHO = (
    "[rank1]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:219, remote process exited\n"
    "[rank0]:[E1120 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(3)\n"
    "slurmstepd: error: *** STEP 42.0 ON n1 CANCELLED AT 2026-11-20T03:14:15 ***\n"
    "srun: error: n7: task 3: Exited with exit code 1\n"
)
LIMIT = "slurmstepd: error: *** JOB 4 ON n1 CANCELLED AT 2026-11-20T03:14:15 DUE TO TIME LIMIT ***\n"
TORCHRUN = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
train.py FAILED
Root Cause (first observed failure):
[0]:
  time      : 2026-11-20_03:14:15
  host      : n4
  rank      : 5 (local_rank: 1)
  exitcode  : -9 (pid: 4711)
  error_file: <N/A>
"""
WARNED = "[W1120 03:14:15.9 4711 data.py:12] OSError: [Errno 116] Stale file handle, retrying\n"
WARMED = "".join(f"2026-11-20 03:14:{number:02} INFO shard: {number} of 60 is read\n" for number in range(60))
OPENED = "cannot open shared object file: libnuma.so.1\n"
SHORT = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
CHAIN = """Traceback (most recent call last):
  File "/home/ada/data.py", line 7, in read
    return cache[name]
KeyError: 'shard-17'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/home/ada/train.py", line 31, in main
    batch = data.read(name)
ValueError: no shard
"""
LAST_SAVE = """\
resil: step 36: save and stop, because the job's time limit is in 11 s: a step takes up to 7.2 s, a save 3.8 s
srun: error: n2: tasks 2-3: Exited with exit code 1
"""


@pytest.mark.parametrize(
    ("evidence", "failure", "confidence"),
    [
        (Evidence(end=AttemptEnd.FINISHED, exit_code=0, log=OWN), C.FINISHED, Confidence.CERTAIN),
        (Evidence(end=AttemptEnd.STOPPED, exit_code=75, log=STEPS), C.STOPPED, Confidence.CERTAIN),
        (Evidence(state=JobState.TIMEOUT, exit_code=143, log=STEPS + ECHO), C.WALLTIME, Confidence.CERTAIN),
        (Evidence(state=JobState.NODE_FAIL, log=STEPS), C.NODE_FAILURE, Confidence.CERTAIN),
        (Evidence(state=JobState.FAILED, exit_code=1, log=STEPS + OWN + ECHO), C.EXCEPTION, Confidence.LIKELY),
        (Evidence(exit_code=1, log=STEPS + LAST_SAVE), C.WALLTIME, Confidence.GUESS),
        (Evidence(exit_code=1, log=STEPS + LAST_SAVE + OWN), C.EXCEPTION, Confidence.LIKELY),
        (Evidence(exit_code=1, log=STEPS + ECHO), C.NETWORK, Confidence.GUESS),
        (Evidence(exit_code=137, log=STEPS), C.KILLED, Confidence.GUESS),
        (Evidence(exit_code=137, oom_kills=1, log=STEPS), C.HOST_OOM, Confidence.CERTAIN),
        (Evidence(exit_code=1, oom_kills=1, log=STEPS + TORCHRUN), C.HOST_OOM, Confidence.CERTAIN),
        (Evidence(exit_code=1, oom_kills=1, log=STEPS + ECHO), C.HOST_OOM, Confidence.CERTAIN),
        (Evidence(exit_code=1, oom_kills=1, log=STEPS + OWN), C.HOST_OOM, Confidence.LIKELY),
        (Evidence(exit_code=1, oom_kills=1, log=STEPS + SHORT), C.GPU_OOM, Confidence.LIKELY),
        (Evidence(exit_code=137, memory_why="97 % of the job's cgroup", log=STEPS), C.HOST_OOM, Confidence.LIKELY),
        (Evidence(exit_code=1, memory_why="97 % of the job's cgroup", log=STEPS), C.UNKNOWN, Confidence.GUESS),
        (
            Evidence(exit_code=1, log=STEPS + "RuntimeError: DataLoader worker (pid 4) is killed by signal: Killed.\n"),
            C.HOST_OOM,
            Confidence.GUESS,
        ),
        (Evidence(exit_code=1, log=STEPS + ECHO.splitlines()[0] + "\n" + TORCHRUN), C.KILLED, Confidence.GUESS),
        (Evidence(exit_code=139, log=STEPS), C.SEGFAULT, Confidence.GUESS),
        (Evidence(exit_code=1, log=STEPS), C.UNKNOWN, Confidence.GUESS),
        (Evidence(exit_code=1, log=OWN + STEPS * 3), C.UNKNOWN, Confidence.GUESS),
        (Evidence(exit_code=1, log=OWN + STEPS[-2000:]), C.EXCEPTION, Confidence.GUESS),
        (Evidence(exit_code=0, log=STEPS), C.FINISHED, Confidence.GUESS),
        (Evidence(exit_code=255, log=STEPS), C.UNKNOWN, Confidence.GUESS),
        (Evidence(exit_code=1, log=STEPS + WARNED + WARMED), C.UNKNOWN, Confidence.GUESS),
        (Evidence(exit_code=1, log=WARMED + OPENED + WARMED + SHORT), C.GPU_OOM, Confidence.LIKELY),
        (
            Evidence(exit_code=1, log=STEPS + LIMIT + OWN),
            C.WALLTIME,
            Confidence.CERTAIN,
        ),
        (
            Evidence(exit_code=1, log="".join(f"step {step} loss: nan\n" for step in range(9)) + "ValueError: x\n"),
            C.NAN_LOSS,
            Confidence.LIKELY,
        ),
        (Evidence(exit_code=1, log="step 3 loss: nan\n" + STEPS), C.UNKNOWN, Confidence.GUESS),
        (
            Evidence(exit_code=1, log=OWN.replace("KeyError: 'en'", "_pickle.UnpicklingError: could not find MARK")),
            C.CHECKPOINT,
            Confidence.LIKELY,
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, FailureClass | Confidence) else "",
)  # fmt: skip
def test_what_counts_first(evidence: Evidence, failure: FailureClass, confidence: Confidence) -> None:
    found = classify(evidence)
    assert (found.failure, found.confidence) == (failure, confidence), found.reason


def test_the_first_failing_rank_its_host_and_its_own_line_are_named() -> None:
    found = classify(Evidence(exit_code=1, log=STEPS + ECHO.splitlines()[0] + "\n" + OWN + ECHO))
    assert (found.rank, found.host) == (3, "n7")
    assert found.fingerprint == "exception: model.py:12 in forward: KeyError: 'en'"
    assert "model.py:12 in forward" in found.reason
    assert any("NCCL error" in quote.text for quote in found.quotes), "the echo is quoted, behind the cause"


def test_torchelastic_names_rank_and_host() -> None:
    found = classify(Evidence(exit_code=1, log=STEPS + TORCHRUN))
    assert (found.rank, found.host) == (5, "n4")


def test_of_chained_exceptions_the_first_is_the_cause() -> None:
    found = classify(Evidence(exit_code=1, log=STEPS + CHAIN))
    assert found.fingerprint == "exception: data.py:7 in read: KeyError: 'shard-N'"


def test_an_error_file_that_only_reports_another_rank_leaves_the_cause_to_the_log() -> None:
    echo = (
        'Traceback (most recent call last):\n  File "/t.py", line 3, in main\n' + ECHO.splitlines()[0].split(": ", 1)[1]
    )
    found = classify(Evidence(exit_code=1, elastic=RankError(echo), log=STEPS + OWN))
    assert (found.failure, found.rank) == (C.EXCEPTION, 3)
    found = classify(Evidence(exit_code=1, elastic=RankError(OWN.replace("[rank3]: ", "")), log=STEPS + TORCHRUN))
    assert (found.failure, found.rank, found.host) == (C.EXCEPTION, 5, "n4")


def test_of_a_dataloader_worker_its_own_exception_is_the_cause() -> None:
    log = """Traceback (most recent call last):
  File "/home/ada/train.py", line 9, in <module>
    for batch in loader:
OSError: Caught OSError in DataLoader worker process 3.
Original Traceback (most recent call last):
  File "/home/ada/data.py", line 31, in __getitem__
    return self.read(index)
OSError: [Errno 116] Stale file handle
"""
    found = classify(Evidence(exit_code=1, log=STEPS + log))
    assert (found.failure, "data.py:31" in found.fingerprint) == (C.STALE_HANDLE, True)


def test_steps_of_other_ranks_after_it_do_not_hide_the_first_failing_rank() -> None:
    said = OWN.replace("rank3", "rank5")
    elastic = TORCHRUN.replace("exitcode  : -9", "exitcode  : 1")
    found = classify(Evidence(exit_code=1, log=said + STEPS * 3 + elastic))
    assert (found.failure, found.rank, found.host) == (C.EXCEPTION, 5, "n4")


def test_torchelastics_error_file_comes_before_the_log() -> None:
    found = classify(Evidence(exit_code=1, elastic=RankError(OWN, rank=11, host="n9"), log=STEPS + ECHO))
    assert (found.failure, found.rank, found.host) == (C.EXCEPTION, 11, "n9")


@pytest.mark.parametrize(
    ("last", "failure"),
    [
        ("cp: cannot stat '/data/pile.tar': No such file or directory", C.MISSING_FILE),
        ("all 8 ranks are stuck in the barrier of step 7", C.COLLECTIVE_TIMEOUT),
        ("[ERROR] the vocabulary has 7 words", C.EXCEPTION),
        ("saved the last state in 3.1 s", C.UNKNOWN),
        ("NCCL INFO comm 0x55d8 rank 3 - Abort COMPLETE", C.UNKNOWN),
        ("[ERROR] the metrics server is gone\n" + STEPS[-400:], C.UNKNOWN),
    ],
)
def test_last_words_of_whatever_level_are_a_guess_only_where_the_launch_failed(last: str, failure: C) -> None:
    found = classify(Evidence(exit_code=1, log=STEPS + last + "\n"))
    assert (found.failure, found.confidence) == (failure, Confidence.GUESS), found.reason
    assert classify(Evidence(log=STEPS + last + "\n")).failure in (C.UNKNOWN, C.EXCEPTION)


@pytest.mark.parametrize(
    "log",
    [
        pytest.param("", id="empty"),
        pytest.param("\0" * 5000, id="NUL"),
        pytest.param("\n" * 100_000, id="line feeds"),
        pytest.param("x" * 3_000_000, id="one long line"),
        pytest.param("\x1b[31m" * 10_000, id="colours"),
        pytest.param("[rank99999999999]: x", id="a strange rank"),
        pytest.param("Traceback (most recent call last):", id="a head alone"),
    ],
)
def test_junk_is_an_unknown_cause(log: str) -> None:
    assert classify(Evidence(exit_code=1, log=log)).failure is C.UNKNOWN


def test_the_same_fault_has_the_same_fingerprint_in_another_attempt() -> None:
    first = "2026-11-20 03:14:15 [rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    again = "2026-11-21 11:00:01 [rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.25 GiB"
    one, two = (classify(Evidence(exit_code=1, log=STEPS + line)) for line in (first, again))
    assert one.fingerprint == two.fingerprint


@pytest.mark.parametrize(
    "said", ["resil: the breaker of run gpt is open: the last", "[rank0]: resil: an earlier attempt was stopped"]
)
def test_what_resil_quotes_of_an_earlier_attempt_is_no_evidence(said: str) -> None:
    log = f"{said}: disk full: OSError: [Errno 28] No space left on device\n"
    assert classify(Evidence(exit_code=1, log=log)).failure is FailureClass.UNKNOWN


def test_lines_of_the_batch_shell_are_no_evidence_of_an_unknown_cause() -> None:
    shell = "resil: held the queued jobs of this run: 1; nothing was cancelled\nresil: END attempt 6 of gpt: job 1_6\n"
    found = classify(Evidence(log=f"loading\nbye\n{shell}", exit_code=1))
    assert [quote.text for quote in found.quotes] == ["loading", "bye"]


RESET = "ConnectionResetError: [Errno 104] Connection reset by peer\n"
TOLD_BETWEEN = (
    "Traceback (most recent call last):\n"
    "resil: warning: rank 0 left at step 12: ConnectionResetError(104, 'Connection reset by peer')\n"
    '  File "/home/ada/train.py", line 140, in step\n'
    '    raise RuntimeError("the data loader has lost its index")\n'
    "RuntimeError: the data loader has lost its index\n"
)


def test_a_line_of_a_guard_within_a_traceback_of_another_rank_hides_nothing() -> None:
    found = classify(Evidence(exit_code=1, log=TOLD_BETWEEN + RESET))
    assert found.failure is C.EXCEPTION and "the data loader has lost its index" in found.reason


KILLED_FIRST = (
    "srun: error: n2: task 2: Killed\n"
    "srun: launch/slurm: _step_signal: Terminating StepId=4.0\n"
    "slurmstepd-n1: error: *** STEP 4.0 ON n1 CANCELLED AT 2026-11-28T16:08:42 ***\n"
)


def test_a_task_that_was_killed_first_is_the_cause_of_what_its_peers_say() -> None:
    found = classify(Evidence(exit_code=137, log=STEPS + KILLED_FIRST + RESET))
    assert (found.failure, found.rank, found.host) == (C.KILLED, 2, "n2")


def test_a_task_that_srun_killed_itself_is_no_cause() -> None:
    own = "srun: error: n1: task 0: Exited with exit code 1\n" + KILLED_FIRST.split("\n", 1)[1]
    found = classify(Evidence(exit_code=137, log=STEPS + own + RESET + "srun: error: n2: tasks 2-3: Killed\n"))
    assert (found.failure, found.rank) == (C.NETWORK, 0), "it ended first, and it too says that a peer is gone"


def test_a_task_that_exited_first_is_the_cause_and_not_those_that_srun_killed_then() -> None:
    ended = KILLED_FIRST.replace("task 2: Killed", "task 2: Exited with exit code 3")
    ended += "srun: error: n2: task 3: Killed\nsrun: error: n1: tasks 0-1: Killed\n"
    found = classify(Evidence(exit_code=137, log=STEPS + ended))
    assert (found.failure, found.rank, found.host) == (C.UNKNOWN, 2, "n2"), found
    assert "exit code 3" in found.reason


@pytest.mark.parametrize(("is_restarted", "expected"), [(False, C.UNKNOWN), (True, C.NODE_FAILURE)])
def test_that_a_peer_is_gone_is_no_network_failure_if_the_batch_shell_is_gone_too(
    is_restarted: bool, expected: FailureClass
) -> None:
    found = classify(Evidence(end=AttemptEnd.LOST, is_restarted=is_restarted, log=STEPS + RESET))
    assert found.failure is expected


def test_why_a_guard_left_is_the_cause_though_it_is_a_warning() -> None:
    why = "the save of step 100 is not durable: CheckpointError('rank 2: No space left on device: /ckpt/.part-1')"
    told = "".join(f"resil: warning: {who}{why}\n" for who in ("", "the run is not marked as finished: "))
    found = classify(Evidence(exit_code=1, log=f"{STEPS}{told}resil: warning: rank 0 left at step 100: {why}\n"))
    assert found.failure is C.DISK_FULL, found


MIXED = (
    "resil: warning: rank 0 left at step 37: RuntimeError('the data loader has lost its index')\n"
    "Traceback (most recent call last):\n"
    "Traceback (most recent call last):\n"
    '  File "/home/ada/train.py", line 95, in gather\n'
    "ConnectionResetError: [Errno 104] Connection reset by peer\n"
    '  File "/home/ada/train.py", line 140, in step\n'
    "RuntimeError: the data loader has lost its index\n"
)


def test_the_exception_of_the_first_rank_is_found_though_two_tracebacks_are_mixed() -> None:
    found = classify(Evidence(exit_code=1, log=STEPS + MIXED))
    assert (found.failure, found.rank) == (C.EXCEPTION, 0) and "has lost its index" in found.reason, found


@pytest.mark.parametrize("error", ["ConnectionResetError(104, 'Connection reset by peer')", "AgreementLost('rank 0')"])
def test_that_a_rank_left_because_its_peers_did_is_no_exception_of_its_own(error: str) -> None:
    log = f"{STEPS}resil: warning: rank 1 left at step 37: {error}\n{RESET}"
    assert classify(Evidence(exit_code=1, log=log)).failure is C.NETWORK


def test_a_rank_that_called_sys_exit_first_is_the_cause() -> None:
    found = classify(Evidence(exit_code=3, log=f"{STEPS}resil: warning: rank 0 left at step 33: sys.exit(3)\n{RESET}"))
    assert (found.failure, found.rank, found.reason) == (C.EXCEPTION, 0, "an exception ended it: sys.exit(3)")


def test_what_srun_says_is_not_the_exception_of_a_traceback_that_was_cut_off() -> None:
    log = f"{STEPS}Traceback (most recent call last):\nsrun: forcing job termination\nsrun: got SIGCONT\n"
    assert classify(Evidence(end=AttemptEnd.LOST, log=log)).failure is C.UNKNOWN
