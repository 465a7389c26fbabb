"""What the start check of a batch script costs: a thousand attempts behind it, without Python, as whole processes."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure import Claim, Options, Program, Report, Row, Spread, interleave, interpreter_environment
from resilience.layout import FOLDERS
from resilience.runs.templates.script import ScriptSpec, TemplateLibrary, render
from resilience.system.files import shipped_directory

MOST_MS = 30
ATTEMPTS = 1000
CHECK = f"""
resil_act() {{ :; }} # what has arrived meanwhile: needs the heartbeat
resil_check_start
resil_check_breaker
RESIL_ATTEMPT={ATTEMPTS + 1}
resil_check_start
resil_check_breaker counted
"""
"""As resil_begin in slurm_templates/_attempt.bash: before the attempt has a number, and with it."""


def run(options: Options) -> Report:
    """Time the functions of a rendered script and the checks, against reading the functions only, and an empty bash."""
    run_dir, scripts = options.scratch / "run", {}
    for name in FOLDERS:
        (run_dir / name).mkdir(parents=True)
    _write_attempts(run_dir / "attempts")
    library = TemplateLibrary((("shipped", shipped_directory("slurm_templates")),))
    text = render(library, "python", ScriptSpec(run="gpt", run_dir=str(run_dir), command="true"))
    functions = text.partition("\nresil_begin\n")[0]
    for name, commands in {"checked": CHECK, "read": ""}.items():
        scripts[name] = options.scratch / name
        scripts[name].write_text(f"{functions}\n{commands}")
    env = interpreter_environment(SLURM_JOB_ID="7", RESIL_SCHEDULER="local", HOME=str(options.scratch))
    programs = {name: Program(["/bin/bash", str(path)], env) for name, path in scripts.items()}
    programs["empty"] = Program(["/bin/bash", "-c", ":"], env)
    taken = interleave(programs, 20 if options.quick else 200, warm_ups=3)
    checks = Spread(tuple(one - taken["read"].median for one in taken["checked"].values))
    rows = (
        Row("all functions read, both checks", taken["checked"], "bash -c :", taken["empty"]),
        Row("all functions read", taken["read"], "bash -c :", taken["empty"]),
    )
    claims = (
        Claim("the checks alone", checks.median * 1e3, MOST_MS, "ms"),
        Claim("with reading the script", taken["checked"].median * 1e3, MOST_MS, "ms"),
    )
    return Report(f"whole processes, {ATTEMPTS} attempts behind them", rows, claims=claims)


def _write_attempts(directory: Path) -> None:
    for number in range(1, ATTEMPTS + 1):
        head = (
            f'number = {number}\njob_id = {number}\nlabel = "{number}"\nrestart = 0\nhost = "n1"\npid = 7\nstart = 1\n'
        )
        (directory / f"{number:04d}").write_text(head)
        end = f'end = "exited"\nexit_code = 1\ntime = 2\nburnt = {number % 2}\noutside = 0\ndurable = {number}\n'
        (directory / f"{number:04d}.end").write_text(f'{end}why = ""\n')
