# ---------------------------------------------------------------------------------------------------------------
# The attempt: everything that a batch script of resil does around the launch. Plain bash, 4.2 or newer, without Python.
# Files and their formats: docs/reference/run-directory.md. Reasons: docs/decisions/0006 to 0010.
set -u -o pipefail

resil_host=${SLURMD_NODENAME:-${HOSTNAME:-unknown}}
resil_user=$(id -un 2>/dev/null) || resil_user=$UID
resil_number=            # number of this attempt, 0003 as in its file's name; empty before it is claimed
resil_child=             # process id of the launch
resil_beat_pid=          # process id of the heartbeat
resil_launch_pid=        # the same, also after its end
resil_code=0             # the launch's true exit code
resil_launched=false
resil_waiter=            # process id of the subshell that waits for the launch
resil_signals=           # received and not handled yet
resil_half=              # the beginning of an incomplete message
resil_superseded_by=     # number of the newer attempt that superseded this one
resil_stop_asked=        # why this attempt was requested to stop, or empty
resil_term=              # name of the signal that ends the job
resil_forwarded=
resil_kill=              # a sentence about the kill switch while it is set, as reported by the heartbeat
resil_told=              # in the heartbeat: the last reported sentence
resil_taken=             # in the heartbeat: the guard's last reported acknowledgement of a stop
resil_kill_at=           # when its time limit expires, in seconds of this shell, as all times here
resil_kill_late=         # what has not happened by then
resil_kill_news=         # about the kill switch, not printed yet
resil_scope=             # of the kill switch: job or all
resil_kill_wait_s=30     # between SIGTERM and SIGKILL: SLURM's default
resil_guarded=           # whether the guard was seen in this attempt
resil_stop_at=           # when stop_after expires
resil_stop_near=         # the training was asked to stop before that
resil_stage=             # of a forced end: stacks, TERM or KILL
resil_stacks_s=12        # how long to wait for the stacks
resil_stage_at=          # when the stage began
resil_forced=            # why and how the training was ended by force
resil_cron_due=0         # when to check the cron scheduler next, in seconds of this shell
resil_over=              # the end is recorded
resil_guard_why=         # the guards' reason for the end
resil_unfollowed=        # the training did not follow a stop
resil_gone=true          # at the end: whether no task on another node can be left
resil_unsure=            # SLURM did not say whether it ended the job
resil_launched_at=0      # in seconds of this shell
resil_cgroups=/sys/fs/cgroup
resil_oom_before=        # what resil_oom_kills found before the launch
resil_queue_pid=         # process id of resil_keep_jobs_queued
resil_checked=           # exit code of the check of the nodes, and its verdict
resil_left=()            # with spares (_spares.bash): the nodes that are not known to be bad, in order
resil_on=()              # options of srun for the nodes of the launch
resil_lost=              # a sentence if a node of the launch is lost
resil_rest=              # the launch has failed, and enough nodes are left for another

export RESIL_JOB_ID=${SLURM_JOB_ID:-0}
export RESIL_RESTART_COUNT=${SLURM_RESTART_COUNT:-0}
resil_label=$RESIL_JOB_ID
if [ -n "${SLURM_ARRAY_JOB_ID:-}" ] && [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then
  resil_label=${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}
fi
[ "${RESIL_SCHEDULER:-}" = local ] && resil_forward=yes

resil_stop_file=$RESIL_RUN_DIR/switches/stop.$RESIL_JOB_ID
resil_stacks_file=$RESIL_RUN_DIR/switches/stacks.$RESIL_JOB_ID
resil_journal_file=$RESIL_RUN_DIR/journal/$RESIL_JOB_ID.batch.jsonl

# ---- words ----------------------------------------------------------------------------------------------------

resil_say() { printf 'resil: %s\n' "$*"; }

resil_time() { # [seconds from now] -> REPLY
  printf -v REPLY '%(%s)T' -1
  printf -v REPLY '%(%Y-%m-%dT%H:%M:%S%z)T' $((REPLY + ${1:-0}))
}

resil_clean() { # untrusted text -> REPLY: without control characters, including C1 in UTF-8
  REPLY=$(
    LC_ALL=C
    text=${1//$'\xc2'[$'\x80'-$'\x9f']/ }
    printf '%s' "${text//[[:cntrl:]]/ }"
  )
}

resil_json() { # text -> REPLY: as a JSON string
  resil_clean "$1"
  REPLY=\"$(printf '%s' "$REPLY" | LC_ALL=C sed 's/[\\"]/\\&/g')\"
}

resil_write() { # file text: write atomically
  local temporary="${1%/*}/.${1##*/}.$resil_host.$BASHPID.tmp"
  (umask "$resil_umask" && printf '%s\n' "$2" >"$temporary" && mv -fT -- "$temporary" "$1") 2>/dev/null && return
  rm -f -- "$temporary"
  return 1
}

resil_journal() { # event [key json]...: one line, one write
  local line
  printf -v line '{"event":"%s","time":%(%s)T,"attempt":%s,"job_id":%s,"label":"%s","restart":%s,"host":"%s"' \
    "$1" -1 "${RESIL_ATTEMPT:-null}" "$RESIL_JOB_ID" "$resil_label" "$RESIL_RESTART_COUNT" "$resil_host"
  shift
  while (($# > 1)); do
    line+=",\"$1\":$2"
    shift 2
  done
  (umask "$resil_umask" && printf '%s}\n' "$line" >>"$resil_journal_file") 2>/dev/null || :
}

resil_field() { # key < TOML: REPLY is its value; fails when there is none
  local line value pattern="^[[:space:]]*$1[[:space:]]*=[[:space:]]*(.*[^[:space:]])[[:space:]]*\$"
  REPLY=
  while IFS= read -r line || [ -n "$line" ]; do
    if [[ $line =~ $pattern ]]; then
      value=${BASH_REMATCH[1]}
      case $value in
        \"*\") value=${value#\"} value=${value%\"} value=${value//\\\"/\"} value=${value//\\\\/\\} ;;
        \'*\') value=${value#\'} value=${value%\'} ;;
      esac
      REPLY=$value
      return 0
    fi
  done
  return 1
}

resil_setting() { # key -> REPLY: whole seconds of a [guard] setting; fails if unset, 0 or invalid
  local name=RESIL_GUARD__$1 rest unit fraction ms=0
  local -A unit_ms=([ms]=1 [s]=1000 [m]=60000 [min]=60000 [h]=3600000 [d]=86400000 [w]=604800000)
  rest=${!name-} rest=${rest//[[:space:]]/} rest=${rest,,}
  [[ $rest =~ [a-z] ]] || rest+=s
  while [[ $rest =~ ^([0-9]{1,9})(\.([0-9]*))?(ms|min|[smhdw])([0-9].*)?$ ]]; do # 90, 1.5, 5s, 19h50m
    unit=${unit_ms[${BASH_REMATCH[4]}]} fraction=${BASH_REMATCH[3]}000000000 rest=${BASH_REMATCH[5]}
    ms=$((ms + 10#${BASH_REMATCH[1]} * unit + (10#${fraction:0:9} * unit + 999999999) / 1000000000))
  done
  REPLY=$(((ms + 999) / 1000))
  [ -z "$rest" ] && ((REPLY > 0))
}

resil_pause() { read -r -t "$1" _ <> <(:) || :; } # a sleep that leaves no process behind if the shell is killed

# How many processes of this job the kernel has killed for memory on this node. Version 2 counts those of all steps in the
# job's cgroup; version 1 counts in each cgroup its own, and forgets them with the step. memory.failcnt is no witness: it
# counts reclaims too. REPLY is empty where the job has no memory cgroup.
resil_oom_kills() {
  local controllers path top file word count
  REPLY=
  while IFS=: read -r _ controllers path; do
    [[ $path =~ ^(.*/job_$RESIL_JOB_ID)(/|$) ]] || continue
    top=${BASH_REMATCH[1]}
    case ,$controllers, in
      ,,) set -- "$resil_cgroups$top/memory.events" "$resil_cgroups/unified$top/memory.events" ;;
      *,memory,*) set -- "$resil_cgroups/memory$top"{,/*,/*/*}/memory.oom_control ;;
      *) continue ;;
    esac
    for file; do
      [ -r "$file" ] || continue
      while read -r word count; do
        if [ "$word" = oom_kill ] && [[ $count =~ ^[0-9]{1,9}$ ]]; then REPLY=$((${REPLY:-0} + count)); fi
      done <"$file"
    done
  done 2>/dev/null <"${1:-/proc/self/cgroup}"
  return 0
}

# ---- switches -------------------------------------------------------------------------------------------------

# Read so that a link is not followed and a FIFO does not block.
resil_read() { dd if="$1" iflag=nofollow,nonblock bs=4096 count=1 2>/dev/null; }

resil_honoured() { # switch file: whether it is accepted. REPLY: why not; empty if there is no file
  local uid gid owner run_uid run_gid meant
  REPLY=
  if [ -L "$1" ] || { [ -e "$1" ] && [ ! -f "$1" ]; }; then
    REPLY='it is not a regular file'
    return 1
  fi
  [ -f "$1" ] || return 1
  read -r uid gid owner < <(stat -c '%u %g %U' -- "$1" 2>/dev/null) || return 1
  read -r run_uid run_gid < <(stat -c '%u %g' -- "$RESIL_RUN_DIR" 2>/dev/null) || return 1
  if [ "$resil_owner_policy" != any ] && [ "$uid" != "$run_uid" ] && [ "$uid" != 0 ] &&
    { [ "$resil_owner_policy" != group ] || [ "$gid" != "$run_gid" ]; }; then
    REPLY="it belongs to $owner; this run has the policy \"$resil_owner_policy\""
    return 1
  fi
  meant="s/^[[:space:]]*run[[:space:]]*=[[:space:]]*[\"']([A-Za-z0-9._-]+)[\"'][[:space:]]*(#.*)?\$/\\1/p"
  meant=$(resil_read "$1" | LC_ALL=C sed -nE "$meant" 2>/dev/null)
  meant=${meant%%$'\n'*}
  [ -z "$meant" ] || [ "$meant" = "$RESIL_RUN" ] && return
  REPLY="it is for run $meant, not for $RESIL_RUN" # copied from there
  return 1
}

resil_killed() { # whether the kill switch is set. REPLY: a sentence about the switch; resil_scope: its scope
  local file=$RESIL_RUN_DIR/switches/kill sentence
  if ! resil_honoured "$file"; then
    if [ -n "$REPLY" ] && [ "$REPLY" != "${resil_refused:-}" ]; then
      resil_say "the kill switch $file is not obeyed: $REPLY"
      resil_refused=$REPLY
    fi
    return 1
  fi
  sentence="the kill switch was set by $(stat -c %U -- "$file" 2>/dev/null)"
  resil_field when < <(resil_read "$file") && sentence+=" at $REPLY"
  resil_field why < <(resil_read "$file") && [ -n "$REPLY" ] && sentence+=": $REPLY"
  resil_scope=job
  resil_field scope < <(resil_read "$file") && [ "$REPLY" = all ] && resil_scope=all
  if [ ! -f "$file" ]; then # removed while it was read
    REPLY=
    return 1
  fi
  resil_clean "$sentence"
}

# ---- the scheduler --------------------------------------------------------------------------------------------

# Without environment variables that change the answer, and with a timeout.
resil_squeue() { (unset "${!SQUEUE_@}" SLURM_CLUSTERS && LC_ALL=C timeout -k 5 20 squeue -h "$@" 2>/dev/null); }

resil_scancel() { (unset "${!SCANCEL_@}" SLURM_CLUSTERS && LC_ALL=C timeout -k 5 60 scancel "$@"); }

# State of a job in the scheduler. REPLY: the state, or GONE if according to the scheduler no process of the job is left,
# or UNKNOWN. An answer is reliable only if it contains the witness, a job that is certainly alive.
resil_job_state() { # job-id witness user
  local rows users id state row
  if [ "${RESIL_SCHEDULER:-}" = local ]; then
    rows=
    for id in "$1" "$2"; do
      state=
      if [ -f "$RESIL_LOCAL_SPOOL/jobs/$id/state" ]; then
        read -r state <"$RESIL_LOCAL_SPOOL/jobs/$id/state"
        rows+="$id ${state:-UNKNOWN}"$'\n'
      fi
    done 2>/dev/null
  elif [ "$SECONDS" -lt "${resil_asked:--99}" ] && [ "$3" = "${resil_asked_for:-}" ]; then
    rows=$resil_answer
  else
    users=$resil_user
    [ "$3" = "$users" ] || users+=,$3
    rows=$(resil_squeue -t all -u "$users" -o '%A %T') || rows=
    resil_asked=$((SECONDS + 10)) resil_asked_for=$3 resil_answer=$rows
  fi
  REPLY=UNKNOWN
  [[ $'\n'$rows == *$'\n'"$2 "* ]] || return 0
  REPLY=GONE
  local IFS=$'\n'
  for row in $rows; do # not from a here-document, which needs space in /tmp
    [ "${row%% *}" = "$1" ] || continue
    case ${row#* } in
      # Ended, or queued without processes (squeue(1), JOB STATE CODES).
      BOOT_FAIL | CANCELLED | COMPLETED | DEADLINE | FAILED | NODE_FAIL | OUT_OF_MEMORY | PREEMPTED | REVOKED | TIMEOUT) ;;
      PENDING | REQUEUED | REQUEUE_FED | REQUEUE_HOLD | RESV_DEL_HOLD | SPECIAL_EXIT) ;;
      *) REPLY=${row#* } ;;
    esac
  done
}

resil_is_ours() { # a job's comment: whether this run directory submitted it; another project may have a run of this name
  [[ $1 == "resil:$RESIL_RUN:"* ]] || return 1
  local token=${1#"resil:$RESIL_RUN:"}
  token=${token%% *}
  [ -n "$token" ] && grep -qF -- "\"$token\"" "$RESIL_RUN_DIR/submissions.jsonl" 2>/dev/null
}

# The queued jobs of this run that a user did not hold: of this array, or with a token of this run.
resil_find_siblings() { # resil_siblings: ids, one for all queued tasks of an array; fails if SLURM does not answer
  local rows id array state reason comment own=
  resil_siblings=()
  if [ "${RESIL_SCHEDULER:-}" = local ]; then
    for id in "$RESIL_LOCAL_SPOOL"/jobs/*/; do
      id=${id%/} comment='' array=''
      { read -r comment <"$id/comment"; } 2>/dev/null || [ -n "$comment" ] || continue
      { read -r array <"$id/state"; } 2>/dev/null || [ -n "$array" ] || continue
      if [ "$array" != PENDING ] || ! resil_is_ours "$comment"; then continue; fi
      array=''
      if [ "${1:-}" != all ]; then
        grep -qsF '"held":true' -- "$id/task.json" && continue
        { read -r array <"$id/array"; } 2>/dev/null
      fi
      id=${array:-$id}
      [[ " ${resil_siblings[*]-} " == *" ${id##*/} "* ]] || resil_siblings+=("${id##*/}")
    done
    return 0
  fi
  rows=$(resil_squeue -t all -u "$resil_user" -o $'%A\x1f%F\x1f%T\x1f%r\x1f%k') || return
  while IFS=$'\x1f' read -r id array _; do
    [ "$id" = "$RESIL_JOB_ID" ] && own=$array
  done < <(printf '%s\n' "$rows")
  while IFS=$'\x1f' read -r id array state reason comment; do
    [ "$state" = PENDING ] || continue
    case $reason in *JobHeld* | *held*) [ "${1:-}" = all ] || continue ;; esac
    if [ "$array" = "${own:-none}" ] || resil_is_ours "$comment"; then resil_siblings+=("$id"); fi
  done < <(printf '%s\n' "$rows")
}

resil_cancel_siblings() { # cancel the queued jobs of this run, which the user who set the switch may not be allowed to do
  local id
  if ! resil_find_siblings all; then
    resil_say 'SLURM does not answer: the queued jobs are not cancelled, each ends at its start instead'
  elif ((${#resil_siblings[@]} == 0)); then
    :
  elif [ "${RESIL_SCHEDULER:-}" = local ]; then
    for id in "${resil_siblings[@]}"; do : >"$RESIL_LOCAL_SPOOL/jobs/$id/cancel"; done
  else
    resil_scancel --state=PENDING "${resil_siblings[@]}"
  fi
  resil_say "cancelled the queued jobs of this run: ${resil_siblings[*]-none}"
  resil_journal siblings_cancelled count "${#resil_siblings[@]}"
}

# ---- one attempt at a time ------------------------------------------------------------------------------------

# The number is a fencing token. Only one of several processes creates the hard link, also on NFS; without hard links, O_EXCL.
resil_take_number() {
  local directory=$RESIL_RUN_DIR/attempts temporary file content name highest=0
  temporary=$directory/.new.$resil_host.$RESIL_JOB_ID.$BASHPID.tmp
  for file in "$directory"/[0-9][0-9][0-9][0-9]*; do
    name=${file##*/}
    [[ $name =~ ^[0-9]+$ ]] && ((10#$name > highest)) && highest=$((10#$name))
  done
  while :; do
    printf -v resil_number '%04d' $((++highest))
    printf -v content 'number = %d\njob_id = %s\nlabel = "%s"\nrestart = %s\nhost = "%s"\npid = %d\nstart = %(%s)T\nuser = '"'%s'" \
      "$highest" "$RESIL_JOB_ID" "$resil_label" "$RESIL_RESTART_COUNT" "$resil_host" $$ -1 "$resil_user"
    file=$directory/$resil_number
    # On a full disk the file is there, and empty.
    if (umask "$resil_umask" && printf '%s\n' "$content" >"$temporary") 2>/dev/null; then
      # After a retransmission, the server reports "exists" for the link just made: compare the inodes.
      if ln -- "$temporary" "$file" 2>/dev/null || [ "$temporary" -ef "$file" ]; then
        break
      fi
      [ -e "$file" ] && continue
      if (umask "$resil_umask" && set -o noclobber && printf '%s\n' "$content" >"$file") 2>/dev/null; then
        break
      fi
      [ -e "$file" ] && continue
    fi
    rm -f -- "$temporary"
    resil_number=
    return 1
  done
  rm -f -- "$temporary"
  export RESIL_ATTEMPT=$highest
  printf -v RESIL_ERROR_FILE '%s/attempts/%04d.error' "$RESIL_RUN_DIR" "$RESIL_ATTEMPT" # the exception of the first rank
  export RESIL_ERROR_FILE
}

# Whether a newer attempt supersedes this one. REPLY: its number. An attempt with the same job id was started by SLURM
# after SLURM had given up this one. An attempt of another job counts only if the scheduler no longer has this job;
# otherwise it is a second job of the run, and waits for this one.
resil_superseded() {
  local number=$((RESIL_ATTEMPT + 1)) file user
  while printf -v file '%s/attempts/%04d' "$RESIL_RUN_DIR" "$number" && [ -e "$file" ]; do
    if [ ! -e "$file.end" ]; then
      { resil_field user <"$file" && user=$REPLY; } 2>/dev/null || user=$resil_user
      { resil_field job_id <"$file"; } 2>/dev/null || REPLY=
      if [ "$REPLY" = "$RESIL_JOB_ID" ]; then
        REPLY=$number
        return 0
      elif [ -n "$REPLY" ]; then
        resil_job_state "$RESIL_JOB_ID" "$REPLY" "$user"
        if [ "$REPLY" = GONE ]; then
          REPLY=$number
          return 0
        fi
      fi
    fi
    number=$((number + 1))
  done
  return 1
}

resil_wait_for_previous() {
  local began=$SECONDS said=-30 file name waiting reason
  local -A beat=() since=()
  while :; do
    waiting='' reason=''
    for file in "$RESIL_RUN_DIR"/attempts/[0-9][0-9][0-9][0-9]*; do
      name=${file##*/}
      [[ $name =~ ^[0-9]+$ ]] || continue
      ((10#$name < RESIL_ATTEMPT && 10#$name > RESIL_ATTEMPT - 100)) || continue
      if [ -e "$file.end" ]; then
        { resil_field gone <"$file.end"; } 2>/dev/null || REPLY=true
        [ "$REPLY" = false ] || continue
      fi
      if resil_is_gone "$file"; then
        resil_mark_lost "$file"
      else
        waiting+=" $name" reason=$REPLY
      fi
    done
    [ -n "$waiting" ] || return 0
    resil_check_start
    if resil_superseded; then
      resil_finish 75 superseded "attempt $REPLY has begun"
    elif ((SECONDS - began >= resil_previous_wait_s)); then
      resil_say "gave up after $((SECONDS - began)) s: attempt$waiting is not known to be over ($reason); the training was not launched"
      resil_finish 75 stopped "attempt$waiting is not known to be over"
    elif ((SECONDS - began >= said + 30)); then
      ((said >= 0)) || resil_journal waiting for "\"${waiting# }\""
      said=$((SECONDS - began))
      resil_say "waiting for attempt$waiting to end: $reason; $said s so far, at most $resil_previous_wait_s s"
    fi
    resil_pause "$resil_poll_s"
  done
}

resil_is_gone() { # attempt file. REPLY: why not; beat and since belong to the caller
  local name=${1##*/} job user now='' still
  { read -r now <"$1.beat"; } 2>/dev/null || :
  if [ "$now" != "${beat[$name]-unseen}" ]; then
    beat[$name]=$now since[$name]=$SECONDS
  fi
  still=$((SECONDS - since[$name]))
  { resil_field job_id <"$1"; } 2>/dev/null || REPLY=
  job=$REPLY
  { resil_field user <"$1"; } 2>/dev/null || REPLY=$resil_user
  user=$REPLY
  if [ -e "$1.end" ] && [ "$job" = "$RESIL_JOB_ID" ]; then
    return 0 # SLURM restarts a job only after its nodes are cleared
  elif [ "$job" = "$RESIL_JOB_ID" ] || [ -z "$job" ]; then
    # A requeue: the scheduler has one state for both starts, so only the heartbeat can tell.
    REPLY="an earlier start of this job, its heartbeat is still for $still s, to be $((3 * resil_still_s)) s"
    ((still > 3 * resil_still_s))
    return
  fi
  resil_job_state "$job" "$RESIL_JOB_ID" "$user"
  if [ "$REPLY" = GONE ] && [ -e "$1.end" ]; then
    return 0 # its batch shell has ended, and so have its tasks on other nodes
  elif [ "$REPLY" = GONE ]; then
    REPLY="job $job is over, its heartbeat is still for $still s, to be $((2 * resil_still_s)) s"
    ((still > 2 * resil_still_s))
    return
  fi
  REPLY="job $job is $REPLY"
  return 1
}

resil_mark_lost() { # attempt file: record its end, so that later attempts need not wait again
  local temporary="$1.lost.$resil_host.$BASHPID.tmp"
  [ -e "$1.end" ] && return
  temporary=${temporary%/*}/.${temporary##*/}
  resil_say "attempt ${1##*/} ended without a record"
  resil_journal attempt_lost lost "$((10#${1##*/}))"
  (
    umask "$resil_umask"
    printf 'end = "lost"\ntime = %(%s)T\nseen_by = %d\n' -1 "$RESIL_ATTEMPT" >"$temporary" &&
      ln -- "$temporary" "$1.end"
  ) 2>/dev/null || :
  rm -f -- "$temporary" "${1%/*}/.${1##*/}.beat."* # of a heartbeat that was killed as it wrote
}

# ---- the breaker ----------------------------------------------------------------------------------------------

# Ends a crash loop. Attempts that fail one after another without a new durable checkpoint open the breaker: the queued
# jobs are held, and a job that starts ends at once, until `resil breaker close`, or until one of them makes progress.
# `resil watch job` decides the same with more evidence (resilience/attempts/breaker.py), and may set retry_at, when one
# more may try. Files: attempts/breaker, breaker.held and breaker.closed; docs/reference/run-directory.md.

# Each end carries the counts of all attempts so far, so that only the previous one is read. Attempts without counts
# were lost. resil_burnt: attempts in a row that failed without progress; resil_outside: that were ended from outside;
# resil_best: the newest durable step.
resil_tally() { # number of the next attempt
  local number file key value closed=0 lost='' known=
  resil_burnt=0 resil_outside=0 resil_best=
  { resil_field attempt <"$RESIL_RUN_DIR/attempts/breaker.closed" && closed=$REPLY; } 2>/dev/null
  [[ $closed =~ ^[0-9]{1,9}$ ]] || closed=0
  for ((number = $1 - 1; number > 0 && number > $1 - 50; number--)); do
    printf -v file '%s/attempts/%04d' "$RESIL_RUN_DIR" "$number"
    while IFS=' =' read -r key value || [ -n "$key" ]; do
      [[ $value =~ ^[0-9]{1,18}$ ]] || continue
      case $key in
        burnt) resil_burnt=$value known=yes ;;
        outside) resil_outside=$value ;;
        durable) resil_best=$value ;;
      esac
    done 2>/dev/null <"$file.end"
    if ((number <= closed)); then resil_burnt=0 resil_outside=0; fi
    [ -z "$known" ] || break
    lost="$number $lost"
  done
  for number in $lost; do
    printf -v file '%s/attempts/%04d' "$RESIL_RUN_DIR" "$number"
    { resil_field job_id <"$file"; } 2>/dev/null || continue
    if resil_advanced "$REPLY" "$number"; then
      resil_burnt=0 resil_outside=0
    elif ((number > closed)); then
      ((++resil_outside))
    fi
  done
}

resil_advanced() { # job attempt: whether a save of it was durable, and newer than resil_best, which becomes its step
  local line before=$resil_best file=$RESIL_RUN_DIR/journal/$1.0.jsonl
  [ -f "$file" ] && [ ! -L "$file" ] || return
  while IFS= read -r line; do
    [[ $line =~ \"step\":([0-9]{1,18})[,}] ]] && ((BASH_REMATCH[1] > ${resil_best:--1})) && resil_best=${BASH_REMATCH[1]}
  done < <(timeout 20 grep -hE "^\{\"event\":\"save\",.*\"attempt\":$2," -- "$file" 2>/dev/null | tail -n 20)
  [ "$resil_best" != "$before" ]
}

# Where no guard was ever seen no step is known: then an attempt that trained for five minutes counts as progress. Of a
# run with a guard, an attempt in which the guard did not begin (ranks that wait for each other) has not trained.
resil_count() { # end code: add this attempt to the counts. Fails unless it made progress
  resil_tally "$RESIL_ATTEMPT"
  if resil_advanced "$RESIL_JOB_ID" "$RESIL_ATTEMPT" || [ "$1:$2" = exited:0 ] || [ "$1" = finished ] ||
    { [ -z "$resil_best" ] && [ ! -e "$RESIL_RUN_DIR/journal/$RESIL_JOB_ID.0.jsonl" ] && [ "$resil_launched" = true ] &&
      ((SECONDS - resil_launched_at >= 300)); }; then
    resil_burnt=0 resil_outside=0
    return 0
  fi
  case $1 in
    exited) [ -n "$resil_unsure" ] || ((++resil_burnt)) ;; # SLURM may have ended it
    terminated | superseded | lost) ((++resil_outside)) ;;
  esac
  return 1
}

resil_plain() { # text -> REPLY: fit for a string of TOML
  resil_clean "$1"
  REPLY=$(printf '%s' "$REPLY" | tr '\042\134' '\047\047')
}

resil_open_breaker() { # why: once for all who see the same failures
  local file=$RESIL_RUN_DIR/attempts/breaker temporary text acting=false
  [ -z "$resil_act_enabled" ] || acting=true
  temporary=$RESIL_RUN_DIR/attempts/.breaker.$resil_host.$BASHPID.tmp
  resil_plain "${1:0:600}"
  printf -v text 'opened = %(%s)T\nattempt = %d\nburnt = %d\nacting = %s\nby = "job %s"\nretry_at = 0\nwhy = "%s"' \
    -1 "$RESIL_ATTEMPT" "$resil_burnt" "$acting" "$resil_label" "$REPLY"
  if (umask "$resil_umask" && printf '%s\n' "$text" >"$temporary" && ln -- "$temporary" "$file") 2>/dev/null; then
    resil_record breaker_opened "$1" "the breaker of run $RESIL_RUN opens: $1" burnt "$resil_burnt" acting "$acting"
  elif resil_is_open && ! resil_is_by_hand && ((resil_open_attempt < RESIL_ATTEMPT)); then # one more has failed
    [ "$resil_open_acting" = true ] && text=${text/acting = false/acting = true}
    resil_write "$file" "opened = $resil_open_opened"$'\n'"${text#*$'\n'}"
  fi
  rm -f -- "$temporary"
}

resil_is_open() { # what attempts/breaker says
  local key value file=$RESIL_RUN_DIR/attempts/breaker
  resil_open_acting='' resil_open_by='' resil_open_opened=0 resil_open_attempt=0 resil_open_retry_at=0 resil_open_why=
  [ -f "$file" ] && [ ! -L "$file" ] || return
  while IFS=' =' read -r key value || [ -n "$key" ]; do
    case $key in
      acting) resil_open_acting=$value ;;
      opened | attempt | retry_at) [[ $value =~ ^[0-9]{1,12}$ ]] && printf -v "resil_open_$key" '%s' "$value" ;;
      by | why) value=${value#\"} && printf -v "resil_open_$key" '%s' "${value%\"}" ;;
    esac
  done 2>/dev/null <"$file"
  resil_clean "$resil_open_why" && resil_open_why=$REPLY
}

resil_is_by_hand() { [[ $resil_open_by == 'user '* || $resil_open_by == 'alert '* ]]; } # a person closes it

resil_hold_siblings() { # a user's own holds are left alone, also when these are released
  local said held code release=
  if ! resil_find_siblings; then
    resil_say 'SLURM does not answer: the queued jobs are not held, each ends at its start instead'
    return
  fi
  ((${#resil_siblings[@]})) || return 0
  held=${resil_siblings[*]}
  (umask "$resil_umask" && printf '%s\n' "${resil_siblings[@]}" >>"$RESIL_RUN_DIR/attempts/breaker.held") 2>/dev/null ||
    release="they cannot be recorded: resil status $RESIL_RUN says how to release them"
  said=$(unset SLURM_CLUSTERS && LC_ALL=C timeout -k 5 60 scontrol hold "${resil_siblings[@]}" 2>&1)
  code=$?
  # 1 as well for an array of which a task has ended: "5_1-2: Job has already finished", "5_3-10: No error".
  if [ "$code" = 0 ] || { [ "${RESIL_SCHEDULER:-}" != local ] && resil_find_siblings && ((${#resil_siblings[@]} == 0)); }; then
    resil_say "held the queued jobs of this run: $held; nothing was cancelled${release:+; $release}"
    resil_journal siblings_held jobs "\"$held\""
  else
    resil_record siblings_not_held "$said" \
      "the queued jobs ($held) cannot be held here: ${said:-scontrol did not answer}; each ends at its start instead"
  fi
}

resil_trip() { # the counts have changed: open the breaker if they say so, and hold the queued jobs
  local why=$1
  if ((resil_breaker_failures > 0 && resil_burnt >= resil_breaker_failures)); then
    why="$resil_burnt attempts in a row failed without a new checkpoint, the last: $why"
  elif ((resil_breaker_neutral > 0 && resil_outside >= resil_breaker_neutral)); then
    why="$resil_outside attempts in a row were ended from outside without a new checkpoint, the last: $why"
  else
    return 1
  fi
  resil_open_breaker "$why"
  resil_is_open || return
  if [ "$resil_open_acting" = true ]; then
    resil_say "see why: resil why $RESIL_RUN; continue: resil breaker close $RESIL_RUN"
    resil_hold_siblings
  else
    resil_say "it would hold the queued jobs and end later ones at their start; to let it: enabled = true under [act]"
  fi
}

resil_reset_breaker() { # progress: the held jobs may run
  local ids file=$RESIL_RUN_DIR/attempts/breaker
  [ -e "$file" ] || [ -e "$file.held" ] || return 0
  if resil_is_open && resil_is_by_hand; then return 0; fi
  rm -f -- "$file"
  ids=$(grep -hsE '^[0-9]{1,12}(_[0-9]{1,9})?$' -- "$file.held" | LC_ALL=C sort -u)
  resil_record breaker_closed progress "the breaker is closed: this attempt made progress; released: ${ids:-no job}"
  # shellcheck disable=SC2086 # words
  [ -z "$ids" ] || (unset SLURM_CLUSTERS && LC_ALL=C timeout -k 5 60 scontrol release $ids >/dev/null 2>&1) || :
  rm -f -- "$file.held"
}

resil_failed_since() { # whether an attempt has failed since the breaker was last written
  local number file
  for ((number = resil_open_attempt + 1; number < RESIL_ATTEMPT; number++)); do
    printf -v file '%s/attempts/%04d.end' "$RESIL_RUN_DIR" "$number"
    { resil_field end <"$file"; } 2>/dev/null && [ "$REPLY" = exited ] && return
  done
  return 1
}

resil_check_breaker() { # [counted]: end this job if the breaker is open. Without an attempt yet, only the file is read
  local now
  if [ -n "${1:-}" ]; then
    resil_tally "$RESIL_ATTEMPT"
    [ -e "$RESIL_RUN_DIR/attempts/breaker" ] || resil_trip "attempt $((RESIL_ATTEMPT - 1))" || return 0
  fi
  resil_is_open || return 0
  printf -v now '%(%s)T' -1
  if ((resil_open_retry_at > 0 && now >= resil_open_retry_at)) && { [ -z "${1:-}" ] || ! resil_failed_since; }; then
    [ -z "${1:-}" ] || resil_say "the breaker is half open: this job may try once more"
    return 0
  fi
  if [ "$resil_open_acting" != true ]; then
    resil_say "the breaker would end this job: $resil_open_why; to let it: enabled = true under [act]"
    return 0
  fi
  resil_say "the breaker of run $RESIL_RUN is open: $resil_open_why"
  resil_say "nothing was launched; see why: resil why $RESIL_RUN; continue: resil breaker close $RESIL_RUN"
  resil_hold_siblings
  resil_finish 75 stopped "the breaker is open: $resil_open_why"
}

# ---- never dry ------------------------------------------------------------------------------------------------

# With [act] keep_queued, in the background of a job that may train: resil queues what is missing, where its Python is
# found. Again after a while, because a limit of the site or a silent scheduler may have been in the way.
resil_keep_jobs_queued() {
  local said code before=
  while kill -0 $$ 2>/dev/null; do
    said=$(timeout -k 5 150 bash -c "$resil_keep_queued" 2>&1)
    code=$? said=${said##*$'\n'}
    if [ -n "$said" ] && [ "$said" != "$before" ]; then
      if [ "$code" = 0 ]; then resil_say "$said"; fi
      resil_json "$said"
      resil_journal keep_queued code "$code" said "$REPLY"
    fi
    before=$said
    resil_pause $((code == 75 ? 150 : 1860)) # more than IN_FLIGHT_S, and than PAUSE_S
  done
}

# With [act] requeue, the job of an attempt that has ended runs again under its id: held if the breaker is open. Not if
# it was ended from outside, except by its time limit: SLURM itself requeues preempted and lost jobs, and a cancelled
# one must not run again. By its label: the raw id of an array's last task is that of the array, whose tasks would all
# run again. SLURM kills this shell then, so nothing may follow.
resil_requeue_self() { # end
  local verb=requeue said='' try is_requeued=
  [ -n "$resil_requeue" ] || return
  case $1 in
    finished | superseded) return ;;
    lost) [ -n "$resil_lost" ] || return ;; # a job with spares survives the loss of a node: SLURM does not requeue it
    terminated) resil_is_over_time || return ;;
  esac
  if [ -e "$RESIL_RUN_DIR/finished" ] || resil_killed; then return; fi
  if [ -z "$resil_act_enabled" ]; then
    resil_say 'it would requeue this job; to let it: enabled = true under [act]'
    return
  elif resil_is_open && [ "$resil_open_acting" = true ]; then
    verb=requeuehold
    (umask "$resil_umask" && printf '%s\n' "$RESIL_JOB_ID" >>"$RESIL_RUN_DIR/attempts/breaker.held") 2>/dev/null || :
  elif [ -z "$resil_number" ]; then
    return # not counted: it could run again and again
  fi
  for try in 1 2 3; do
    ((try == 1)) || resil_pause "$resil_still_s"
    said=$(unset SLURM_CLUSTERS && LC_ALL=C timeout -k 5 60 scontrol "$verb" "$resil_label" 2>&1) && is_requeued=yes
    case $said in
      *'pending execution'*) is_requeued=yes ;; # by the call before, which had no answer
      *disabled* | *denied* | *nvalid*) break ;;
    esac
    [ -z "$is_requeued" ] || break
  done
  if [ -n "$is_requeued" ]; then
    resil_journal requeued verb "\"$verb\""
  else
    resil_record not_requeued "$said" \
      "this job cannot be requeued here (${said:-scontrol did not answer}): the run needs another job"
  fi
}

resil_is_over_time() { # whether SLURM has ended this job at its time limit, or the batch shell after stop_after
  local now
  [ -z "$resil_forced" ] || return 0
  if [ "${RESIL_SCHEDULER:-}" = local ]; then
    printf -v now '%(%s)T' -1
    [ -n "${RESIL_END_TIME:-}" ] && ((now >= RESIL_END_TIME))
  else
    [ "$(resil_squeue -j "$RESIL_JOB_ID" -o %r)" = TimeLimit ]
  fi
}

# ---- the heartbeat --------------------------------------------------------------------------------------------

# Runs in the background: writes the heartbeat, and checks for a newer attempt and for the kill switch. The heartbeat is in
# the directory of the attempts, because a write makes an NFS client refresh its view of the directory.
resil_heartbeat() {
  local count=0 looks=1 look_s=$resil_beat_s file=$RESIL_RUN_DIR/attempts/$resil_number.beat temporary never
  temporary=$RESIL_RUN_DIR/attempts/.$resil_number.beat.$resil_host.$BASHPID.tmp
  umask "$resil_umask"
  exec {never}<> <(:)
  if ((resil_still_s > 5)); then # check the switch more often than a slow heartbeat
    looks=$(((resil_still_s + 4) / 5))
    look_s=$((resil_still_s / looks))
  fi
  while kill -0 $$ 2>/dev/null; do
    if ((count++ % looks == 0)); then
      { printf '%d %d %(%s)T\n' "$RESIL_ATTEMPT" "$count" -1 >"$temporary" && mv -fT -- "$temporary" "$file"; } 2>/dev/null
      if resil_superseded; then
        printf 'superseded %s\n' "$REPLY" >&"$resil_news"
        resil_say "attempt $REPLY has begun: this attempt $RESIL_ATTEMPT kills its training without a save"
        resil_journal superseded by "$REPLY"
        resil_kill_training
        return
      fi
      [ -z "${resil_cron:-}" ] || resil_look_after_cron
    fi
    resil_look_for_kill
    read -r -t "$look_s" -u "$never" || :
  done
}

# Notifies the main shell, which does not check while it waits for the training. Without a switch, no process is started.
# A failed check reports nothing: neither that the switch is set nor that it was cleared.
resil_look_for_kill() {
  local file=$RESIL_RUN_DIR/switches/kill
  if resil_killed; then
    if [ "$resil_scope ${REPLY:0:500}" != "$resil_told" ]; then
      resil_told="$resil_scope ${REPLY:0:500}" # short enough for an atomic write to the pipe
      resil_setting KILL_TIMEOUT_S || resil_learned kill_after_s || REPLY=300
      printf 'killed %d %s\n' "$REPLY" "$resil_told" >&"$resil_news"
    fi
    if resil_guard_said && [ "$REPLY" != "$resil_taken" ]; then # "stop", and its exit code after it was closed
      resil_taken=$REPLY
      resil_exit_bound
      printf 'taken %d\n' "$REPLY" >&"$resil_news"
    fi
  elif [ -n "$resil_told" ] && { [ -n "$REPLY" ] || { [ -d "${file%/*}" ] && [ ! -e "$file" ]; }; }; then
    resil_told='' resil_taken=''
    printf 'cleared\n' >&"$resil_news"
  fi
}

resil_learned() { # key -> REPLY: whole seconds that the guard has learned; fails when there is none
  [[ $(resil_read "$RESIL_RUN_DIR/learned/0.json") =~ \"$1\":\ *([0-9]{1,9})[.,}[:space:]] ]] || return
  REPLY=$((10#${BASH_REMATCH[1]}))
  ((REPLY > 0))
}

# REPLY: seconds for a training to save and end after its guard requested a stop. The guard itself ends the training
# after exit_timeout_s, or three times the slowest save; the batch shell acts later, for guards that cannot.
resil_exit_bound() {
  local bound
  resil_setting EXIT_TIMEOUT_S || REPLY=900
  bound=$REPLY
  resil_learned slowest_save_s || REPLY=0
  REPLY=$(((3 * REPLY > bound ? 3 * REPLY : bound) + 60))
}

# With [cron] revive = true, the heartbeat checks periodically if the cron scheduler is late, and restarts its chain of
# jobs in the background. The script written by `resil cron install` queries the queue to decide if that is needed.
resil_look_after_cron() {
  ((SECONDS >= resil_cron_due)) || return 0
  resil_cron_due=$((SECONDS + ${resil_cron_look_s:-180}))
  if ! resil_cron_is_late || ! resil_claim_cron "$REPLY"; then return 0; fi
  (
    said=$(timeout -k 5 150 bash -- "$resil_cron/revive.bash" 2>&1 </dev/null)
    code=$?
    resil_json "${said##*$'\n'}"
    case $code in
      0) ;;
      10) resil_journal cron_revived said "$REPLY" && resil_say "the cron scheduler was dead: ${said##*$'\n'}" ;;
      *) resil_journal cron_not_revived code "$code" said "$REPLY" ;;
    esac
  ) </dev/null &
}

resil_cron_is_late() { # REPLY: its patience in seconds. Same rule as resilience/cron_late.py
  local text time pause patience=0 now file=$resil_cron/revive.bash
  if [ ! -O "$file" ] || [ ! -f "$file" ] || [ -L "$file" ] || [ -e "$resil_cron/stop" ]; then return 1; fi
  [ $((8#$(stat -c %a -- "$file") & 8#002)) = 0 ] || return 1 # world-writable: any user could execute code here
  text=$(resil_read "$resil_cron/heartbeat")
  [[ $text =~ \"time\":\ *([0-9]{1,12})[^0-9] ]] || return 1
  time=$((10#${BASH_REMATCH[1]}))
  [[ $text =~ \"expected\":\ *([0-9]{1,12})[^0-9] ]] || return 1
  pause=$((10#${BASH_REMATCH[1]} - time))
  [[ $text =~ \"patience_s\":\ *([0-9]{1,9})[^0-9] ]] && patience=$((10#${BASH_REMATCH[1]}))
  ((pause > 0)) || pause=0
  ((pause < 86400)) || pause=86400
  ((patience > 0)) || patience=$((pause > 90 ? 2 * pause : 180))
  printf -v now '%(%s)T' -1
  REPLY=$patience
  ((now > time + pause + patience))
}

resil_claim_cron() { # seconds: only one training acts, and none again for this time
  local mark=$resil_cron/reviving aside=$resil_cron/.reviving.$resil_host.$BASHPID since now
  mkdir -- "$mark" 2>/dev/null && return
  printf -v now '%(%s)T' -1
  since=$(stat -c %Y -- "$mark" 2>/dev/null) || return 1
  ((now - since > $1)) || return 1
  mv -T -- "$mark" "$aside" 2>/dev/null || return 1
  since=$(stat -c %Y -- "$aside" 2>/dev/null) || since=0
  if ((now - since <= $1)); then # made by another training since the check
    mv -T -- "$aside" "$mark" 2>/dev/null || rmdir -- "$aside"
    return 1
  fi
  rmdir -- "$aside"
  mkdir -- "$mark" 2>/dev/null
}

resil_descendants() { # pid -> REPLY: pids of its descendants
  local -A parent=()
  local line pid found=" $1 " grown=yes
  while IFS= read -r line; do # /proc/12/status:PPid:	1
    pid=${line#/proc/}
    parent[${pid%%/*}]=${line##*[[:blank:]]}
  done < <(grep -H '^PPid:' /proc/[0-9]*/status 2>/dev/null)
  REPLY=
  while [ -n "$grown" ]; do
    grown=
    for pid in "${!parent[@]}"; do
      if [[ $found == *" ${parent[$pid]} "* && $found != *" $pid "* ]]; then
        found+="$pid " REPLY+="$pid " grown=yes
      fi
    done
  done
}

# All processes of this attempt on this host: descendants of the batch shell, and processes with its variables in their
# environment (tasks of srun are children of slurmstepd), except for this shell and resil_spared. REPLY: pids;
# resil_srun: pids of srun.
resil_processes() {
  local files word pid comm
  resil_descendants $$
  for word in "RESIL_ATTEMPT=$RESIL_ATTEMPT" "RESIL_RUN_DIR=$RESIL_RUN_DIR" ${SLURM_JOB_ID:+"SLURM_JOB_ID=$SLURM_JOB_ID"}; do
    [ "${files-unset}" = unset ] && files=$(printf '%s\n' /proc/[0-9]*/environ)
    # shellcheck disable=SC2086 # words
    files=$(grep -lzxFs -e "$word" -- /dev/null $files)
  done
  word="$REPLY $files"
  REPLY='' resil_srun=''
  # shellcheck disable=SC2086 # words
  for pid in $word; do
    pid=${pid#/proc/} pid=${pid%/environ} comm=
    [[ " $$ $BASHPID ${resil_spared:-} " == *" $pid "* ]] && continue
    { read -r comm <"/proc/$pid/comm"; } 2>/dev/null || continue
    if [ "$comm" = srun ]; then resil_srun+=" $pid"; else REPLY+=" $pid"; fi
  done
}

# Only SIGKILL: after USR1, INT or TERM the training would save over files that its successor reads. Tasks on other nodes
# are reached through srun only, which is signalled last, after the local ranks are gone. Never scancel: the successor
# may have the same job id.
resil_kill_training() {
  local round times
  for round in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    resil_processes
    # shellcheck disable=SC2086 # words
    [ -z "$REPLY" ] || kill -KILL $REPLY 2>/dev/null
    [ -z "$REPLY$resil_srun" ] && return
    # shellcheck disable=SC2086 # words
    case $round in
      [1-3]) # at the third signal within a second srun kills its tasks, also on other nodes
        for ((times = 3; times > 0 && ${#resil_srun} > 0; times--)); do
          kill -INT $resil_srun 2>/dev/null
          resil_pause 0.2
        done
        ;;
      1[5-9] | 20) [ -z "$resil_srun" ] || kill -KILL $resil_srun 2>/dev/null ;;
    esac
    resil_pause 0.3
  done
  return 1
}

# ---- signals --------------------------------------------------------------------------------------------------

# Traps only record signals; resil_act handles them between two messages.
resil_traps() {
  local name
  for name in HUP INT QUIT USR1 USR2 ALRM TERM "$resil_signal"; do
    # shellcheck disable=SC2064 # expanded now
    trap "resil_signals+=' $name'" "$name"
  done
  trap 'resil_on_exit "$?"' EXIT
}

resil_deaf() { # at the end: ignore all signals
  trap '' HUP INT QUIT USR1 USR2 ALRM TERM "$resil_signal"
}

resil_act() {
  local names name
  names=$resil_signals resil_signals= # in one command: traps run between commands, and what comes there would be lost
  for name in $names; do
    resil_time # no $(...) here: a trap that runs while bash parses one was seen to end bash
    resil_say "SIG$name received at $REPLY"
    [ "$name" = "$resil_signal" ] && resil_request_stop "SIG$name" \
      "the batch shell got SIG$name: about $RESIL_SIGNAL_LEAD_S s are left before the time limit" signal "\"$name\""
    case $name in
      TERM | INT) resil_note_term "$name" ;; # INT: Ctrl-C when the script is run by hand
      "$resil_signal") ;;
      *) resil_journal signal signal "\"$name\"" ;;
    esac
  done
}

resil_request_stop() { # asked-by why key json: ask the training to stop, by file
  [ -n "$resil_stop_asked" ] && return
  resil_stop_asked=$1
  resil_aside resil_write_stop "$2" "$3" "$4"
}

resil_write_stop() { # why key json
  local text
  resil_time
  printf -v text "who = '%s'"'\nwhen = "%s"\nwhy = "%s"\nscope = "job"' "$resil_user" "$REPLY" "$1"
  if resil_write "$resil_stop_file" "$text"; then
    resil_say "requested the training to save and stop: $resil_stop_file"
  else
    resil_say "$resil_stop_file could not be written: the training is not warned of its time limit"
  fi
  resil_journal stop_requested "$2" "$3"
}

resil_note_term() { # the job is being ended: time limit, cancel, requeue, preemption. SIGKILL follows after KillWait
  resil_journal terminating signal "\"$1\""
  resil_term=$1
  resil_forward_term
}

resil_forward_term() { # with cgroups SLURM signals the batch shell and srun's tasks, but no children of the batch shell
  local word words=('') file pid comm
  if [ -z "$resil_child" ] || [ -z "$resil_term" ] || [ -n "$resil_forwarded" ] || [ -z "${resil_forward:-}" ]; then
    return
  fi
  resil_forwarded=yes
  while IFS= read -r -d '' word; do words+=("$word"); done 2>/dev/null <"/proc/$resil_child/cmdline"
  if [ "${words[*]:1:4}" != 'bash -o pipefail -c' ]; then
    kill -s TERM "$resil_child" 2>/dev/null
    return
  fi
  # The shell around a compound command would be ended and leave the training as an orphan: signal its
  # children, except for `tee`, to which the training writes until its end.
  while IFS= read -r file; do
    pid=${file#/proc/} pid=${pid%/status} comm=
    { read -r comm <"/proc/$pid/comm"; } 2>/dev/null
    [ "$comm" = tee ] || kill -s TERM "$pid" 2>/dev/null
  done < <(grep -ls "^PPid:[[:blank:]]*$resil_child\$" /proc/[0-9]*/status)
}

# ---- forced end -----------------------------------------------------------------------------------------------

# A training that does not stop for the kill switch or for stop_after is ended in stages: at the time limit the stacks of
# all ranks and SIGTERM, after KillWait SIGKILL. Only the clock decides, and nothing here may wait for a hung file system,
# which may be the reason that the training hangs.
resil_stages() {
  resil_say_kill
  if [ -n "$resil_stop_at" ] && [ -z "$resil_stop_near" ] && ((SECONDS >= resil_stop_at - RESIL_SIGNAL_LEAD_S)); then
    resil_stop_near=yes
    resil_find_out </dev/null &
    resil_request_stop "$resil_stop_after" \
      "$resil_stop_after: $((resil_stop_at - SECONDS)) s are left before the batch shell ends it" \
      stop_after "${resil_stop_after//[!0-9]/}"
  fi
  case $resil_stage in
    '' | stacks)
      if ! resil_overdue; then
        resil_stage=
      elif [ -z "$resil_stage" ] && [ -n "$resil_guarded" ]; then
        resil_stage=stacks resil_stage_at=$SECONDS
        resil_aside resil_ask_for_stacks "$REPLY"
        resil_setting BEAT_S || REPLY=10
        resil_stacks_s=$((REPLY < 10 ? REPLY + 2 : 12))
      elif [ -z "$resil_stage" ] || ((SECONDS >= resil_stage_at + resil_stacks_s)); then
        resil_stage=TERM resil_stage_at=$SECONDS resil_term=TERM resil_forced="$REPLY: ended with SIGTERM"
        if [ -n "${resil_forward:-}" ]; then
          resil_forward_term
        else # to the tasks of every srun, on all nodes
          resil_aside resil_scancel --signal=TERM "$RESIL_JOB_ID"
        fi
        resil_aside resil_record kill_term "$REPLY" "$REPLY: sent SIGTERM" kill_wait_s "$resil_kill_wait_s"
      fi
      ;;
    TERM)
      ((SECONDS >= resil_stage_at + resil_kill_wait_s)) || return 0
      resil_stage=KILL resil_stage_at=$SECONDS resil_forced=${resil_forced%TERM}KILL
      resil_aside resil_record kill_kill "${resil_forced%: *}" "not over $resil_kill_wait_s s after SIGTERM: SIGKILL"
      local resil_spared="$resil_waiter $resil_beat_pid"
      resil_aside resil_kill_training
      ;;
    KILL) # blocked in the kernel, where signals have no effect: SLURM drains such a node after the job
      ((SECONDS < resil_stage_at + 30)) || resil_code=${resil_code:-137}
      ;;
  esac
}

resil_overdue() { # REPLY: why the training must be ended by force now; fails if not due
  if [ -n "$resil_kill" ] && ((SECONDS >= resil_kill_at)); then
    REPLY="$resil_kill, $resil_kill_late"
  elif [ -n "$resil_stop_at" ] && ((SECONDS >= resil_stop_at)); then
    REPLY="$resil_stop_after is over"
  else
    return 1
  fi
}

resil_hear_of_kill() { # news: only noted, resil_stages does the rest. When SIGTERM was sent it comes too late
  local word=${1%% *} rest=${1#* }
  case $resil_stage in TERM | KILL) return 0 ;; esac
  case $word in
    killed)
      if [ -z "$resil_kill" ]; then # a change of reason or scope does not restart the stages
        resil_kill_at=$((SECONDS + ${rest%% *})) resil_kill_late="no step within ${rest%% *} s"
      fi
      rest=${rest#* }
      resil_scope=${rest%% *} resil_kill=${rest#* }
      ;;
    taken)
      [ -n "$resil_kill" ] || return 0
      resil_kill_at=$((SECONDS + rest)) resil_kill_late="told to stop, and not over within $rest s"
      ;;
    cleared) resil_kill='' resil_scope='' ;;
  esac
  resil_kill_news+=" $word"
}

resil_say_kill() { # print and journal the heartbeat's messages about the kill switch
  local word news=$resil_kill_news
  resil_kill_news=
  for word in $news; do
    resil_time $((resil_kill_at - SECONDS))
    case $word in
      killed)
        resil_find_out </dev/null &
        resil_aside resil_record kill_noticed "$resil_kill" \
          "$resil_kill. The training may stop at a step until $REPLY; then it gets SIGTERM, and SIGKILL after KillWait" \
          bound_s $((resil_kill_at - SECONDS)) scope "\"$resil_scope\""
        ;;
      taken)
        resil_aside resil_record kill_taken "$resil_kill" \
          "the training has decided to stop; it may save and end until $REPLY" bound_s $((resil_kill_at - SECONDS))
        ;;
      cleared) resil_aside resil_record kill_cleared '' 'the kill switch was cleared: the training continues' ;;
    esac
  done
}

resil_find_out() { # in the background, because it may be slow: data for a forced end
  local file=$RESIL_RUN_DIR/journal/$RESIL_JOB_ID.0.jsonl start="^{\"event\":\"start\",.*\"attempt\":$RESIL_ATTEMPT,"
  if [ -f "$file" ] && [ ! -L "$file" ] && timeout 20 grep -q "$start" "$file" 2>/dev/null; then
    printf 'guarded\n' >&"$resil_news"
  fi
  if [ "${RESIL_SCHEDULER:-}" = local ]; then
    REPLY="KillWait=${RESIL_LOCAL_KILL_WAIT_S:-}"
  else
    REPLY=$(unset SLURM_CLUSTERS && LC_ALL=C timeout -k 5 20 scontrol show config 2>/dev/null)
  fi
  [[ $REPLY =~ KillWait\ *=\ *([0-9]{1,9}) ]] && printf 'kill-wait %d\n' $((10#${BASH_REMATCH[1]})) >&"$resil_news"
}

# The heartbeat writer of each node checks for this file at each heartbeat, and makes its ranks write their stacks, even
# if they are blocked. A single rank has no heartbeat writer, and writes its stacks to stderr at SIGRTMIN+9
# (resilience/guard/stacks.py), if it handles this signal.
resil_ask_for_stacks() { # why
  local line beats="$RESIL_RUN_DIR/beats/$RESIL_JOB_ID.$resil_host" pids=() caught
  resil_record kill_stacks "$1" "$1: asking all ranks for their stacks"
  (umask "$resil_umask" && : >"$resil_stacks_file") 2>/dev/null
  while IFS= read -r line; do
    [[ $line =~ ^pid\ =\ ([0-9]+)$ ]] && pids+=("${BASH_REMATCH[1]}")
  done < <(resil_read "$beats")
  ((${#pids[@]} == 1)) || return
  caught=$(sed -n 's/^SigCgt:[[:blank:]]*//p' "/proc/${pids[0]}/status" 2>/dev/null)
  [[ $caught =~ ^[0-9a-f]{16}$ ]] && ((0x$caught >> 42 & 1)) && kill -s RTMIN+9 "${pids[0]}" 2>/dev/null
}

resil_record() { # event why sentence [key json]...
  local event=$1
  resil_say "$3"
  resil_json "$2"
  shift 3
  resil_journal "$event" why "$REPLY" "$@"
}

resil_aside() { # command...: in the background, with a timeout of a few seconds: its file system or SLURM may hang
  local until=$((SECONDS + 5)) pid
  "$@" </dev/null &
  pid=$!
  while ((SECONDS < until)) && kill -0 "$pid" 2>/dev/null; do resil_hear 0.05; done
}

# ---- from beginning to end ------------------------------------------------------------------------------------

resil_check_start() { # check whether this job may train
  resil_act
  if [ -e "$RESIL_RUN_DIR/finished" ]; then
    resil_say "the run $RESIL_RUN is finished; nothing to do"
    resil_finish 0 finished 'the run is finished'
  elif resil_killed; then
    resil_say "$REPLY"
    local why=$REPLY
    resil_say "exiting with 75; to continue the run: resil clear $RESIL_RUN"
    resil_finish 75 stopped "$why"
  elif [ -n "$resil_stop_asked$resil_term" ]; then
    resil_finish 75 stopped "requested to stop before the launch"
  fi
}

resil_begin() {
  local directory
  if [ ! -d "$RESIL_RUN_DIR" ]; then
    resil_say "cannot use the run directory $RESIL_RUN_DIR on $resil_host: is the file system mounted here?"
    exit 75
  fi
  for directory in switches journal attempts logs; do
    [ -d "$RESIL_RUN_DIR/$directory" ] || (umask "$resil_umask" && mkdir -p -- "$RESIL_RUN_DIR/$directory")
  done
  rm -f -- "$resil_stop_file" "$resil_stacks_file" # of an earlier start of this job: a requeue keeps the id
  exec {resil_news}<> <(:) # a pipe for messages of the heartbeat and the waiter
  resil_traps
  resil_check_start
  resil_check_breaker
  if ! resil_take_number; then
    resil_say "cannot write to $RESIL_RUN_DIR/attempts on $resil_host: is the disk or the quota full?"
    [ -z "$resil_act_enabled" ] || resil_hold_siblings # they would end here as well
    resil_finish 75 stopped "no attempt number could be taken"
  fi
  resil_heartbeat </dev/null &
  resil_beat_pid=$!
  resil_wait_for_previous
  resil_check_start
  resil_check_breaker counted
  resil_time
  resil_say "START attempt $RESIL_ATTEMPT of $RESIL_RUN: job $resil_label on $resil_host at $REPLY, restart $RESIL_RESTART_COUNT"
  resil_journal attempt_start nodes "\"${SLURM_JOB_NODELIST:-$resil_host}\""
  if [ -n "$resil_keep_queued" ]; then
    resil_keep_jobs_queued </dev/null &
    resil_queue_pid=$!
  fi
}

resil_job_environment() { # variables of the job for the launch
  export RESIL_END_TIME=${SLURM_JOB_END_TIME:-}
  if [ -z "$RESIL_END_TIME" ] && [ "${RESIL_SCHEDULER:-}" != local ] && [ "$RESIL_JOB_ID" != 0 ]; then
    RESIL_END_TIME=$(SLURM_TIME_FORMAT=%s resil_squeue -j "$RESIL_JOB_ID" -o %e) || RESIL_END_TIME=
  fi
  [[ $RESIL_END_TIME =~ ^[0-9]+$ ]] || RESIL_END_TIME= # N/A, NONE: unknown, unlimited
  unset RESIL_STOP_AT # of the job that this one was submitted from
  if resil_setting STOP_AFTER; then
    resil_stop_after="stop_after = $REPLY s" resil_stop_at=$((SECONDS + REPLY))
    printf -v RESIL_STOP_AT '%(%s)T' -1
    export RESIL_STOP_AT=$((RESIL_STOP_AT + REPLY))
    if [ -z "$RESIL_END_TIME" ] || ((RESIL_END_TIME > RESIL_STOP_AT)); then RESIL_END_TIME=$RESIL_STOP_AT; fi
  fi
  export MASTER_ADDR='' MASTER_PORT=$((10000 + RESIL_JOB_ID % 22000)) # below the ephemeral ports, which begin at 32768
  if [ -n "${SLURM_JOB_NODELIST:-}" ]; then
    read -r MASTER_ADDR < <(timeout 20 scontrol show hostnames "$SLURM_JOB_NODELIST" 2>/dev/null) || :
  fi
  [ -n "$MASTER_ADDR" ] || MASTER_ADDR=$(hostname)
  export NCCL_RAS_ADDR=${NCCL_RAS_ADDR:-localhost:$((28100 + RESIL_JOB_ID % 800))} # jobs on one node would share one port
  if [ -z "${TORCH_FR_DUMP_TEMP_FILE:-}${TORCH_NCCL_DEBUG_INFO_TEMP_FILE:-}" ]; then # else in HOME, over those of other jobs
    export TORCH_FR_DUMP_TEMP_FILE=$RESIL_RUN_DIR/traces/$RESIL_JOB_ID.$RESIL_RESTART_COUNT/rank_
    export TORCH_NCCL_DEBUG_INFO_TEMP_FILE=$TORCH_FR_DUMP_TEMP_FILE # its name before torch 2.9
    (umask "$resil_umask" && mkdir -p -- "${TORCH_FR_DUMP_TEMP_FILE%/*}") 2>/dev/null || :
  fi
  if [ -z "${TORCH_FR_BUFFER_SIZE:-}${TORCH_NCCL_TRACE_BUFFER_SIZE:-}" ]; then # NCCL's recorder: newer versions have it on
    export TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_TRACE_BUFFER_SIZE=2000
  fi
  # Since 22.05 srun does not inherit it; and --export=NONE applies to the batch shell, not to the launch.
  [ -n "${SLURM_CPUS_PER_TASK:-}" ] && export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
  [ "${SLURM_EXPORT_ENV:-}" = NONE ] && export SLURM_EXPORT_ENV=ALL
  export SLURM_NNODES=${SLURM_NNODES:-1}
}

resil_setup_failed() { # code command
  resil_say "the setup failed with $1 at: $2"
  exit "$1"
}

# Run a command of resil that looks at the nodes. resil_checked: its exit code and its last line; empty: no answer.
resil_ask_about_nodes() { # command function: called meanwhile
  local pid began=$SECONDS
  resil_checked=
  (
    trap - EXIT
    resil_deaf
    if [ -n "${resil_nodes:-}" ]; then
      resil_use_nodes ${#resil_left[@]}
      export RESIL_LEFT="$resil_nodes ${resil_left[*]}"
    fi
    said=$(timeout -k 5 60 bash -c "$1" </dev/null 2>&1)
    code=$? said=${said:-no answer}
    resil_say "nodes: ${said//$'\n'/$'\n'resil: nodes: }"
    said=${said##*$'\n'}
    printf 'checked %d %s\n' "$code" "${said:0:1000}" >&"$resil_news"
  ) </dev/null &
  pid=$!
  while [ -z "$resil_checked" ]; do
    if ! resil_hear 0.2 && ! kill -0 "$pid" 2>/dev/null; then break; fi
    "$2"
  done
  while resil_hear 0.01; do :; done
  resil_json "${resil_checked#* }"
  resil_journal nodes_checked code "${resil_checked%% *}" said "$REPLY" seconds $((SECONDS - began))
}

# With [nodes] preflight: 75 if this job has a bad node that the queued jobs of the run now avoid, 11 if it has a spare.
# Anything else does not keep a training from its launch: a check that cannot run here, or nowhere else to go.
resil_check_nodes() {
  [ -n "$resil_preflight" ] || return 0
  resil_ask_about_nodes "$resil_preflight" resil_check_start
  case ${resil_checked%% *} in
    75) resil_finish 75 exited "${resil_checked#* }" ;;
    11) [ -z "${resil_nodes:-}" ] || resil_leave_out "${resil_checked#* }" || : ;;
  esac
}

# Run the command and get its true exit code. `wait` and traps do not combine: under many signals bash 5.2 was observed
# to return 128 + signal without running a trap, and to lose the exit code of a child. So a subshell without traps, which
# ignores all signals, waits and reports the code by a pipe.
resil_launch() { # program argument...
  resil_check_start
  if resil_superseded; then
    resil_finish 75 superseded "attempt $REPLY has begun"
  fi
  resil_oom_kills
  resil_oom_before=$REPLY
  if [ -n "${resil_nodes:-}" ]; then
    [ "$1" != srun ] || set -- srun "${resil_on[@]}" "${@:2}"
    resil_journal launch nodes "\"$SLURM_JOB_NODELIST\""
  else
    resil_journal launch
  fi
  (
    resil_deaf
    trap - EXIT
    (
      trap - HUP INT QUIT USR1 USR2 ALRM TERM "$resil_signal"
      exec "$@" {resil_news}>&-
    ) &
    printf 'pid %s\n' $! >&"$resil_news"
    wait $!
    printf 'code %s\n' $? >&"$resil_news"
  ) </dev/null &
  resil_waiter=$!
  resil_launched=true resil_launched_at=$SECONDS
  resil_code=
  while [ -z "$resil_code" ]; do
    if resil_hear 0.5; then
      while resil_hear 0.01; do :; done # all messages: a switch may have been set and cleared meanwhile
    fi
    resil_act
    [ -n "$resil_code" ] || resil_stages
    if [ -z "$resil_code" ] && ! kill -0 "$resil_waiter" 2>/dev/null; then
      while resil_hear 0.1; do :; done # several messages may be pending on a slow machine
      resil_code=${resil_code:-137} # only SIGKILL can end it early
    fi
  done
  resil_child=
}

resil_hear() { # seconds: read one message within this time; fails if there is none
  local line=
  if ! IFS= read -r -t "$1" -u "$resil_news" line; then
    resil_half+=$line # timeout in the middle of a line
    return 1
  fi
  line=$resil_half$line
  resil_half=
  case $line in
    'pid '*) resil_child=${line#* } resil_launch_pid=${line#* } && resil_forward_term ;;
    'code '*) resil_code=${line#* } ;;
    'superseded '*) resil_superseded_by=${line#* } ;;
    'killed '* | 'taken '* | cleared) resil_hear_of_kill "$line" ;;
    guarded) resil_guarded=yes ;;
    'checked '*) resil_checked=${line#* } ;;
    'kill-wait '*) resil_kill_wait_s=${line#* } ;;
  esac
}

# srun ends with 0 (22.05) or 1 (24.11) when SLURM gives up one of its nodes ("srun: error: Node failure on n5"), and its
# tasks may keep running. So its exit code counts only while the job is running. REPLY: RUNNING, or the job's new state.
resil_check_job() {
  REPLY=RUNNING
  if [ -z "${resil_forward:-}" ] && [ "$RESIL_JOB_ID" != 0 ]; then
    resil_asked=-99
    resil_job_state "$RESIL_JOB_ID" "$RESIL_JOB_ID" "$resil_user"
    case $REPLY in GONE | COMPLETING | UNKNOWN) ;; *) REPLY=RUNNING ;; esac
    [ "$REPLY" = RUNNING ] && ((resil_code < 128)) || [ "$SLURM_NNODES" = 1 ] || resil_gone=false
  fi
}

# What the guards wrote about the end of this attempt. Rank 0 writes its `end` once all ranks have said good-bye, and how
# many of them left in good order (`well` of `ranks`); a rank that had lost rank 0 writes its own. An `exit` tells that a
# process ended in another way after all. REPLY is the exit code that the training meant; or "stop" when it was told to
# stop, has saved, and then ended without a word. Fails when there is no such word. resil_guard_why is a sentence.
resil_guard_said() {
  local journal=$RESIL_RUN_DIR/journal/$RESIL_JOB_ID file line own="\"attempt\":$RESIL_ATTEMPT," begin=0 rank=0
  local code='' ranks=1 well=0 stop='' stop_step=0 stopped='' failed='' text='"((why|error)":|reasons":\[)"(([^"\]|\\.)*)"'
  REPLY='' resil_guard_why='' resil_unfollowed='' resil_guard_pid='' resil_guard_failed=''
  [ -f "$journal.0.jsonl" ] && [ ! -L "$journal.0.jsonl" ] || return
  while IFS= read -r line; do
    case $line in
      'rank '*) rank=1 ;;
      '{"event":"start",'*"$own"*) # of two trainings in one job the last one counts
        code='' well=0 stop='' stopped='' failed='' resil_guard_why='' resil_unfollowed=''
        [[ $line =~ \"pid\":([0-9]+) ]] && resil_guard_pid=${BASH_REMATCH[1]}
        [[ $line =~ \"time\":([0-9]+) ]] && begin=${BASH_REMATCH[1]}
        ;;
      '{"event":"decision",'*"$own"*'"stop":true,'*)
        stop=told stop_step=0
        [[ $line =~ \"step\":([0-9]+) ]] && stop_step=${BASH_REMATCH[1]}
        [[ $line =~ $text ]] && resil_guard_why=${BASH_REMATCH[3]}
        ;;
      '{"event":"save_failed",'*"$own"*)
        [ $rank = 0 ] && failed=yes
        ;;
      '{"event":"save",'*"$own"*) # one that was in flight before is not the one of the stop
        failed=''
        [ -n "$stop" ] && [[ $line =~ \"step\":([0-9]+) ]] && ((BASH_REMATCH[1] >= stop_step)) && stop=saved
        ;;
      '{"event":"end",'*"$own"* | '{"event":"exit",'*"$own"*)
        [[ $rank = 0 || ($line =~ \"time\":([0-9]+) && ${BASH_REMATCH[1]} -ge $begin) ]] || continue
        [[ $line =~ \"exit_code\":([0-9]+)[,}] ]] || continue
        case $code:${BASH_REMATCH[1]} in
          :* | 0:* | 75:[1-9]*) # an error counts for more than a stop, and that for more than 0
            code=${BASH_REMATCH[1]}
            [[ $line =~ $text ]] && resil_guard_why=${BASH_REMATCH[3]}
            ;;
        esac
        [[ $line == *'"unfollowed":true'* ]] && resil_unfollowed=yes
        [[ $line == '{"event":"end"'* ]] || continue
        [[ $line =~ \"stopped\":true[,}] ]] && stopped=yes
        [[ $line =~ \"ranks\":([0-9]+) ]] && ranks=${BASH_REMATCH[1]}
        if [[ $line =~ \"well\":([0-9]+) ]]; then well=$((well + BASH_REMATCH[1])); else well=$((well + 1)); fi
        ;;
    esac
  done < <(
    timeout 20 tail -n 200 -- "$journal.0.jsonl" 2>/dev/null
    printf '\nrank 1\n'
    for file in "$journal".[1-9]*.jsonl; do
      [ -f "$file" ] && [ ! -L "$file" ] && printf '%s\0' "$file"
    done | timeout 20 xargs -0 -r grep -hE '^\{"event":"(end|exit)",' -- /dev/null 2>/dev/null
  )
  case $code in '' | 0 | 75) ;; *) resil_guard_failed=yes ;; esac
  resil_guard_why=${resil_guard_why//\\\"/\"} resil_guard_why=${resil_guard_why//\\\\/\\}
  case $code:$stop:$stopped in
    ::*) [ -z "$failed" ] || REPLY=1 resil_guard_why='its last save failed, and it ended without an end record' ;;
    :saved:*) REPLY=stop ;;
    :told:*) REPLY=1 resil_guard_why='the training was requested to stop, and ended without a save and without an end record' ;;
    0:* | 75:*) # 75 is the exit code after a stop; other codes are the training's own
      REPLY=$code
      if [ -n "$stopped" ] && ((well < ranks)); then
        REPLY=1 resil_guard_why="only $well of $ranks ranks ended cleanly"
      elif [ -n "$stopped" ]; then
        REPLY=75
      fi
      [ "$REPLY" != 75 ] || [ -n "$stopped" ]
      return
      ;;
    *) REPLY=$code ;;
  esac
  [ -n "$REPLY" ]
}

# The code of the launch and the guards' word may differ. A launcher turns the 75 of its workers into a 1 (torchrun,
# accelerate), or into 137 or 143 when it ends the others because of it (srun --kill-on-bad-exit). And a training that
# forgets sys.exit(guard.exit_code) ends with 0, as if it were done: a stop, or a loss that is NaN, must not finish the
# run. Any other code is the training's own, and stays.
resil_hear_guard() {
  local code=$resil_code
  resil_guard_said || return
  case $resil_code:$REPLY in
    0:0 | 75:0 | 75:75 | 75:stop) ;;
    1:75) [ "${resil_guard_pid:--}" = "${resil_launch_pid:-}" ] || resil_code=75 ;; # no launcher between: its own 1
    0:stop | 0:75 | 137:75 | 143:75) resil_code=75 ;;
    0:* | 75:*) resil_code=$REPLY ;;
    143:[1-9]*) [ -n "${resil_term:-}${resil_forced:-}" ] || resil_code=$REPLY ;; # srun ends the others because of one
  esac
  [ "$resil_code" = "$code" ] ||
    resil_say "the launch exited with $code; its guard recorded $resil_code: $resil_guard_why"
}

# Rank 0 marks the run as finished when its own saves are durable. Another rank may hear only then that its last one is not.
resil_unfinish() {
  resil_read "$RESIL_RUN_DIR/finished" | grep -qxF "attempt = $RESIL_ATTEMPT" || return
  rm -f -- "$RESIL_RUN_DIR/finished"
  resil_record unfinished "$resil_guard_why" "the run is not finished after all: $resil_guard_why"
}

resil_end() { # the launch has ended: decide the reason and the exit code
  local text taken=no
  [ -z "${resil_nodes:-}" ] || resil_look_at_nodes
  resil_deaf
  resil_hear_guard
  if [ "$resil_code" != 0 ] && [ -n "${resil_guard_failed:-}" ]; then
    resil_unfinish
  fi
  # The heartbeat may not have seen the switch yet; and only a switch that is still set affects other jobs.
  if resil_killed; then resil_stop_asked=${resil_stop_asked:-$REPLY}; else resil_scope=; fi
  if [ -n "$resil_lost" ] && [ "$resil_code" != 75 ]; then
    resil_gone=false
    resil_finish $((resil_code == 0 ? 75 : resil_code)) lost "$resil_lost"
  fi
  resil_check_job
  case $REPLY in GONE | COMPLETING) taken=yes ;; UNKNOWN) resil_unsure=yes ;; esac
  [ -z "${resil_guard_failed:-}" ] || resil_unsure=
  # A lost node, which sends no SIGTERM: the training has neither succeeded nor failed.
  if [ "$taken$resil_term$resil_forced${resil_guard_failed:-}" = yes ] && ((resil_code < 2)); then
    resil_say "the launch ended with $resil_code, but SLURM has revoked the job: this is not a success, nor a failure of the training"
    resil_finish $((resil_code == 0 ? 75 : 1)) lost "SLURM revoked the job under the launch, as for a lost node"
  fi
  if [ "$resil_code" = 0 ]; then
    case $REPLY in
      GONE | COMPLETING)
        resil_finish 75 terminated "SLURM ended the job under the launch"
        ;;
      UNKNOWN)
        resil_say "exit code 0, but SLURM does not respond, so the state of the job is unknown: the run is not marked as finished"
        resil_finish 0 exited "SLURM did not respond"
        ;;
    esac
    if [ -n "$resil_unfollowed" ] && [ ! -e "$RESIL_RUN_DIR/finished" ]; then
      resil_finish 0 exited 'the training was requested to stop, but ran to its own end'
    fi
    if [ -n "$resil_finish_on_success" ] && [ -z "$resil_stop_asked$resil_term" ] && [ ! -e "$RESIL_RUN_DIR/finished" ]; then
      printf -v text 'attempt = %d\ntime = %(%s)T\njob = "%s"' "$RESIL_ATTEMPT" -1 "$resil_label"
      resil_write "$RESIL_RUN_DIR/finished" "$text" || resil_say "cannot write $RESIL_RUN_DIR/finished"
    fi
    [ -e "$RESIL_RUN_DIR/finished" ] && resil_finish 0 finished ''
  elif [ "$resil_code" = 75 ]; then
    resil_finish 75 stopped "${resil_forced:-${resil_stop_asked:-${resil_guard_why:-stopped as requested}}}"
  fi
  if [ -n "$resil_term" ]; then
    resil_finish "$resil_code" terminated "${resil_forced:-SIG$resil_term}"
  fi
  if [ "$taken" = yes ]; then
    resil_finish "$resil_code" terminated "SLURM ended the job under the launch"
  fi
  resil_finish "$resil_code" exited "$resil_guard_why"
}

resil_finish() { # code end why: record the end of this attempt, and exit
  local code=$1 end=$2 why=$3 text json progress=
  resil_deaf
  resil_over=yes
  if [ -n "$resil_beat_pid" ]; then
    # shellcheck disable=SC2086 # words
    kill -s TERM $resil_beat_pid $resil_queue_pid 2>/dev/null
    while resil_hear 0.01; do :; done
    if [ -n "$resil_superseded_by" ]; then
      code=75 end=superseded why="attempt $resil_superseded_by has begun"
    fi
  fi
  resil_json "$why" && json=$REPLY
  resil_clean "$why" && why=$REPLY
  if [ -n "$resil_number" ]; then
    if [ "$resil_launched" = true ] && ! resil_kill_training; then # its remaining processes, as SLURM does after the job
      resil_say "processes of this attempt cannot be killed:$REPLY"
      resil_gone=false
    fi
    resil_plain "$why" && why=$REPLY
    resil_count "$end" "$code" && progress=yes
    printf -v text 'end = "%s"\nexit_code = %d\ntime = %(%s)T\nlaunched = %s\ngone = %s\nburnt = %d\noutside = %d\n' \
      "$end" "$code" -1 "$resil_launched" "$resil_gone" "$resil_burnt" "$resil_outside"
    [ -z "$resil_oom_before" ] || resil_oom_kills
    if [ -n "$resil_oom_before" ] && [ -n "$REPLY" ]; then
      text+="oom_kills = $((REPLY > resil_oom_before ? REPLY - resil_oom_before : 0))"$'\n'
    fi
    text+="${resil_best:+durable = $resil_best$'\n'}why = \"$why\""
    if resil_write "$RESIL_RUN_DIR/attempts/$resil_number.end" "$text"; then
      rm -f -- "$RESIL_RUN_DIR/attempts/$resil_number.beat" "$RESIL_RUN_DIR/attempts/.$resil_number.beat."*
    else
      resil_say "cannot write $RESIL_RUN_DIR/attempts/$resil_number.end"
    fi
  fi
  if [ "$resil_scope" = all ] && [ "$end" != superseded ]; then resil_cancel_siblings; fi
  if [ -n "$progress" ]; then
    resil_reset_breaker
  elif [ -n "$resil_number" ] && { [ "$end" = exited ] || [ "$end" = terminated ]; }; then
    resil_trip "attempt $RESIL_ATTEMPT (job $resil_label on $resil_host) ended with exit code $code${why:+: $why}" || :
  fi
  resil_journal "attempt_end" end "\"$end\"" exit_code "$code" launched "$resil_launched" reason "$json"
  resil_time
  resil_say "END attempt ${RESIL_ATTEMPT:--} of $RESIL_RUN: job $resil_label on $resil_host at $REPLY: $end, exit code $code"
  [ -z "$resil_rest" ] || resil_go_on_here
  resil_requeue_self "$end" || :
  exit "$code"
}

resil_on_exit() { # code: exit was called by the setup or by a block of the template
  [ -n "$resil_over" ] || resil_finish "$1" exited 'the batch script ended early'
}
# ---------------------------------------------------------------------------------------------------------------
