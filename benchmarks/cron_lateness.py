"""How late ticks are over the same slots on one real SLURM: our daemon, our pulses, and the script they replace.

The script is the known workaround, word for word but for its period: a job that first submits itself again with
`--begin=now+X`, and then each `*.slurm` of a directory. Its slots are its first tick and every period after that: what
a person who wrote X expects. All three run side by side, so that what else the machine does hits each of them alike.
"""

from __future__ import annotations

import time

from benchmarks.measure import BenchmarkError, Claim, Options, Report, Row, Spread
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.cron_site import Site

PERIOD_S = 5
SLOTS, QUICK_SLOTS = 30, 6
PATIENCE = 4.0
"""So many times the planned time is waited for."""
NAN = float("nan")

ORIGINAL = """\
#!/bin/bash
#SBATCH --job-name=cron-hourly
#SBATCH --ntasks=1
#SBATCH --time=00:30:00
#SBATCH --output=/dev/null
date +%s.%N >>$WORK/ticks
cd $WORK
sbatch --begin=now+PERIODseconds cron-hourly.slurm
cd cron.hourly
for f in *.slurm; do
  sbatch "$f"
done
"""
CHILD = "#!/bin/bash\n#SBATCH --output=/dev/null\n#SBATCH --mem=100M\ntrue\n"
CRONTAB = f"@every {PERIOD_S}s /bin/true # resil: name=beat catch_up=once\n"


def run(options: Options) -> Report:
    """Let all three tick, and compare. Where there is no SLURM, say so."""
    slots = QUICK_SLOTS if options.quick else SLOTS
    title = f"lateness over {slots} slots of {PERIOD_S} s on one SLURM"
    if reasons := Cluster.requirements():
        return Report(title, notes=(f"nothing was measured: {'; '.join(reasons)}",))
    with Cluster(nodes=3) as cluster:
        user = cluster.users[0]
        daemon = Site(cluster, "daemon", user, limit_s=3600, crontab=CRONTAB).make()
        pulse = Site(cluster, "pulse", user, mode="pulse", pulse_s=PERIOD_S, crontab=CRONTAB).make()
        for site in (daemon, pulse):
            site.install()
        original = _start_original(cluster, user)
        until = time.monotonic() + PATIENCE * slots * PERIOD_S
        while min(len(daemon.runs()), len(pulse.runs()), len(original.ticks)) < slots + 1:
            if time.monotonic() > until:
                raise BenchmarkError(f"too few ticks: {original.ticks}, {daemon.log()[-500:]}, {pulse.log()[-500:]}")
            time.sleep(0.5)
        late = {name: _lateness(site, slots) for name, site in (("daemon", daemon), ("pulse", pulse))}
        first = original.ticks[0]
        drift = Spread(
            tuple(tick - first - number * PERIOD_S for number, tick in enumerate(original.ticks))[1 : slots + 1]
        )
        jobs = {name: len(site.rows()) for name, site in (("daemon", daemon), ("pulse", pulse))}
        submitted = len([line for line in cluster.squeue("%j", "-u", user) if "resil-cron" not in line])
    return Report(
        title,
        (
            Row("the daemon's ticks", late["daemon"], "the script that submits itself", drift, 0.1),
            Row("pulses", late["pulse"], "the script that submits itself", drift, 0.5),
        ),
        (
            "lateness: when the run began, less its slot; the script's drifts, so its median grows with the slots",
            f"jobs meanwhile: daemon {jobs['daemon']}, pulses {jobs['pulse']}, the script with one drop-in {submitted}",
        ),
        (
            Claim(f"the last of {slots} ticks of the script is late by", drift.values[-1], NAN, "s"),
            Claim(f"the last of {slots} of the daemon is late by", late["daemon"].values[-1], PERIOD_S, "s"),
            Claim(f"the last of {slots} pulses is late by", late["pulse"].values[-1], PERIOD_S, "s"),
        ),
    )


def _lateness(site: Site, slots: int) -> Spread:
    return Spread(tuple(run.started - run.slot for run in site.runs() if run.started is not None)[1 : slots + 1])


class _Original:
    def __init__(self, cluster: Cluster, user: str) -> None:
        self._site = Site(cluster, "original", user)

    @property
    def ticks(self) -> list[float]:
        path = self._site.directory / "ticks"
        return [float(line) for line in path.read_text().split()] if path.exists() else []

    def start(self) -> None:
        self._site.write("cron-hourly.slurm", ORIGINAL.replace("PERIOD", str(PERIOD_S)))
        self._site.write("cron.hourly/child.slurm", CHILD)
        command = ["sbatch", "--mem=100M", "cron-hourly.slurm"]
        directory = self._site.directory
        self._site.cluster.run(command, self._site.user, directory, env={"WORK": str(directory)}, check=True)


def _start_original(cluster: Cluster, user: str) -> _Original:
    original = _Original(cluster, user)
    original.start()
    return original
