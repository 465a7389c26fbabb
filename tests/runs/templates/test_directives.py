"""Directives as sbatch reads them."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resilience.errors import TemplateError
from resilience.runs.templates.directives import (
    option_of,
    parse_directives,
    quote_bash,
    split_words,
    without_python,
    write_directive,
)
from resilience.runs.templates.script import ScriptSpec, render
from tests.runs.templates.batch import SHIPPED


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("#SBATCH --time=5", {"time": "5"}),
        ("#SBATCH --time 5", {"time": "5"}),
        ("#SBATCH -t 5 -N2", {"time": "5", "nodes": "2"}),
        ("#SBATCH -J 'a b' # a comment", {"job-name": "a b"}),
        ("#SBATCH --exclusive --nodes=2", {"exclusive": None, "nodes": "2"}),
        ("#SBATCH --exclusive=user", {"exclusive": "user"}),
        ("#SBATCH --requeue", {"requeue": None}),
        ("#SBATCH -HQ", {"hold": None, "quiet": None}),
        ("#SBATCH -s -p gpu", {"oversubscribe": None, "partition": "gpu"}),
        ("#SBATCH\t--mem=4G", {"mem": "4G"}),
        ("#SBATCH -a 1-10%1", {"array": "1-10%1"}),
        ("#SBATCH --output=%x-%j.out", {"output": "%x-%j.out"}),
        ("##SBATCH --time=5", {}),
        ("# SBATCH --time=5", {}),
        ("#SBATCHED --time=5", {}),
        ("#SBATCH", {}),
    ],
)
def test_one_line(line: str, options: dict[str, str | None]) -> None:
    assert dict(parse_directives(f"#!/bin/bash\n{line}\n").options) == options


def test_the_last_of_two_wins() -> None:
    assert parse_directives("#!/bin/sh\n#SBATCH -t 5\n#SBATCH -N 1\n#SBATCH --time=9\n").options == (
        ("nodes", "1"),
        ("time", "9"),
    )


def test_what_comes_after_the_first_command_is_reported_and_not_counted() -> None:
    directives = parse_directives("#!/bin/sh\n\n# note\n#SBATCH -t 5\nset -e\n#SBATCH -N 2\n")
    assert directives.options == (("time", "5"),)
    assert directives.late == ("#SBATCH -N 2",)


def test_dos_line_ends_are_noticed() -> None:
    directives = parse_directives("#!/bin/sh\r\n#SBATCH -t 5\r\n")
    assert directives.crlf
    assert directives.options == (("time", "5"),)


@pytest.mark.parametrize("line", ["#SBATCH --comment='open", "#SBATCH -Z 5", "#SBATCH gpu"])
def test_what_cannot_be_read_is_reported(line: str) -> None:
    assert parse_directives(f"#!/bin/sh\n{line}\n").problems


SPECIAL = "\udc80\udcff'\"\\$`!#\n\r\t\x1b"
# What an argument or a variable of a process can hold: any byte but NUL; undecodable ones as Python hands them on.
any_text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]) | st.sampled_from(SPECIAL))
one_line = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=200)
HOSTILE = [
    *("", "it's", '"; rm -rf /; "', "$(id)", "`id`", "a\nb", "\r", "-n", "~", "*", "#", "!", "\\", "\x1b[31m"),
    *("é", "\udcff", "a\n#SBATCH --uid=0"),
]


def printed(words: list[str], environment: dict[str, str] | None = None) -> list[bytes]:
    """What bash makes of words of a script."""
    script = "printf '%s\\0' " + " ".join(words) + "\n"
    done = subprocess.run(["bash"], input=os.fsencode(script), capture_output=True, check=True, env=environment)
    return done.stdout.split(b"\0")[:-1]


@given(st.lists(any_text, min_size=1, max_size=40))
@settings(max_examples=80, deadline=None)
def test_bash_reads_back_the_same_bytes(texts: list[str]) -> None:
    assert printed([quote_bash(text) for text in texts]) == [os.fsencode(text) for text in texts]


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_in_every_locale(locale: str) -> None:
    assert printed([quote_bash(text) for text in HOSTILE], {"LC_ALL": locale}) == [os.fsencode(t) for t in HOSTILE]


@given(any_text)
def test_a_quoted_value_never_leaves_its_line(text: str) -> None:
    assert len(quote_bash(text).splitlines()) == 1


def test_nul_is_refused() -> None:
    with pytest.raises(TemplateError, match="NUL"):
        quote_bash("a\0b")


@given(one_line)
def test_a_directive_is_read_back_as_it_was_meant(value: str) -> None:
    assert dict(parse_directives("#!/bin/sh\n" + write_directive("comment", value)).options) == {"comment": value}


@pytest.mark.parametrize("value", ["a\nb", "a\r", "a\0", "a\x1bb", "x\n#SBATCH --uid=0", "a\u2028b"])
def test_a_line_end_in_a_directive_is_refused(value: str) -> None:
    with pytest.raises(TemplateError, match="contains a line break or another control character"):
        write_directive("comment", value)


def test_a_directive_too_long_is_refused() -> None:
    with pytest.raises(TemplateError, match="longer than 1000 bytes"):
        write_directive("comment", "é" * 501)


@pytest.mark.parametrize("name", ["", "-p", "--time", "job name", "time=5", "job\nname", "Time"])
def test_what_is_no_long_option_is_refused(name: str) -> None:
    with pytest.raises(TemplateError, match="not a long option"):
        write_directive(name, "x")


@given(command=any_text, value=any_text, line=one_line, directory=one_line)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_value_breaks_out_of_a_script(command: str, value: str, line: str, directory: str) -> None:
    command = re.sub(r"[\r\ud800-\udfff]", "", command)
    spec = ScriptSpec(
        run="demo",
        run_dir="/shared/" + directory,
        command=command,
        directives=(("comment", line),),
        environment={"HOSTILE": value},
        group=value,
    )
    script = os.fsencode(render(SHIPPED, "srun", spec))
    assert subprocess.run(["bash", "-n"], input=script, capture_output=True).stderr == b""
    assigned = b"".join(
        text + b"\n" for text in script.splitlines() if text.startswith((b"resil_command=", b"export HOSTILE="))
    )
    done = subprocess.run(
        ["bash"], input=assigned + b'printf \'%s\\0\' "$resil_command" "$HOSTILE"', capture_output=True
    )
    assert done.stdout.split(b"\0")[:-1] == [os.fsencode(command), os.fsencode(value)]


@pytest.mark.parametrize(
    ("command", "rest"),
    [
        ("python train.py --lr 1", "train.py --lr 1"),
        ("python3 -u train.py", "train.py"),
        ("/opt/venv/bin/python3.12 train.py", "train.py"),
        ("python -m pkg.train --x", "-m pkg.train --x"),
        ("python -u -m pkg.train", "-m pkg.train"),
        ("train.py --lr 1", "train.py --lr 1"),
        ("pythonista train.py", "pythonista train.py"),
        ("python -c 'print(1)'", "python -c 'print(1)'"),
    ],
)
def test_a_launcher_gets_the_command_without_python(command: str, rest: str) -> None:
    assert without_python(command) == rest


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("--job-name='it'\"'\"'s'", ["--job-name=it's"]),
        ('--comment="a b"', ["--comment=a b"]),
        ("--comment=$(id)", ["--comment=$(id)"]),
        ("-p gpu # the big one", ["-p", "gpu"]),
        ("--comment=a#b", ["--comment=a"]),
        (r"--comment=a\#b", ["--comment=a#b"]),
        (r"--comment='a\b'", ["--comment=ab"]),
        (r"--comment=a\ b", ["--comment=a", "b"]),
        ("--comment=''", ["--comment="]),
    ],
)
def test_words_are_split_as_sbatch_22_05_was_seen_to_do(text: str, words: list[str]) -> None:
    assert split_words(text) == (words, "")


@pytest.mark.parametrize(
    ("variable", "option"),
    [
        ("SBATCH_QOS", "qos"),
        ("SBATCH_JOB_NAME", "job-name"),
        ("SBATCH_GPUS_PER_NODE", "gpus-per-node"),
        ("SBATCH_TIMELIMIT", "time"),
        ("SBATCH_ARRAY_INX", "array"),
        ("SBATCH_MEM_PER_NODE", "mem"),
        ("SBATCH_TIME", None),  # looks like one, and sbatch does not read it
        ("SBATCH_NOSUCH", None),
        ("SLURM_QOS", None),
        ("QOS", None),
    ],
)
def test_a_variable_stands_for_the_option_that_sbatch_says(variable: str, option: str | None) -> None:
    assert option_of(variable) == option
