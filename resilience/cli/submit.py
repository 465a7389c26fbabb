"""`resil submit`."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from resilience.cli.options import ConfigOption, JsonOption, SchedulerOption, complete_templates, open_project
from resilience.cli.output import clean, patience, print_json
from resilience.cron.late import late_notice
from resilience.errors import UsageError
from resilience.runs import run_jobs, submit
from resilience.runs.project import Project
from resilience.runs.submissions import own_script
from resilience.runs.submit_plan import SubmitRequest

EPILOG = """Examples:

resil submit --array 10: ten jobs of this project's run, one after another.

resil submit train.sbatch --array 10 -- --qos=high: your own script, unchanged, with another sbatch flag.

resil submit train.sbatch -- -- --lr 0.1: arguments of your script that look like options.

resil submit --array 5 --after auto: five more behind what is queued.

resil submit --array 10 -n: show the script and the command, and do nothing."""

_SBATCH_ARGS = "resil.sbatch_args"
_SCRIPT_ARGS = "resil.script_args"


class _SubmitCommand(TyperCommand):
    """Keeps what follows `--` apart: it is for sbatch; and what follows a second `--`: it is for the script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        position = args.index("--") if "--" in args else len(args)
        _refuse_empty(args[:position])
        rest = args[position + 1 :]
        second = rest.index("--") if "--" in rest else len(rest)
        ctx.meta[_SBATCH_ARGS] = tuple(rest[:second])
        ctx.meta[_SCRIPT_ARGS] = tuple(rest[second + 1 :])
        return super().parse_args(ctx, args[:position])


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(cls=_SubmitCommand, epilog=EPILOG)
def command(
    context: typer.Context,
    script: Annotated[
        str,
        typer.Argument(
            metavar="[SCRIPT]", help="Your own batch script. Default: the run's template.", show_default=False
        ),
    ] = "",
    script_args: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="Arguments of your script.", show_default=False)
    ] = None,
    array: Annotated[
        str, typer.Option("--array", "-a", metavar="N|EXPR", help="10: ten jobs, one after another. Or 1-10%2, 0-20:5.")
    ] = "",
    chain: Annotated[
        int | None, typer.Option("--chain", metavar="N", help="N single jobs, each behind the one before.")
    ] = None,
    after: Annotated[
        str, typer.Option("--after", metavar="JOB|auto", help="Queue behind a live job; auto: the run's newest.")
    ] = "",
    dependency: Annotated[
        str, typer.Option("--dependency", "-d", metavar="EXPR", help="As sbatch; a bare id is written afterany:ID.")
    ] = "",
    exclude: Annotated[str, typer.Option("--exclude", "-x", metavar="NODES", help="Nodes never to use.")] = "",
    signal: Annotated[
        str, typer.Option("--signal", metavar="B:SIG@SEC", help="Signal before the time limit, as sbatch.")
    ] = "",
    time: Annotated[str, typer.Option("--time", "-t", metavar="TIME", help="Time limit of each job, as sbatch.")] = "",
    begin: Annotated[str, typer.Option("--begin", "-b", metavar="TIME", help="Not before this, as sbatch.")] = "",
    hold: Annotated[bool, typer.Option("--hold", "-H", help="Queue it held.")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A variable of the template. Repeatable.")
    ] = None,
    template: Annotated[
        str, typer.Option("--template", metavar="NAME", help="See: resil templates.", autocompletion=complete_templates)
    ] = "",
    run: Annotated[str, typer.Option("--run", metavar="NAME", help="Name of the run.")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Show the script and the exact command; do nothing.")
    ] = False,
    test_only: Annotated[
        bool, typer.Option("--test-only", help="Ask the scheduler when it would start; queue nothing.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Queue although the run is alive, killed or finished.")
    ] = False,
    parsable: Annotated[bool, typer.Option("--parsable", help="Write only the job ids.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """Queue the run as a chain of jobs.

    Flags for sbatch go after --, arguments of your own script that look like options after a second --.
    """
    if parsable and as_json:
        raise UsageError("--parsable and --json are two forms of one answer", hint="choose one of them")
    project = open_project(config, scheduler)
    own = Path(script) if script else None
    name = run or project.default_run(own)
    request = SubmitRequest(
        run=name,
        script=own,
        script_args=(*(script_args or ()), *context.meta.get(_SCRIPT_ARGS, ())),
        array=array,
        chain=_chain(chain),
        after=None,
        dependency=dependency,
        exclude=exclude,
        signal=signal,
        time=time,
        begin=begin,
        hold=hold,
        template=template,
        variables=_variables(set_ or []),
        extra_args=context.meta.get(_SBATCH_ARGS, ()),
        force=force,
    )
    if after:
        from dataclasses import replace

        request = replace(request, after=run_jobs.resolve_after(project, name, after))
    prepared = submit.prepare(project, request)
    for finding in prepared.findings:
        _say(f"warning: {finding.message}" + (f"\n  try: {finding.hint}" if finding.hint else ""))
    if late := late_notice(project):
        _say(f"warning: {late}")
    if dry_run:
        _show_plan(project, prepared, as_json=as_json)
        return
    if test_only:
        print(submit.test_only(project, prepared))
        return
    with patience("the scheduler is slow to answer; nothing is queued twice, so let it try"):
        result = submit.perform(project, prepared, progress=_say)
    if parsable:
        print("\n".join(map(str, result.ids)))
    elif as_json:
        print_json(
            "submit",
            {
                "run": result.run,
                "run_dir": str(result.directory),
                "scheduler": project.scheduler_name(),
                "job_ids": [str(job_id) for job_id in result.ids],
                "notes": list(result.notes),
                "recovered": result.recovered,
            },
        )
    else:
        _tell(project, prepared, result)


_VALUE_OPTIONS = frozenset({"--array", "--after", "--dependency", "--exclude", "--signal", "--time", "--begin"}) | {
    *("--run", "--template", "-a", "-d", "-x", "-t", "-b"),
}
"""Options that must be given something."""


def _refuse_empty(args: list[str]) -> None:
    """`--after "$JOB"` with an unset variable must not mean: behind nothing."""
    for before, word in zip(["", *args], args, strict=False):
        name, equals, value = word.partition("=")
        option = before if word == "" else name if equals and not value else ""
        if option in _VALUE_OPTIONS:
            raise UsageError(f"{option} is given nothing", hint="is a shell variable empty? or leave it out")


def _chain(chain: int | None) -> int:
    if chain is not None and chain < 1:
        raise UsageError(f"--chain {chain} would queue nothing", hint="--chain 5 queues five")
    return chain or 0


def _variables(pairs: list[str]) -> dict[str, str]:
    variables = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key.strip().isidentifier():
            raise UsageError(f"--set {pair!r} is not KEY=VALUE", hint="for instance --set lr=1e-4")
        variables[key.strip()] = value
    return variables


def _show_plan(project: Project, prepared: submit.Prepared, *, as_json: bool) -> None:
    lines = submit.command_lines(project, prepared)
    if as_json:
        argv = [list(project.scheduler().command_line(submission)) for submission in prepared.submissions]
        content = {"run": prepared.directory.run, "script": prepared.script, "argv": argv}
        print_json("submit-plan", content)
        return
    print(prepared.script.rstrip("\n"))
    print()
    for line in lines:
        print(f"# would run: {line}")


def _tell(project: Project, prepared: submit.Prepared, result: submit.SubmitResult) -> None:
    """What was queued, what happens next, how to stop it."""
    array = prepared.plan.options.get("array")
    ids = ", ".join(map(str, result.ids))
    if array:
        from resilience.submission import ArrayExpression

        expression = ArrayExpression.parse(array)
        jobs = "1 job" if expression.count == 1 else f"{expression.count} jobs"
        how = ", one after another" if expression.throttle == 1 and expression.count > 1 else ""
        print(f"queued run {result.run}: array {ids} of {jobs}{how}")
    elif len(result.ids) > 1:
        print(f"queued run {result.run}: {len(result.ids)} jobs, each behind the one before: {ids}")
    else:
        print(f"queued run {result.run}: job {ids}")
    if result.recovered:
        print("  the scheduler did not answer at first; the job was found by its token, and it is there once")
    for note in result.notes:
        print(f"  note: {clean(note)}")
    if "dependency" in prepared.plan.options:
        print(f"  starts  {prepared.plan.options['dependency']}")
    print(f"  state   {result.directory}")
    print(f"  watch   resil status {result.run}; resil logs {result.run} -f")
    save_first = "" if own_script(prepared.directory) else f"resil kill {result.run} (saves first); "
    print(f"  stop    {save_first}resil cancel {result.run} (at once)")


def _say(text: str) -> None:
    with suppress(BrokenPipeError):  # nobody listens: no reason to queue nothing
        print(f"resil: {text}", file=sys.stderr, flush=True)
