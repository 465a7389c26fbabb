"""DeepSpeed: the files of all ranks, seen from their names; and `latest`, which names a directory.

Source: deepspeed/runtime/engine.py, `_get_ckpt_name`, `_get_zero_ckpt_prefix` and `save_checkpoint` (August 2026). The
number of ranks is in pickles only: a gap is found, but not that the last rank of the only kind of file is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from resilience.checkpoints.formats import Content, Fault, first_gap, joined, missing

_KINDS = {
    "optimizer": re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt"),
    "zero3": re.compile(r"zero_pp_rank_(\d+)_mp_rank_(\d+)_model_states\.pt"),
    "model": re.compile(r"mp_rank_(\d+)_model_states\.pt"),
}
_STEP = re.compile(r"global_step\d+")


def check(content: Content) -> Iterator[Fault]:
    """Yield the faults of directories with `..._states.pt` of ranks, and of `latest`."""
    for directory, names in content.directories.items():
        if "latest" in names:
            yield from _check_latest(content, directory)
        found: dict[str, dict[tuple[int, ...], str]] = {kind: {} for kind in _KINDS}
        for name in names:
            for kind, pattern in _KINDS.items():
                if match := pattern.fullmatch(name):
                    found[kind][tuple(map(int, match.groups()))] = name
        # A kind has no gap, and the ranks that the other kinds have.
        others: dict[str, set[tuple[int, ...]]] = {
            "optimizer": set(found["zero3"]),
            "zero3": set(found["optimizer"]),
            "model": {(model_rank,) for _, model_rank in found["optimizer"]},
        }
        for kind, named in found.items():
            ranks = set(named) | others[kind] if named else set()
            gap = first_gap(ranks) or min(ranks - set(named), default=None)
            if gap is not None:
                example = next(iter(named.values()))
                yield missing(joined(directory, _renumbered(example, gap)), f"a file for each rank, as {example}")


def _renumbered(name: str, numbers: tuple[int, ...]) -> str:
    """Return the name of other ranks: `mp_rank_03_model_states.pt`, given `mp_rank_00_model_states.pt` and 3."""
    left = iter(numbers)
    return re.sub(r"(?<=rank_)\d+", lambda match: f"{next(left):0{len(match[0])}d}", name)


def _check_latest(content: Content, directory: str) -> Iterator[Fault]:
    path = joined(directory, "latest")
    tag = content.read(path, 100).decode("utf-8", "replace").strip()
    is_ours = _STEP.fullmatch(tag) or any(name.endswith("_model_states.pt") for name in content.sizes)
    if is_ours and joined(directory, tag) not in content.directories:
        yield missing(joined(directory, tag), f"a directory by {path}")
