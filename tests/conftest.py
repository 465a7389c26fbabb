"""What the whole test suite shares: who runs where, that nothing is left running, and which tests did not run."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.lab import forks, hints
from tests.lab.canary import (  # noqa: F401 - a secret is planted in the whole run, and looked for at its end
    canary,
    canary_file,
    pytest_configure,
    pytest_runtest_logreport,
    pytest_sessionfinish,
)
from tests.lab.leftovers import Look, marked, shared

# A busy machine is no failure. The examples are the same in each run, so that what chance finds stops nobody else;
# the long campaigns draw new ones, and twice as many.
IS_SOAK = "RESIL_SOAK" in os.environ
settings.register_profile("resil", deadline=None, derandomize=not IS_SOAK, max_examples=100 if IS_SOAK else 50)
settings.load_profile("resil")

# A shell's background job ignores SIGINT, and so would all that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What a reason contains, and how to get those tests; the first that fits. A reason without a row says it itself.
HOW_TO_GET = {
    "no SLURM accounting": "sudo make test",
    "real SLURM": "sudo make test, which installs it where there is apt-get; elsewhere install it and munge first",
    "proctrack": "run on a machine with the cgroup version 1 freezer, or with the right to mount it",
    "needs sbatch": "sudo scripts/system-packages",
    "needs scontrol": "sudo scripts/system-packages",
    "strace may not attach": "allow ptrace (in a container: --cap-add SYS_PTRACE)",
    "strace": "sudo scripts/system-packages",
    "tmux": "sudo scripts/system-packages",
    "needs wandb": "make test WITH=trackers",
    "needs mlflow": "make test WITH=trackers",
    "needs tensorboard": "make test WITH=trackers",
    "promtool": "apt-get install prometheus (Debian, Ubuntu)",
    "/dev/fuse": "sudo make test; in a container: --device /dev/fuse --cap-add SYS_ADMIN",
    "cannot mount": "in a container: --cap-add SYS_ADMIN",
    "mounting is not permitted": "sudo make test; in a container: --cap-add SYS_ADMIN",
    "root": "sudo make test",
    "shellcheck": "scripts/environment dev",
    "RESIL_SOAK": "make soak",
    "openssl": "apt-get install openssl",
}


HERE = Path(__file__).parent
SLOW = frozenset(line for line in (HERE / "slow.txt").read_text().splitlines() if not line.startswith("#"))
"""Files of tests, and whole directories, that `make quick` has no time for; scripts/slow-tests writes them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out the files of tests/slow.txt (make quick)")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what takes long, when asked to. None lets the other rules of pytest decide."""
    if not config.getoption("--quick"):
        return None
    return True if str(collection_path.relative_to(HERE)) in SLOW else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("soak") is not None and not IS_SOAK:
        pytest.skip("a long story: set RESIL_SOAK=1")


def pytest_collection_finish() -> None:
    """Before the first test: nothing that was collected ever goes away."""
    forks.make_cheap()


@pytest.fixture(scope="session", autouse=True)
def mark() -> Iterator[int]:
    """Mark whatever this session starts, and fail it if something is left running at its end."""
    with marked() as mark:
        look = Look(mark)
        yield mark
        fail_if_left("the session", look)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_by_a_module(mark: int) -> Iterator[None]:
    """Fail a module whose fixtures leave a process running."""
    look = Look(mark)
    yield
    fail_if_left("the module", look)


hints.listen()


@pytest.fixture(scope="module", autouse=True)
def each_hint_of_a_module_can_be_pasted() -> Iterator[None]:
    """Fail a module whose tests provoked a hint with a command that resil does not have."""
    yield
    if wrong := hints.wrong_ones():
        pytest.fail("\n  ".join(["hints with commands that do not work as they stand:", *wrong]), pytrace=False)


@pytest.fixture(autouse=True)
def nothing_is_left_by_a_test(request: pytest.FixtureRequest, mark: int) -> Iterator[None]:
    """Fail a test that leaves a process running; `make quick` asks each module only."""
    if request.config.getoption("--quick"):
        yield
        return
    look = Look(mark, spared=shared)
    yield
    fail_if_left("the test", look)


def fail_if_left(who: str, look: Look) -> None:
    if left := look.end_what_is_left():
        pytest.fail("\n  ".join([f"{who} left processes running, which were killed now:", *left]), pytrace=False)


@pytest.fixture
def probed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings and the state of alerts are read in this process, unless a directory of the test hangs."""
    from tests.lab import here

    here.make_cheap(monkeypatch)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Keep what shares a cluster or an environment (TOGETHER) in one process, and the slurm half of a contract.

    pytest-xdist 3.8 hands the group on in the test's id, where pytest 9.2 lets nobody write: with the two together
    `xdist_group` is silently ignored, and a file's tests run in several processes with a cluster for each.
    """
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]

    class Neighbours(LoadGroupScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid) or str(super()._split_scope(nodeid))

    return Neighbours(config, log)


TOGETHER = ("tests/slurm/", "tests/end_to_end/test_bare_environment.py")
"""Files whose tests share what takes long to make: a cluster, an environment."""
WITH_TORCH = (
    "tests/integrations/test_torch.py", "tests/integrations/test_state_check.py", "tests/guard/triggers/test_loss.py",
    "tests/integrations/test_random_state.py", "tests/integrations/test_checkpoint_formats.py",
    "tests/integrations/test_sdc.py",
)  # fmt: skip
"""Files that import torch into the process of the tests: 5 s and 200 MB, and forks are slower from then on."""


def group_of(nodeid: str) -> str | None:
    """Given a test's id, return what it is to share a process with; None when it may run anywhere."""
    file, _, name = nodeid.partition("::")
    if file.startswith(TOGETHER):
        return file
    if file in WITH_TORCH:
        return "torch"
    return f"slurm of {file}" if "[slurm" in name else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say once which tests were skipped, why, and how to get them: a line for each reason and not for each test."""
    skipped = Counter(map(reason_and_place, terminalreporter.getreports("skipped")))
    if not skipped:
        return
    terminalreporter.section(f"not run: {skipped.total()} skipped")
    for reason in dict.fromkeys(reason for reason, _ in skipped):
        places = {place: count for (why, place), count in skipped.items() if why == reason}
        count = sum(places.values())
        terminalreporter.line(f"{count} {'test' if count == 1 else 'tests'} in {', '.join(sorted(places))}: {reason}")
        how = next((how for part, how in HOW_TO_GET.items() if part in reason), None)
        if how is not None and how not in reason:
            terminalreporter.line(f"    to get {'it' if count == 1 else 'them'}: {how}")


def reason_and_place(report: pytest.TestReport | pytest.CollectReport) -> tuple[str, str]:
    """Given a skipped test's report, return why, and its directory (or its file, where that is in none)."""
    said = report.longrepr
    reason = said[2] if isinstance(said, (tuple, list)) else str(said)  # a list when it comes from pytest-xdist
    file = report.nodeid.partition("::")[0]
    directory, _, name = file.rpartition("/")
    return reason.removeprefix("Skipped: ").strip(), file if directory == "tests" else directory or name
