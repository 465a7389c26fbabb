"""What sites call their storage in the environment of a person. Pure words."""

from __future__ import annotations

STORAGE_VARIABLES = (
    "SCRATCH", "WORK", "STORE", "PROJECT", "DATA",  # nearly everywhere
    "JOBSCRATCH", "ALL_CCFRWORK", "ALL_CCFRSTORE", "ALL_CCFRSCRATCH",  # IDRIS
    "CCCSCRATCHDIR", "CCCWORKDIR", "CCCSTOREDIR",  # TGCC
    "PSCRATCH", "CFS", "CSCRATCH",  # NERSC
    "MEMBERWORK", "PROJWORK", "WORLDWORK",  # OLCF
    "STOCKYARD", "CORRAL",  # TACC
    "FAST", "PUBLIC", "CINECA_SCRATCH",  # CINECA
    "PROJECT_HOME", "GROUP_SCRATCH", "GROUP_HOME", "OAK", "L_SCRATCH",  # Stanford, Juelich
    "SCRATCHDIR", "WORKDIR", "PROJECTDIR", "PROJECT_DIR", "TMPDIR", "LOCAL_SCRATCH", "SLURM_TMPDIR", "SCRATCH_LOCAL",
    "HPCVAULT", "VSC_SCRATCH", "VSC_DATA", "BEEOND", "WORK_DIR", "SCRATCH_DIR",  # NHR@FAU, VSC and others
)  # fmt: skip
"""Variables by which sites name their storage, from their user guides."""

OF_A_SESSION = frozenset(
    {"TMPDIR", "JOBSCRATCH", "SLURM_TMPDIR", "LOCAL_SCRATCH", "SCRATCH_LOCAL", "L_SCRATCH", "BEEOND"}
)
"""Those whose value is a job's, or a node's, own: in another job it means another place, or none."""

LASTING = tuple(name for name in STORAGE_VARIABLES if name not in OF_A_SESSION)
"""Those whose value is a person's, on all nodes."""
