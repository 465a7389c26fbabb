"""`resil doctor --on-node`: asks from inside a job, on a node as the training gets one.

A small batch script with the `[sbatch]` options of the project asks: can the Python of the training import the guard,
can the job write into the state directory, and does the mail server accept a connection from there? The script writes
its answers into the state directory, so their arrival is the proof that node and login node see the same directory.
"""

from __future__ import annotations

import secrets
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from resilience.alerts.channels.email import EmailSettings, port_of, tls_of
from resilience.alerts.routes import routes_of
from resilience.doctor.diagnosis import Diagnosis, guarded
from resilience.doctor.training import ASK, ASK_YOURSELF, TOPIC, judge_training, question_of
from resilience.errors import ResilError, SubmissionUncertain
from resilience.finding import Verdict
from resilience.job import Job, JobId, Liveness, Presence
from resilience.quantities import format_duration
from resilience.runs.project import Project
from resilience.runs.templates.directives import quote_bash, write_directive
from resilience.schedulers import Scheduler
from resilience.submission import Submission
from resilience.system.files import make_directory, write_atomic

RUN_NAME = ".doctor"
"""In the job's comment. No run has this name, because names do not start with a dot."""

TIME_LIMIT_MIN = 5
POLL_S = (1.0, 10.0)
"""Interval of the queries, from the first to the longest."""

ARRIVAL_S = 15.0
"""How long an answer may take from the node to here after the end of the job: NFS caches directories for seconds."""

MAIL_S = 10.0
NO_DIRECTORY, NOT_WRITABLE = 12, 13
"""Exit codes of the script when it cannot answer by file."""

_OWN = {
    "array", "begin", "comment", "dependency", "error", "exclusive", "input", "job-name", "mail-type", "mail-user",
    "nodelist", "nodes", "ntasks", "ntasks-per-gpu", "ntasks-per-node", "open-mode", "output", "parsable", "signal",
    "test-only", "time",
}  # fmt: skip
"""Options of [sbatch] that the script sets itself, or that would make it wait for more than one node."""

_MAIL = """\
import smtplib, ssl, sys
host, port, tls, ca = sys.argv[1:]
context = None if tls == "none" else ssl.create_default_context(cafile=ca or None)
kind = {"context": context} if tls == "implicit" else {}
with (smtplib.SMTP_SSL if tls == "implicit" else smtplib.SMTP)(host, int(port), timeout=8, **kind) as server:
    server.ehlo()
    if tls == "starttls":
        server.starttls(context=context)
        server.ehlo()
    print(server.noop()[0])
"""
"""Connects as resilience.alerts.channels._email_smtp does, without logging in and without a mail."""


def examine_on_node(project: Project, wait_s: float, report: Callable[[str], None]) -> Iterator[Diagnosis]:
    """Submit the job, wait for its answers and yield a diagnosis of each. The job and its files are removed.

    `report(sentence)` is called when the state of the job changes. Never raises ResilError.
    """
    yield from guarded("node", lambda: _examine(project, wait_s, report))


def _examine(project: Project, wait_s: float, report: Callable[[str], None]) -> Iterator[Diagnosis]:
    scheduler = project.scheduler()
    token = secrets.token_hex(8)
    directory = project.loaded.state_dir / RUN_NAME / token
    make_directory(directory, mode=0o700)
    job_id = None
    try:
        script = directory / "doctor.sbatch"
        write_atomic(script, script_of(project, directory), mode=0o700)
        submission = Submission(token, RUN_NAME, str(script), directory=str(project.loaded.project), fresh=True)
        try:
            job_id = scheduler.submit(submission).id
        except SubmissionUncertain:
            job_id = next((job.id for job in scheduler.find(token)), None)
            raise
        yield from _wait(project, scheduler, job_id, directory, wait_s, report)
    finally:
        if job_id is not None and scheduler.presence(job_id, mine=True).liveness is not Liveness.GONE:
            with suppress(ResilError):
                scheduler.cancel([job_id])
        shutil.rmtree(directory, ignore_errors=True)
        with suppress(OSError):
            directory.parent.rmdir()


def _wait(
    project: Project,
    scheduler: Scheduler,
    job_id: JobId,
    directory: Path,
    wait_s: float,
    report: Callable[[str], None],
) -> Iterator[Diagnosis]:
    clock = project.system.clock
    began, pause_s, said = clock.monotonic(), POLL_S[0], ""
    last: Job | None = None
    ended: float | None = None
    report(f"job {job_id} asks on a node; waiting up to {format_duration(wait_s)}")
    while True:
        if (answers := _answers(directory)) is not None:
            yield from judge_answers(answers, job_id, clock.monotonic() - began)
            return
        presence = scheduler.presence(job_id, mine=True)
        last = presence.job or last
        now = clock.monotonic()
        if presence.liveness is Liveness.GONE or (presence.job is not None and presence.job.state.is_final):
            ended = now if ended is None else ended
            if now - ended >= ARRIVAL_S:
                yield no_answer(job_id, last, directory)
                return
        elif now - began >= wait_s:
            yield _still_waiting(job_id, presence, now - began)
            return
        if (state := _state_text(presence)) != said:
            said = state
            report(f"job {job_id}: {state}")
        clock.sleep(min(pause_s, 1.0 if ended is not None else POLL_S[1]))
        pause_s = min(1.5 * pause_s, POLL_S[1])


def _answers(directory: Path) -> list[list[str]] | None:
    """Return the lines of the script, or None before they are complete."""
    with suppress(OSError):
        if any(path.name == "answer" for path in directory.iterdir()):  # a listing is newer than a cached absence
            text = (directory / "answer").read_text(encoding="utf-8", errors="replace")
            return [line.split("\t") for line in text.splitlines()]
    return None


def _state_text(presence: Presence) -> str:
    job = presence.job
    if job is None:
        return presence.reason
    reason = f" ({job.reason})" if job.reason and job.reason != "None" else ""
    return f"{job.state}{reason}{f' on {job.nodes}' if job.nodes else ''}"


def _still_waiting(job_id: JobId, presence: Presence, waited_s: float) -> Diagnosis:
    text = f"job {job_id} did not answer within {format_duration(waited_s)} and was cancelled: {_state_text(presence)}"
    return Diagnosis("node", Verdict.UNKNOWN, text, "resil doctor --on-node --wait 1h")


def no_answer(job_id: JobId, job: Job | None, directory: Path) -> Diagnosis:
    """Return the diagnosis for a job that has ended and whose answers did not arrive. Pure."""
    where = f"job {job_id}" + (f" on {job.nodes}" if job is not None and job.nodes else "")
    code = job.exit_code.status if job is not None and job.exit_code is not None else None
    why = {
        NO_DIRECTORY: "does not see the state directory",
        NOT_WRITABLE: "cannot write into the state directory",
    }.get(code or 0, f"has ended ({job.state if job is not None else 'unknown'}), and no answer of it arrived")
    advice = "set state_dir under [run] in resil.toml to a directory that all nodes share"
    return Diagnosis("state directory on a node", Verdict.CRITICAL, f"{where} {why}: {directory.parents[1]}", advice)


# ---- the script ---------------------------------------------------------------------------------------------------


def script_of(project: Project, directory: Path) -> str:
    """Return the batch script. Raise TemplateError if a setting cannot be written into one."""
    settings = project.loaded.settings
    question = question_of(settings.run, project.loaded.project)
    lines = [
        "#!/bin/bash",
        *_directives(settings.sbatch),
        "# Written by resil doctor --on-node.",
        f"directory={quote_bash(str(directory))}",
        f'[ -d "$directory" ] || exit {NO_DIRECTORY}',
        f'exec 3>"$directory/part" || exit {NOT_WRITABLE}',
        "exec >/dev/null 2>&1 </dev/null",
        "answer() { { printf '%s\\t' \"$@\"; printf '\\n'; } >&3; }",
        'trap \'answer end; mv "$directory/part" "$directory/answer"\' EXIT',
        'answer node "${SLURMD_NODENAME:-$(uname -n)}"',
        *(f"export {name}={quote_bash(str(value))}" for name, value in settings.environment.items()),
        f"cd {quote_bash(str(project.loaded.project))} || answer project",
        *_mail(project),
    ]
    if isinstance(question, str):
        lines.append(f"answer untold {quote_bash(question)}")
    else:  # in a subshell: the setup may exit, or set traps of its own
        setup = ['trap \'answer setup "$?" "$BASH_COMMAND"\' ERR', *settings.run.setup, "trap - ERR", "set +eu"]
        lines += [ASK, "(", *(setup if settings.run.setup else ()), f"{question.call()} >&3", ")"]
    return "\n".join(lines) + "\n"


def _directives(sbatch: Mapping[str, str | int | bool]) -> Iterator[str]:
    options: dict[str, str | None] = {"job-name": "resil-doctor", "output": "/dev/null"}
    options |= {"time": str(TIME_LIMIT_MIN), "nodes": "1", "ntasks": "1"}
    for key, value in sbatch.items():
        name = str(key).replace("_", "-")
        if name not in _OWN and value is not False:
            options[name] = None if value is True else str(value)
    if options.get("gpus"):  # of the whole job: `a100:64` would need many nodes
        options["gpus"] = f"{str(options['gpus']).rpartition(':')[0]}:1".lstrip(":")
    return (write_directive(name, value) for name, value in options.items())


def email_settings(project: Project) -> EmailSettings | None:
    """Return the settings of the first channel of [alert] that sends mail."""
    for route in routes_of(project).values():
        _, settings = route()
        if isinstance(settings, EmailSettings):
            return settings
    return None


def _mail(project: Project) -> Iterator[str]:
    settings = email_settings(project)
    if settings is None:
        return
    if not settings.host:
        program = settings.sendmail[0] if settings.sendmail else "sendmail"
        yield f'answer sendmail "$(PATH=$PATH:/usr/sbin:/usr/lib type -P {quote_bash(program)})"'
        return
    words = [settings.host.strip("[]"), str(port_of(settings)), tls_of(settings), settings.ca_file]
    python, server = quote_bash(sys.executable), quote_bash(f"{words[0]}:{words[1]}")
    yield f"if [ ! -x {python} ]; then answer mail no-python {python}"
    yield (
        f"elif said=$(timeout {MAIL_S:g} {python} -c {shlex.quote(_MAIL)} {' '.join(map(quote_bash, words))} 2>&1); "
        f"then answer mail accepted {server}"
    )
    yield f"else code=$?; said=${{said##*$'\\n'}}; answer mail failed {server} \"$code\" \"${{said//$'\\t'/ }}\""
    yield "fi"


# ---- judgement ----------------------------------------------------------------------------------------------------


def judge_answers(answers: list[list[str]], job_id: JobId, took_s: float) -> Iterator[Diagnosis]:
    """Yield a diagnosis for each answer of the script. Pure."""
    by_topic = {words[0]: words[1:] for words in reversed(answers)}  # the first of several failures of the setup
    node = by_topic.get("node", ["?"])[0]
    yield Diagnosis("node", Verdict.OK, f"job {job_id} answered from {node} after {format_duration(took_s)}")
    text = f"{node} wrote the answers there, and they arrived here"
    yield Diagnosis("state directory on a node", Verdict.OK, text)
    if "project" in by_topic:
        text = f"{node} does not see it: jobs do not start where resil.toml is"
        yield Diagnosis(
            "project directory", Verdict.CRITICAL, text, "move the project to a directory that all nodes share"
        )
    if "setup" in by_topic:
        code, line = (*by_topic["setup"], "", "")[:2]
        text = f"`{line}` of setup under [run] ended with {code} on {node}"
        yield Diagnosis("setup", Verdict.CRITICAL, text, "correct setup under [run] in resil.toml")
    if "untold" in by_topic:
        yield Diagnosis(TOPIC, Verdict.UNKNOWN, f"{by_topic['untold'][0]}: its Python was not asked", ASK_YOURSELF)
    elif "training" in by_topic:
        yield judge_training(by_topic["training"], f"on {node}")
    elif "setup" not in by_topic:
        text = f"setup under [run] ended the script on {node} before the Python of the training was asked"
        yield Diagnosis(TOPIC, Verdict.CRITICAL, text, "correct setup under [run] in resil.toml")
    if "sendmail" in by_topic:
        yield _judge_sendmail(by_topic["sendmail"][0], node)
    if "mail" in by_topic:
        yield _judge_mail(by_topic["mail"], node)


def _judge_sendmail(program: str, node: str) -> Diagnosis:
    advice = "set host in [channel.email] of resil.toml to a mail server"
    if not program:
        return Diagnosis("mail", Verdict.CRITICAL, f"there is no sendmail program on {node}", advice)
    text = f"{program} is on {node}; whether its mail arrives was not tried"
    return Diagnosis("mail", Verdict.UNKNOWN, text, "resil alert test email")


def _judge_mail(words: list[str], node: str) -> Diagnosis:
    outcome, server, code, said = (*words, "", "", "", "")[:4]
    if outcome == "accepted":
        return Diagnosis("mail", Verdict.OK, f"the mail server {server} accepted a connection from {node}")
    if outcome == "no-python":
        text = f"not asked: {node} has no {server}, the Python of resil; the jobs of cron cannot run there either"
        return Diagnosis("mail", Verdict.CRITICAL, text, "install resil in a directory that all nodes share")
    why = f"no answer within {MAIL_S:g} s" if code == "124" else said
    text = f"the mail server {server} cannot be reached from {node}: {why}"
    advice = (
        "set host in [channel.email] to a server that nodes reach, or deliver from the login node: resil cron install"
    )
    return Diagnosis("mail", Verdict.CRITICAL, text, advice)
