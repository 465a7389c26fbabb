"""The page of shared memory on which workers note where they are."""

from __future__ import annotations

import os

from resilience.watch.scan.worker import LONGEST, Board


def test_a_child_is_heard_though_it_says_nothing() -> None:
    board = Board(2)
    assert board.where(1) == (0, None)
    pid = os.fork()
    if pid == 0:
        board.enter(1, b"runs/gpt", 7)
        board.wants_work = True
        os._exit(0)
    os.waitpid(pid, 0)
    assert board.where(1) == (7, b"runs/gpt")
    assert board.where(0) == (0, None)
    assert board.wants_work
    assert not board.stopped


def test_each_note_replaces_the_one_before() -> None:
    board = Board(1)
    board.enter(0, b"a long path", 1)
    board.enter(0, b"short", 2)
    assert board.where(0) == (2, b"short")
    board.tick(0, 3)
    assert board.where(0) == (3, b"short")
    board.verify(0, 41)
    assert board.where(0) == (41, 41)
    board.set_idle(0, 4)
    assert board.where(0) == (4, None)


def test_a_path_longer_than_its_slot_leaves_the_next_slot_alone() -> None:
    board = Board(2)
    board.enter(1, b"neighbour", 1)
    board.enter(0, b"x" * 10_000, 1)
    assert board.where(0) == (1, b"x" * LONGEST)
    assert board.where(1) == (1, b"neighbour")
