"""The names in a run directory: what shell, guard and command line agree on."""

from __future__ import annotations

from resilience import layout


def test_attempt_files_sort_as_their_numbers_do() -> None:
    names = [layout.attempt_file(number) for number in (1, 2, 10, 9999)]
    assert names == ["0001", "0002", "0010", "9999"] == sorted(names)
    assert layout.attempt_file(10000) == "10000"


def test_an_attempts_end_lies_beside_its_beginning() -> None:
    assert layout.attempt_end_file(3) == layout.attempt_file(3) + ".end"


def test_no_two_things_share_a_name() -> None:
    names = [*layout.FOLDERS, layout.RUN_FILE, layout.SUBMISSIONS, layout.FINISHED]
    assert len(set(names)) == len(names)


def test_no_job_can_stop_the_run_by_its_number() -> None:
    switches = {layout.KILL_SWITCH, layout.SAVE_SWITCH}
    assert not any(f"{layout.STOP_PREFIX}{job}" in switches for job in (0, 1, 4711))
    assert all(not name.startswith(layout.STOP_PREFIX) for name in switches)
