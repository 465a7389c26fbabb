"""Parses the text of scontrol and sinfo, and SLURM's JSON: jobs, configuration, partitions, nodes, ping. Pure.

`scontrol --oneliner` writes `Key=Value` words, but values may contain blanks, and a job's name may contain anything,
even `JobState=COMPLETED` or a newline. Free values are delimited by the fixed words that scontrol writes after them.

JSON has two forms. 22.05 writes `"job_state": "RUNNING"`, `"time_limit": 10` and a raw wait status; 23.11 and
later write `["RUNNING"]`, `{"set": true, "infinite": false, "number": 10}` and an object. Times are seconds since the
epoch in both. An empty list of jobs is no evidence, with or without `errors`: 24.11 writes both empty when the
controller is down.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from resilience.cluster import ClusterConfig, Node
from resilience.errors import NotSupported, QuantityError, SchedulerUnavailable
from resilience.job import ExitCode, Job, JobId, JobState
from resilience.schedulers._slurm.queue import (
    ROW_END,
    SEPARATOR,
    count_tasks,
    known,
    parse_count,
    parse_limit,
    parse_state,
    parse_time,
    parse_wait_status,
    unexpected,
)

_RECORD = re.compile(
    r"JobId=(?P<raw>\d+) "
    r"(?:ArrayJobId=(?P<array>\d+) ArrayTaskId=(?P<task>\S+) (?:ArrayTaskThrottle=(?P<throttle>\d+) )?)?"
    r"(?:HetJobId=(?P<het>\d+) HetJobOffset=\d+ )?"
    # the name, then words that only scontrol writes in this form
    r"JobName=(?P<name>.*?) (?:HetJobIdSet=\S* )?UserId=(?P<user>\S+?)\(\d+\) GroupId=\S+ MCS_label=\S+ Priority=\d+ "
    r"(?P<middle>.*?) ?JobState=(?P<state>[A-Z_]+) Reason=(?P<reason>.*?) (?:FailedNode=\S* )?"
    r"Dependency=(?P<dependency>\S*) Requeue=\d "
    r"(?P<facts>.*?)Command=(?P<tail>.*)",
    re.DOTALL,
)
_WORD = re.compile(r"(\w[\w/:]*)=(\S*)")
_TAIL = re.compile(r"^(?P<command>.*?)(?: SubmitLine=.*?)? WorkDir=(?P<rest>.*)$", re.DOTALL)
_OUTPUT = re.compile(
    r" StdErr=.*? StdIn=.*? StdOut=(?P<stdout>.*?)"
    r"(?: (?:Power|Tres\w+|Mail\w+|Mem\w+|Cron\w+|Kill\w+|Ntasks\w+|Batch\w*|Burst\w*)=.*)?\s*$",
    re.DOTALL,
)
_COMMENT = re.compile(r" Comment=(?P<comment>.*?) {1,2}$", re.DOTALL)
_CPU_TIME = re.compile(r"[^|]+\|(?:(\d+)-)?(\d+):(\d\d):(\d\d(?:\.\d+)?)\|(\d+)")
_UNRESOLVED_TASK = "4294967294"
"""The value of %a in the path of a record that is not a single task: NO_VAL, 0xfffffffe."""


def parse_jobs(text: str) -> tuple[Job, ...]:
    """Parse `scontrol --oneliner show job`; return its records in SLURM's order.

    Raise SchedulerUnavailable if there is no record or an invalid one.
    """
    return tuple(_job(match) for match in _matches(text))


def parse_settings(text: str) -> tuple[Mapping[str, str], ...]:
    """Parse the same text; return each record's JobState and the values that `update` changes, to verify a change."""
    names = {"ExcNodeList", "TimeLimit", "EndTime", "StartTime"}
    found = []
    for match in _matches(text):
        facts = {k: v for k, v in _WORD.findall(match["facts"]) if k in names}
        named = {"JobState": match["state"], "ArrayTaskThrottle": match["throttle"] or "0"}
        found.append(facts | named | {"Dependency": match["dependency"]})
    return tuple(found)


def _split(text: str, opening: str) -> Iterator[str]:
    """Yield records; a newline in a name does not end a record."""
    if not text.startswith(opening) or not text.endswith("\n"):
        raise unexpected("scontrol", text[:200] or "nothing at all")
    starts = [match.start() for match in re.finditer(rf"^{re.escape(opening)}\S+ ", text, re.MULTILINE)]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        yield text[start:end].rstrip("\n")


def _matches(text: str) -> Iterator[re.Match[str]]:
    """Yield jobs. Incomplete pieces are joined, because a line of a name may look like the start of a record."""
    held = ""
    for piece in _split(text, "JobId="):
        held = f"{held}\n{piece}" if held else piece
        if match := _RECORD.fullmatch(held):
            yield match
            held = ""
    if held:
        raise unexpected("scontrol", held)


def _job(match: re.Match[str]) -> Job:
    words = dict(_WORD.findall(f"{match['middle']} {match['facts']}"))
    tail = _TAIL.match(match["tail"])
    output = tail and _OUTPUT.search(tail["rest"])
    if tail is None or output is None:
        raise unexpected("scontrol", match[0])
    comment = _COMMENT.search(tail["rest"][: output.start()] + " ")
    array, task = match["array"], match["task"] or ""
    single = task.isdigit()
    try:
        number = int(array or match["het"] or match["raw"])
        tasks = "" if single or not array else task
        state = parse_state(match["state"])
        pending_end = state.is_waiting and "StartTime" in words and parse_time(words["StartTime"]) is None
        return Job(
            id=JobId(number, int(task) if single else None),
            raw_id=int(match["raw"]),
            name=match["name"],
            state=state,
            user=match["user"],
            # scontrol writes blanks in a reason as underscores; squeue does not
            reason="" if match["reason"] == "None" else match["reason"].replace("_", " "),
            tasks=tasks,
            task_count=count_tasks(tasks),
            partition=known(words["Partition"]),
            account=known(words.get("Account", "")),
            qos=known(words.get("QOS", "")),
            nodes=known(words.get("NodeList", "")),
            node_count=parse_count(words["NumNodes"]),
            excluded=known(words.get("ExcNodeList", "")),
            submit_time=parse_time(words["SubmitTime"]),
            start_time=parse_time(words["StartTime"]),
            end_time=None if pending_end else parse_time(words["EndTime"]),
            time_limit_s=parse_limit(words["TimeLimit"]),
            dependency=known(match["dependency"]),
            comment=known(comment["comment"]) if comment else "",
            command=known(tail["command"]),
            stdout=known(output["stdout"]).replace(_UNRESOLVED_TASK, "%a"),
            restarts=int(words["Restarts"]),
            exit_code=parse_wait_status(words["ExitCode"]) if state.is_final else None,
        )
    except (KeyError, ValueError, QuantityError):
        raise unexpected("scontrol", match[0]) from None


def parse_ping(text: str) -> bool:
    """Return whether `scontrol ping` shows a controller that is up: the primary, or a backup."""
    return re.search(r"^Slurmctld\(\S+\) at .* is UP\s*$", text, re.MULTILINE) is not None


def parse_config(config: str, partitions: str) -> ClusterConfig:
    """Parse `scontrol show config` and `scontrol --oneliner show partition`.

    Keys that the release does not have are None. Raise SchedulerUnavailable for an invalid text.
    """
    raw = parse_raw_config(config)
    states, default = parse_partitions(partitions)
    storage = raw.get("AccountingStorageType")
    cron = raw.get("ScronParameters", "(null)")
    preempt = known(raw.get("PreemptType", ""))
    requeue = raw.get("JobRequeue")
    return ClusterConfig(
        scheduler="slurm",
        version=raw["SLURM_VERSION"],
        cluster=known(raw.get("ClusterName", "")),
        accounting=None if storage is None else known(storage).removeprefix("accounting_storage/") not in {"", "none"},
        scrontab="enable" in cron.split(",") or "enable=true" in cron,
        job_requeue=None if requeue is None else requeue in {"1", "YES", "Yes"},
        kill_wait_s=_number(raw.get("KillWait")),
        message_timeout_s=_number(raw.get("MessageTimeout")),
        over_time_limit_min=_number(raw.get("OverTimeLimit")),
        proctrack=known(raw.get("ProctrackType", "")).removeprefix("proctrack/"),
        max_array_size=_number(raw.get("MaxArraySize")),
        preempt_type=preempt.removeprefix("preempt/") or "none",
        preempt_mode=known(raw.get("PreemptMode", "")),
        send_user_signal="send_user_signal" in raw.get("PreemptParameters", "").split(","),
        partitions=states,
        default_partition=default,
        whole_nodes=parse_whole_nodes(partitions, raw.get("SelectType", "")),
        raw=raw,
    )


def parse_cpu_seconds(text: str) -> float:
    """Return the CPU seconds in an answer of sstat: the average of a step's tasks times their number, over all steps.

    Source: sstat(1), AveCPU as `[DD-]HH:MM:SS`. Without a JobAcctGatherType, sstat 22.05 writes
    `213503982334-14:25:51` and 0 tasks. Raise NotSupported then, SchedulerUnavailable for an answer of another form.
    """
    total, measured = 0.0, False
    for row in text.split():
        match = _CPU_TIME.fullmatch(row)
        if match is None:
            raise unexpected("sstat", row)
        days, hours, minutes, seconds, tasks = (float(part or 0) for part in match.groups())
        measured = measured or tasks > 0
        total += tasks * (days * 86400 + hours * 3600 + minutes * 60 + seconds)
    if not measured:
        raise NotSupported("SLURM does not measure the CPU time of jobs here (JobAcctGatherType in slurm.conf)")
    return total


def parse_raw_config(text: str) -> Mapping[str, str]:
    """Parse `scontrol show config` to its unconverted keys and values; `asked_at` is the time of the query.

    Raise SchedulerUnavailable for an invalid text.
    """
    raw = {}
    if opening := re.match(r"Configuration data as of (\S+)", text):
        raw["asked_at"] = opening[1]
    for line in text.splitlines():
        key, found, value = line.partition(" = ")
        if found and " " not in key.strip():
            raw[key.strip()] = value.strip()
    if "SLURM_VERSION" not in raw:
        raise unexpected("scontrol", text[:200] or "nothing at all")
    return raw


def controller_age_s(raw: Mapping[str, str]) -> float | None:
    """Return the uptime of the controller at the time of the query; None if unknown."""
    asked, booted = raw.get("asked_at", ""), raw.get("BOOT_TIME", "")
    return float(int(asked) - int(booted)) if asked.isdigit() and booted.isdigit() else None


def parse_partitions(text: str) -> tuple[Mapping[str, str], str]:
    """Parse `scontrol --oneliner show partition`; return the states by name, and the name of the default partition."""
    if not text.strip() or text.strip() == "No partitions in the system":
        return {}, ""
    states, default = {}, ""
    for record in _split(text, "PartitionName="):
        words = dict(_WORD.findall(record))
        if "State" not in words:
            raise unexpected("scontrol", record)
        states[words["PartitionName"]] = words["State"]
        if words.get("Default") == "YES":
            default = words["PartitionName"]
    return states, default


def parse_whole_nodes(partitions: str, select_type: str) -> tuple[str, ...]:
    """Return the partitions that give each job whole nodes (slurm.conf(5), OverSubscribe and SelectType).

    With select/linear, only `OverSubscribe=FORCE` lets the jobs of others onto the same node. Pure.
    """
    found = []
    for record in _split(partitions, "PartitionName=") if "PartitionName=" in partitions else ():
        words = dict(_WORD.findall(record))
        share = words.get("OverSubscribe", "")
        if share == "EXCLUSIVE" or (select_type == "select/linear" and not share.startswith("FORCE")):
            found.append(words["PartitionName"])
    return tuple(found)


def _number(text: str | None) -> int | None:
    match = re.match(r"\d+", text or "")
    return int(match[0]) if match else None


_STATES = {
    # sinfo's word (sinfo(1), "NODE STATE CODES") -> base state and flags
    "drained": ("IDLE", "DRAIN"),
    "draining": ("MIXED", "DRAIN"),
    "fail": ("IDLE", "FAIL"),
    "failing": ("MIXED", "FAIL"),
    "maint": ("IDLE", "MAINTENANCE"),
    "maintenance": ("IDLE", "MAINTENANCE"),
    "completing": ("ALLOCATED", "COMPLETING"),
    "reserved": ("IDLE", "RESERVED"),
    "planned": ("IDLE", "PLANNED"),
    "perfctrs": ("IDLE", "PERFCTRS"),
    "npc": ("IDLE", "PERFCTRS"),
    "reboot": ("IDLE", "REBOOT_REQUESTED"),
    "reboot_requested": ("IDLE", "REBOOT_REQUESTED"),
    "reboot_issued": ("IDLE", "REBOOT_ISSUED"),
    "power_down": ("IDLE", "POWER_DOWN"),
    "powered_down": ("IDLE", "POWERED_DOWN"),
    "powering_down": ("IDLE", "POWERING_DOWN"),
    "power_up": ("IDLE", "POWERING_UP"),
    "powering_up": ("IDLE", "POWERING_UP"),
    "powered_up": ("IDLE", "POWERING_UP"),
    "inval": ("DOWN", "INVALID_REG"),
    "invalid_reg": ("DOWN", "INVALID_REG"),
    "blocked": ("IDLE", "BLOCKED"),
    "unk": ("UNKNOWN", ""),
    "no_respond": ("DOWN", "NOT_RESPONDING"),
}
_SUFFIXES = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
    "+": "COMPLETING",
}


def parse_node_state(text: str) -> tuple[str, tuple[str, ...]]:
    """Given sinfo's %T, return base state and flags. For instance, `drained*` gives IDLE with DRAIN, NOT_RESPONDING."""
    word = text.rstrip("".join(_SUFFIXES)).lower()
    marks = [_SUFFIXES[mark] for mark in text[len(word) :]]
    base, flag = _STATES.get(word, (word.upper(), ""))
    return base or "UNKNOWN", tuple(dict.fromkeys([*([flag] if flag else []), *marks]))


def parse_nodes(text: str) -> tuple[Node, ...]:
    """Given sinfo's rows of NODE_FORMAT, one per node and partition, return each node once.

    Raise SchedulerUnavailable if a row is not one of sinfo's.
    """
    nodes: dict[str, Node] = {}
    *rows, rest = text.split(ROW_END + "\n")
    if rest.strip():
        raise unexpected("sinfo", rest)
    for row in rows:
        columns = row.split(SEPARATOR, 3)
        if len(columns) != 4 or not re.fullmatch(r"[\w.-]+", columns[0]) or not re.match(r"[a-z]", columns[1].lower()):
            raise unexpected("sinfo", row)
        name, shown, partition, reason = columns
        if name in nodes:
            earlier = nodes[name]
            nodes[name] = replace(earlier, partitions=(*earlier.partitions, partition))
            continue
        state, flags = parse_node_state(shown)
        said = "" if reason.strip() in {"none", "(null)", ""} else reason.strip()
        nodes[name] = Node(name, state, flags, said, (partition,))
    return tuple(nodes.values())


_FLAGS_FIRST = ("COMPLETING", "REQUEUED", "SPECIAL_EXIT", "REQUEUE_HOLD", "CONFIGURING", "STAGE_OUT", "STOPPED")
"""Flags that squeue shows instead of the base state, so that text and JSON give the same state."""


def parse_document(text: str, program: str = "scontrol") -> tuple[Job, ...]:
    """Parse a JSON document of squeue or scontrol; return its jobs.

    Raise SchedulerUnavailable if the document is invalid, truncated, or contains errors.
    """
    try:
        document = json.loads(text)
        jobs = document["jobs"]
        if errors := document.get("errors"):
            said = "; ".join(str(e.get("description") or e.get("error") or e) for e in errors)
            raise SchedulerUnavailable(f"{program} reported an error in its JSON: {said[:300]}")
        return tuple(parse_job(job) for job in jobs)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise unexpected(program, text[:200] or "nothing at all") from None


def parse_job(record: dict[str, Any]) -> Job:
    """Parse a job of either form. Raise KeyError, TypeError or ValueError if invalid."""
    raw_id = int(record["job_id"])
    array = _json_number(record.get("array_job_id")) or 0
    leader = _json_number(record.get("het_job_id")) or 0
    tasks = record.get("array_task_string") or ""
    task = _json_number(record.get("array_task_id")) if array and not tasks else None
    state = parse_states(record["job_state"])
    limit_minutes = _json_number(record.get("time_limit"))
    reason = record.get("state_description") or record.get("state_reason") or ""
    return Job(
        id=JobId(int(array or leader or raw_id), None if task is None else int(task)),
        raw_id=raw_id,
        name=str(record["name"]),
        state=state,
        user=str(record.get("user_name") or ""),
        reason="" if reason == "None" else str(reason).replace("_", " "),
        tasks=tasks,
        task_count=count_tasks(tasks),
        partition=str(record.get("partition") or ""),
        account=str(record.get("account") or ""),
        qos=str(record.get("qos") or ""),
        nodes=str(record.get("nodes") or ""),
        node_count=_json_count(record.get("node_count")),
        excluded=str(record.get("excluded_nodes") or ""),
        submit_time=_json_time(record.get("submit_time")),
        start_time=_json_time(record.get("start_time")),
        # of a job without a time limit, SLURM reports a year ahead
        end_time=None if limit_minutes is None and state.is_alive else _json_time(record.get("end_time")),
        time_limit_s=None if limit_minutes is None else int(limit_minutes * 60),
        dependency=str(record.get("dependency") or ""),
        comment=str(record.get("comment") or ""),
        command=str(record.get("command") or ""),
        stdout=str(record.get("stdout_expanded") or record.get("standard_output") or "").replace("4294967294", "%a"),
        restarts=int(_json_number(record.get("restart_cnt")) or 0),
        exit_code=parse_exit_code(record.get("exit_code")) if state.is_final else None,
    )


def parse_states(value: str | list[str]) -> JobState:
    """Parse `"RUNNING"` or `["CANCELLED", "COMPLETING"]` to the state that squeue's text shows."""
    states = [value] if isinstance(value, str) else list(value)
    if not states or not all(isinstance(state, str) for state in states):
        raise ValueError(f"no state in {value!r}")
    shown = next((flag for flag in _FLAGS_FIRST if flag in states), states[0])
    return JobState.parse(shown)


def parse_exit_code(value: Any) -> ExitCode | None:
    """Parse the raw wait status of 22.05 or the object since 23.11; return None if there is no exit code."""
    if value is None:
        return None
    if isinstance(value, int):
        return parse_wait_status(str(value))
    signal = value.get("signal") or {}
    return ExitCode(int(_json_number(value.get("return_code")) or 0), int(_json_number(signal.get("id")) or 0))


def _json_number(value: Any) -> float | int | None:
    """Parse a number or `{"set", "infinite", "number"}`; return None if unset or infinite."""
    if isinstance(value, dict):
        return None if value.get("infinite") or not value.get("set") else value["number"]
    if value is not None and not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return value


def _json_time(value: Any) -> float | None:
    number = _json_number(value)
    return float(number) if number else None


def _json_count(value: Any) -> int:
    return parse_count(value) if isinstance(value, str) else int(_json_number(value) or 0)
