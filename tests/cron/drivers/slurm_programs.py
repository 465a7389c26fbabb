"""squeue, sbatch, scancel, scontrol and sinfo as one small bash program, with a queue that is a file.

A line of `queue` is what squeue shows: id|STATE|start|end|node|reason|comment. `PROGRAM.fault` is run first: `exit 1`,
`sleep 1000`, or for sbatch `lost=1`: it takes the job, and its answer is lost.
"""

from __future__ import annotations

from pathlib import Path

PROGRAM = r"""#!/bin/bash
here=$(cd "$(dirname "$0")" && pwd) && cd "$here" || exit 1
me=${0##*/} lost=''
printf '%s %s\n' "$me" "$*" >>calls
exec 9>>lock && flock 9
[[ ! -e $me.fault ]] || . "./$me.fault"
case $me in
  squeue) cat queue ;;
  sinfo) cat limits 2>/dev/null || : ;;
  sbatch)
    id=$((101 + $(cat submitted 2>/dev/null | wc -l)))
    printf '%s\n' "$*" >>submitted
    comment='' reason=Priority
    for word; do
      case $word in
        --comment=*) comment=${word#*=} ;;
        --begin=*) reason=BeginTime ;;
        --dependency=*) [[ $(<queue) != *"|RUNNING|"* ]] || reason=Dependency ;;
      esac
    done
    echo "$id|PENDING|N/A|N/A||${REASON:-$reason}|$comment" >>queue
    [[ -z $lost ]] || { echo 'sbatch: error: Batch job submission failed: Socket timed out' >&2; exit 1; }
    echo "$id" ;;
  scancel)
    for id; do
      case $* in
        *--signal=*) ;;
        *--state=PENDING*) sed -i "s/^$id|PENDING|\([^|]*\)|[^|]*/$id|CANCELLED|\1|$(date +%s)/" queue ;;
        *) sed -i "s/^$id|[A-Z]*|\([^|]*\)|[^|]*/$id|CANCELLED|\1|$(date +%s)/" queue ;;
      esac
    done ;;
  scontrol)
    [[ $2 =~ jobid=([0-9]+) ]] && id=${BASH_REMATCH[1]} && text=${3#comment=}
    awk -F'|' -v OFS='|' -v id="$id" -v text="$text" '$1 == id { $7 = text } 1' queue >new && cat new >queue ;;
esac
"""
NAMES = ("squeue", "sbatch", "scancel", "scontrol", "sinfo")
REFUSED = "echo 'sbatch: error: Batch job submission failed: Job violates accounting/QOS policy' >&2; exit 1"
DOWN = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"


class Programs:
    """SLURM's programs in a directory, and their queue."""

    def __init__(self, directory: Path, names: tuple[str, ...] = NAMES) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        for name in names:
            (directory / name).write_text(PROGRAM)
            (directory / name).chmod(0o755)
        if not (directory / "queue").exists():
            self.queue()

    def queue(self, *rows: str) -> None:
        """Set the queue."""
        (self.directory / "queue").write_text("".join(f"{row}\n" for row in rows))

    @property
    def rows(self) -> list[list[str]]:
        """The queue, with the fields of each job."""
        return [line.split("|") for line in (self.directory / "queue").read_text().splitlines()]

    def alive(self, state: str = "") -> list[int]:
        """The ids of those that wait or run."""
        return [int(row[0]) for row in self.rows if row[1] in ((state,) if state else ("PENDING", "RUNNING"))]

    def calls(self, name: str = "sbatch") -> list[str]:
        """The arguments of each call."""
        path = self.directory / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.partition(" ")[2] for line in lines if line.startswith(f"{name} ")]

    @property
    def submitted(self) -> list[str]:
        """The arguments of each accepted sbatch."""
        path = self.directory / "submitted"
        return path.read_text().splitlines() if path.exists() else []

    def change(self, job_id: int, **fields: str) -> None:
        """Change fields of a job: state, start, end, node, reason, comment."""
        names = ["id", "state", "start", "end", "node", "reason", "comment"]
        rows = [dict(zip(names, row, strict=True)) for row in self.rows]
        self.queue(*("|".join({**row, **(fields if row["id"] == str(job_id) else {})}.values()) for row in rows))

    def fault(self, name: str, text: str) -> None:
        """Have a program do that first."""
        (self.directory / f"{name}.fault").write_text(text + "\n")

    def mend(self, name: str) -> None:
        (self.directory / f"{name}.fault").unlink()
