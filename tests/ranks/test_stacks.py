"""Stacks as faulthandler and py-spy wrote them of real gloo ranks: which thread is the training, and where it waits."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.ranks.stacks import MOST_FRAMES, Frame, Where, parse_stacks, place_of, where

RECORDED = Path(__file__).parents[1] / "recorded" / "stacks"
SAYS = [
    ("all_reduce", Where.COLLECTIVE, "all_reduce", "train.py:10 in step"),
    ("data_loader", Where.LOADER, "__next__", "train.py:8 in load_batch"),
    ("preprocess", Where.CODE, "preprocess", "train.py:11 in preprocess"),
    ("py_spy", Where.COLLECTIVE, "all_reduce", "train.py:10 in step"),
]


@pytest.mark.parametrize(("name", "word", "function", "place"), SAYS, ids=[case[0] for case in SAYS])
def test_recorded_stacks_tell_where_a_rank_is(name: str, word: Where, function: str, place: str) -> None:
    stacks = parse_stacks((RECORDED / f"{name}.txt").read_text())
    assert (*where(stacks), place_of(stacks)) == (word, function, place)


def test_the_main_thread_is_the_oldest_and_not_the_one_that_wrote() -> None:
    text = (
        'Current thread 0x1 (most recent call first):\n  File "/a/writer.py", line 3 in work\n\n'
        'Thread 0x2 [python3] (most recent call first):\n  File "/a/train.py", line 7 in step\n'
    )
    main = parse_stacks(text).main
    assert main is not None and (main.name, main.frames) == ("python3", (Frame("step", "/a/train.py", 7),))


def test_of_more_than_a_hundred_threads_the_one_that_handled_the_signal_is_the_main_one() -> None:
    thread = 'Thread 0x2 (most recent call first):\n  File "/a/pool.py", line 7 in work\n\n'
    text = 'Current thread 0x1 (most recent call first):\n  File "/a/train.py", line 3 in step\n\n' + thread + "...\n"
    assert place_of(parse_stacks(text)) == "train.py:3 in step"


FRAMES = [
    ("/x/site-packages/torch/distributed/distributed_c10d.py", "recv", Where.COLLECTIVE),
    ("/x/site-packages/torch/distributed/distributed_c10d.py", "get_rank", Where.CODE),
    ("/x/site-packages/deepspeed/comm/comm.py", "barrier", Where.COLLECTIVE),
    ("/home/ada/parallel.py", "all_gather_into_tensor", Where.COLLECTIVE),
    ("/home/ada/train.py", "reduce", Where.CODE),
    ("/x/site-packages/torch/cuda/__init__.py", "synchronize", Where.GPU),
    ("/x/site-packages/torch/serialization.py", "_save", Where.CHECKPOINT),
    ("/usr/lib/python3.11/threading.py", "wait", Where.CODE),
]


@pytest.mark.parametrize(("file", "function", "word"), FRAMES)
def test_the_innermost_frame_that_is_known_decides(file: str, function: str, word: Where) -> None:
    lines = f'  File "{file}", line 1 in {function}\n  File "/home/ada/train.py", line 2 in step\n'
    assert where(parse_stacks(f"Thread 0x1 (most recent call first):\n{lines}"))[0] is word


def test_a_thread_without_python_code_and_a_text_without_stacks_are_unknown() -> None:
    assert where(parse_stacks("Thread 0x1 (most recent call first):\n  <no Python frame>\n")) == (Where.UNKNOWN, "")
    assert where(parse_stacks("")) == (Where.UNKNOWN, "")


def test_an_endless_recursion_is_cut() -> None:
    text = "Thread 0x1 (most recent call first):\n" + '  File "/a/b.py", line ??? in f\n' * 2 * MOST_FRAMES
    assert parse_stacks(text).threads[0].frames == (Frame("f", "/a/b.py", 0),) * MOST_FRAMES


@given(st.text())
def test_no_text_is_an_error(text: str) -> None:
    parse_stacks(f'Thread 0x1 (most recent call first):\n  File "{text}", line 1 in {text}\n{text}')
