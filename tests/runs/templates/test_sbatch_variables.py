"""Which option an `SBATCH_*` variable sets, as sbatch(1) lists them under INPUT ENVIRONMENT VARIABLES."""

from __future__ import annotations

import pytest

from resilience.runs.templates.directives import option_of


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
