"""Finds the line of a batch script that starts the training, and the template that starts it the same way. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

_PROGRAMS = (
    ("container", r"(?:apptainer|singularity)\s+(?:exec|run)\b|\bsrun\b.*--container-(?:image|name)\b"),
    ("accelerate", r"accelerate\s+launch\b|-m\s+accelerate\.commands\.launch\b"),
    ("deepspeed", r"deepspeed(?=\s)|-m\s+deepspeed\.launcher\.\w+"),
    ("torchrun", r"torchrun(?=\s)|-m\s+torch\.distributed\.(?:run|launch)\b"),
    ("srun", r"(?:srun|mpirun|mpiexec)(?=\s)"),
    ("python", r"python[\d.]*(?=\s)"),
)
_TEMPLATES = tuple((name, re.compile(rf"(?<![\w.-])(?:{pattern})")) for name, pattern in _PROGRAMS)
_WRAPPER = (
    r"(?:(?:conda|mamba|micromamba|poetry|uv|pixi|pipenv|hatch|pdm)\s+run|nsys\s+profile|numactl|taskset|stdbuf|nice|env)"
    r"\s(?:[^;&|<>]*?\s)?"
)
"""Programs that start the rest of their command line in another environment."""
_PYTHON = re.compile(rf"(?<![\w./~=-])(?:{_WRAPPER})?(?P<python>(?<![\w.-])(?:[\w./~${{}}-]*/)?python[\d.]*\s.*)")
_IN_FRONT = re.compile(rf"(?<![\w./~=-]){_WRAPPER}.*")
_TRAINING = re.compile(r"(?:^|\s)(-m\s+(?!torch\.|accelerate\.|deepspeed\.)[\w.]+.*|[\w./~${}\"-]+\.py\b.*)")
_PER_NODE = re.compile(r"--(?:nproc[-_]per[-_]node|num_gpus)(?:=|\s+)([0-9]{1,4})(?=\s)")
_IN_ALL = re.compile(r"(?<=\s)(?:-np?\s*|--(?:ntasks|np|num_processes)(?:=|\s+))[0-9]{1,9}(?=\s)")
_OPTION = re.compile(r"(?<=\s)--(?P<name>[A-Za-z][\w-]*)(?:(?:=|\s+)(?!-)\S+)?(?=\s)")
_OWN_OPTION = re.compile(
    r"nproc_per_node|nnodes|node_rank|standalone|use_env|rdzv_(?:id|backend|endpoint)|master_(?:addr|port)"
    r"|num_(?:processes|machines|gpus|nodes)|machine_rank|main_process_(?:ip|port)|multi_gpu|hostfile|ntasks|np"
)
"""The options of launchers that resil's templates set, or that have a note of their own."""
_UNFINISHED = re.compile(r";\s*(?:done|fi|esac|\})\s*(?:;|$)|(?<!<)<<(?!<)")
"""The end of a compound command that began before the training, or a here-document."""
_ENDING = re.compile(r"\s*&\s*$")


@dataclass(frozen=True, slots=True)
class Launch:
    """The start of a training in a batch script.

    Attributes:
        line: as written, with its continuation lines joined.
        template: `python`, `srun`, `torchrun`, `accelerate`, `deepspeed` or `container`.
        command: the training without its launcher, as `[run] command` needs it; empty if it was not found.
        per_node: the processes per node that the launcher was given as a number; None: it was not.
        in_all: the launcher's option for the number of all processes, as written; empty: none.
        wrapper: the program in front of the launcher, which the template does not start: `conda run -n env`; or empty.
        left_out: the other options of torchrun, accelerate or deepspeed, which the template does not know; or empty.
    """

    line: str
    template: str
    command: str
    per_node: int | None = None
    in_all: str = ""
    wrapper: str = ""
    left_out: str = ""


def launches_of(script: str) -> tuple[Launch, ...]:
    """Return the lines of a script that start Python or a launcher, in their order."""
    return tuple(launch for line in _commands(script) if (launch := parse_launch(line)) is not None)


def training_of(script: str) -> Launch | None:
    """Return the launch that is the training, or None.

    It is the last one of a launcher with a Python file or module, else the last one of Python, else the last: plain
    Python before and after `srun python train.py` prepares and uploads.
    """
    found = launches_of(script)
    trainings = [one for one in reversed(found) if one.command]
    launched = (one for one in trainings if one.template != "python")
    return next(launched, trainings[0] if trainings else found[-1] if found else None)


def parse_launch(line: str) -> Launch | None:
    """Return the launch of a command line; None if it starts neither Python nor a launcher.

    `srun torchrun train.py` is of torchrun: its template has the srun.
    """
    starts = ((name, match) for name, pattern in _TEMPLATES if (match := pattern.search(line)) is not None)
    template, found = next(starts, ("", None))
    if found is None:
        return None
    bare = _ENDING.sub("", line)
    if template in ("python", "srun", "container"):
        match = _PYTHON.search(bare)
        command = match[0] if match is not None and _runs_a_file(match["python"]) else ""
    else:
        match = _TRAINING.search(bare)
        command = f"python {match[1]}" if match is not None else ""
    launcher = bare[: match.start()] + " " if match is not None else ""
    is_outside = template in ("torchrun", "accelerate", "deepspeed")
    in_front = _IN_FRONT.search(bare[: found.start()]) if is_outside else None
    others = [
        match[0] for match in _OPTION.finditer(launcher if is_outside else "", found.end())
        if not _OWN_OPTION.fullmatch(match["name"].replace("-", "_"))
    ]  # fmt: skip
    per_node, in_all = _PER_NODE.search(launcher), _IN_ALL.search(launcher)
    return Launch(
        line,
        template,
        command.strip() if _is_whole(command) else "",
        per_node=int(per_node[1]) if per_node is not None else None,
        in_all=in_all[0] if in_all is not None else "",
        wrapper=in_front[0].strip() if in_front is not None else "",
        left_out=" ".join(others),
    )


def _runs_a_file(command: str) -> bool:
    """Return whether Python is given a file or a module: not `python -c ...`, `python -` or `python -V`."""
    words = command.split()[1:]
    return any(not word.startswith("-") for word in words) and words[0] not in ("-c", "-")


def _is_whole(command: str) -> bool:
    """Return whether a shell can run it: the text may come from within `bash -c '...'` or `for ...; do ...; done`."""
    try:
        shlex.split(command)
    except ValueError:
        return False
    return command.count("(") == command.count(")") and _UNFINISHED.search(command) is None


def _commands(script: str) -> Iterator[str]:
    """Yield the commands of a script, with continuation lines joined and without comments."""
    for line in re.sub(r"\\\n\s*", "", script).splitlines():
        text = line.strip()
        if text and not text.startswith("#"):
            yield re.sub(r"\s+#\s.*$", "", text)
