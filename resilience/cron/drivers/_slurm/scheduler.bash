# The body below the settings: runs the scheduler of cron, and keeps its chain of jobs. bash >= 4.2, SLURM's commands,
# coreutils; no Python. As a batch script it runs `resil cron job`, which ticks, and keeps the chain beside it. As
# `bash job.bash VERB` it prints one fact per line, and ends with 75 if SLURM did not answer or refused:
#     rows      row ID|STATE|START|END|NODE|REASON|COMMENT: the jobs of the chain
#     plan      submit COMMAND LINE, cancel IDS: what `keep` would do
#     keep      submitted ID, cancelled IDS, problem TEXT, ended TEXT; submits what is missing, cancels what is too much
#     end       cancelled IDS, signalled IDS: of waiting jobs, and of running ones, which end when their runs have ended
#     kill      cancelled IDS: of all
#     limits    partition NAME|LIMIT: as sinfo says
#     revive    for the batch shells of trainings; see there
#
# A daemon ticks until its end. Behind it wait a spare (`s`, a singleton, which starts when nothing of the chain runs)
# and a head (`h`, no singleton, which starts before the daemon's end; the daemon leaves when the head has ticked). A
# spare must be older than the head: `singleton` also waits for older jobs that wait. A pulse (`p`) belongs to a slot.
# A job's comment has its kind, its earliest start and a digest of this script: resil:.cron:TOKEN-KIND<begin>.DIGEST

set -u
mask=$(umask)
umask "$file_mask" # for our own files; entries run with the user's
directory=$state/driver
mark=resil:.cron:$token-
job=${SLURM_JOB_ID:-0}
script=$0 # SLURM's copy, where the state directory is missing
failed=0 slot=0 delay_s=0 facts='' seen='' sleeper='' problem='' stop_at=0 signalled=''
printf -v now '%(%s)T' -1
began=$now end=${SLURM_JOB_END_TIME:-$((${SLURM_JOB_START_TIME:-$now} + time_limit_s))}

say() { printf '%(%Y-%m-%dT%H:%M:%S%z)T %s\n' -1 "$*"; }
fact() { facts+="${*//$'\n'/; }"$'\n'; } # for Python, or the job's output

# Use only the environment recorded by `install`, not that of the submitter or of a surrounding training.
client() { "${clean[@]}" LC_ALL=C SLURM_TIME_FORMAT=%s timeout -k 5 40 "$@" </dev/null; }

pause() { # a trap ends it
  sleep "$1" &
  sleeper=$!
  wait "$sleeper" || kill "$sleeper" 2>/dev/null
}

# Check the state directory in a child, because it may hang: 0 ours, 10 missing, 11 stopped, 12 another installation,
# 13 no answer within a minute.
look_at_state() {
  local child i
  script=$0 seen=''
  (
    [[ -d $state ]] || exit 10
    [[ ! -e $state/stop ]] || exit 11
    [[ -e $state/driver.json ]] || exit 12
    text=$(<"$state/driver.json") || exit 13
    [[ $text == *"\"$token\""* ]] || exit 12
    [[ -r $directory/job.bash ]] || exit 14
  ) </dev/null >/dev/null 2>&1 &
  child=$!
  for ((i = 0; i < 600; i++)); do
    kill -0 "$child" 2>/dev/null || {
      wait "$child"
      i=$?
      ((i)) || script=$directory/job.bash
      ((i == 10 || i == 13)) || seen=1
      return "$i"
    }
    sleep "0.$((i < 20 ? 0 : 1))2"
  done
  return 13
}

is_over() { # REPLY: why no successor is wanted
  look_at_state
  case $? in
    11) REPLY='the scheduler was stopped' ;;
    12) REPLY='the scheduler was uninstalled, or installed anew' ;;
    *) return 1 ;;
  esac
}

# Read the queue: `waits` and `runs` are rows of other jobs by id, `all` every row. Fails when squeue does not answer.
look() {
  local rows row id code start ends node reason comment
  waits=() runs=() all=() own_end='' own_start=$began cancelled_lately=''
  rows=$(client squeue -h -u "$by" -n "$name" -t all -o '%A|%T|%S|%e|%N|%r|%k' 2>&1) || {
    problem="squeue does not answer: ${rows##*$'\n'}"
    return 1
  }
  printf -v now '%(%s)T' -1
  while IFS='|' read -r id code start ends node reason comment; do
    [[ $id =~ ^[0-9]+$ && " $comment" == *" $mark"* ]] || continue
    row="$id|$code|$start|$ends|$node|$reason|$mark${comment#*"$mark"}"
    all+=("$row")
    if [[ $id == "$job" ]]; then
      own_end=$ends own_start=${start//[!0-9]/}
      continue
    fi
    case $code in
      PENDING | REQUEUE* | RESV_DEL_HOLD | SPECIAL_EXIT) waits+=("$row") ;;
      RUNNING | CONFIGURING | SUSPENDED | STOPPED | STAGE_OUT | SIGNALING | RESIZING) runs+=("$row") ;;
      CANCELLED) if [[ ! $ends =~ ^[0-9]+$ ]] || ((ends >= stop_at - 30)); then cancelled_lately=1; fi ;;
    esac
  done < <(sort -t '|' -n <<<"$rows")
  [[ $own_end =~ ^[0-9]+$ ]] || own_end=$end
}

# Compare the queue with the wanted state: `missing` are pairs of kind and begin, `surplus` ids.
plan() {
  local row id code start kind begin mine is_right spares=1 newer='' current='' head=-1 first
  local overlap_s=$(((own_end - ${SLURM_JOB_START_TIME:-$began}) / 4))
  local -A there=()
  missing=() surplus=()
  for row in ${runs[@]+"${runs[@]}"}; do
    IFS='|' read -r id code start _ <<<"$row"
    ((job && (${start//[!0-9]/} + 0 > own_start || (${start//[!0-9]/} + 0 == own_start && id > job)))) && newer=1
    [[ $row == *".$digest" || $row == *".$digest "* ]] && current=1
  done
  if [[ $mode == pulse ]]; then
    first=$(((now > slot ? now : slot) + delay_s))
    first=$((first / pulse_s * pulse_s))
    local wanted=($((first + pulse_s)) $((first + 2 * pulse_s)))
    # Nothing is queued: the first pulse begins at once instead of at its slot.
    ((job + ${#waits[@]} + ${#runs[@]})) || wanted=("$first" $((first + pulse_s)))
  elif ((job)); then
    # A running daemon waits for nothing; one that fails leaves time before the next ones.
    head=$((delay_s ? now + delay_s : own_end - lead_s - (overlap_s < 3600 ? overlap_s : 3600)))
    ((head > now)) || head=$now
    [[ -z $newer ]] || head=-1
  elif ((${#runs[@]})); then
    [[ -n $current ]] || head=$now # with the options that count now; the one that runs leaves when it has ticked
  else
    spares=2
  fi
  local spare=$((delay_s && ! ${#runs[@]} ? now + 2 * delay_s : 0)) spare_there=0 head_there=''
  for row in ${waits[@]+"${waits[@]}"}; do
    IFS='|' read -r id _ <<<"$row"
    kind='' is_right=''
    if [[ ${row##*|} =~ ^"$mark"([a-z])([0-9]+)\.([A-Za-z0-9]+) ]]; then
      kind=${BASH_REMATCH[1]} begin=${BASH_REMATCH[2]} mine=${BASH_REMATCH[3]}
    fi
    if [[ -n $kind && $mine == "$digest" ]]; then
      case $mode$kind in
        daemons) ((spare_there < spares && (spare ? begin >= spare - 30 : begin <= now))) &&
          is_right=1 && spare_there=$((spare_there + 1)) ;;
        daemonh)
          if ((head < 0 && ${#runs[@]})); then
            is_right=1
          elif ((head >= 0 && spare_there && begin <= head + 60 && (!delay_s || begin >= now))); then
            [[ -n $head_there ]] || is_right=1
            head_there=1
          fi ;;
        pulsep)
          if [[ -z ${there[$begin]-} ]] && { ((!job && ${#there[@]} < 2 && begin <= wanted[1])) ||
            { ((job)) && [[ " ${wanted[*]} " == *" $begin "* ]]; }; }; then
            is_right=1 there[$begin]=1
          fi ;;
      esac
    fi
    [[ -n $is_right ]] || surplus+=("$id")
  done
  if [[ $mode == pulse ]]; then
    for begin in "${wanted[@]}"; do
      [[ -n ${there[$begin]-} ]] || ((${#there[@]} >= 2)) || { missing+=("p $begin") && there[$begin]=1; }
    done
  else
    for (( ; spare_there < spares; spare_there++)); do missing+=("s $spare"); done
    ((head < 0)) || [[ -n $head_there ]] || missing+=("h $head")
  fi
}

# submit KIND BEGIN: REPLY is the id, or the reply of sbatch.
command_line() {
  line=(sbatch --parsable "--comment=$mark$1$2.$digest$( ((failed)) && echo " failed=$failed")" "${options[@]}")
  [[ $1 == h ]] || line+=(--dependency=singleton)
  # Relative: sbatch would read a date in a time zone, which is ambiguous once a year.
  (($2 <= now)) || line+=("--begin=now+$(($2 - now))")
  # The node where Python cannot start attracts jobs, because it is idle.
  [[ $1 != h || $delay_s == 0 || -z ${SLURMD_NODENAME-} || $scheduler != slurm ||
    " ${options[*]}" == *" --exclude="* || " ${options[*]}" == *" --nodelist="* ]] || line+=("--exclude=$SLURMD_NODENAME")
  line+=("$script")
  [[ $1 != p ]] || line+=("slot=$2")
  ((!failed)) || line+=("failed=$failed")
}
submit() {
  command_line "$@"
  # SLURM passes the umask of sbatch on to the job.
  if REPLY=$(cd / && umask "$mask" && client "${line[@]}" 2>&1) && [[ $REPLY =~ (^|$'\n')([0-9]+)(\;[^$'\n']*)?$ ]]; then
    REPLY=${BASH_REMATCH[2]}
    return 0
  fi
  # Some clusters refuse to exclude their only node.
  [[ " ${line[*]} " == *" --exclude=${SLURMD_NODENAME-} "* && $REPLY == *onfiguration* ]] && SLURMD_NODENAME='' submit "$@"
}

# keep: make the queue what it should be. 0: it is; 3: no chain is wanted; 75: a problem. A stop is looked for before
# and after: `stop` writes its file first and cancels then, so one of the two cancels a job submitted in between.
# Every round begins with a look, so an sbatch that got no answer and was served all the same is found, not repeated.
keep() {
  local round one submitted=() code=0
  problem=''
  is_over && fact "ended $REPLY" && return 3
  # Installed with other options since this job began: the script that counts now keeps the chain.
  if ((job)) && [[ $script != "$0" && $'\n'$(<"$script") != *$'\n'"digest=$digest"$'\n'* ]]; then
    facts+=$(bash "$script" keep)
    return
  fi
  for round in 1 2 3; do
    look || { code=75 && break; }
    plan
    for one in ${missing[@]+"${missing[@]}"}; do
      # shellcheck disable=SC2086 # two words
      if submit $one; then
        submitted+=("$REPLY")
        fact "submitted $REPLY"
      else
        problem="sbatch: ${REPLY//$'\n'/; }"
        [[ $REPLY =~ imed\ out|Unable\ to\ contact|onnect|[Zz]ero\ [Bb]ytes || -z $REPLY ]] || code=75
        break
      fi
    done
    ((code)) && break
    if [[ -n $problem ]]; then # it may have been served all the same
      pause 2
      ((round < 3)) && problem='' || code=75
    elif ((${#missing[@]} == 0)); then
      if ((${#surplus[@]})); then
        client scancel --state=PENDING "${surplus[@]}" >/dev/null 2>&1 && fact "cancelled ${surplus[*]}"
      fi
      break
    fi
  done
  if is_over; then
    ((${#submitted[@]} == 0)) || client scancel --state=PENDING "${submitted[@]}" >/dev/null 2>&1
    fact "ended $REPLY"
    return 3
  fi
  if ((!code)); then
    for one in ${waits[@]+"${waits[@]}"}; do
      IFS='|' read -r round _ _ _ _ REPLY _ <<<"$one"
      [[ $REPLY =~ ^(JobHeld|Partition(Node|Time)Limit|PartitionConfig|BadConstraints|DependencyNever|Invalid) ]] &&
        problem="job $round is pending and will never start by itself: $REPLY" code=75
    done
  fi
  [[ -z $problem ]] || fact "problem $problem"
  return "$code"
}

# trouble TEXT: for `resil watch cron` and `resil cron status`; none: it is over.
trouble() {
  [[ -n $seen ]] || return 0 # missing, or hung
  if [[ -n ${1-} ]]; then
    printf '%s\n' "$1" >"$directory/trouble.$job" && mv -f "$directory/trouble.$job" "$directory/trouble"
  elif [[ -e $directory/trouble ]]; then
    rm -f "$directory/trouble" && say "the scheduler's chain of jobs is complete again"
  fi
} 2>/dev/null

keep_and_tell() {
  local code said
  facts=''
  keep
  code=$?
  said=${facts%$'\n'}
  [[ -z $said ]] || say "${said//$'\n'/; }"
  case $code in
    0) ((delay_s)) || trouble ;;
    75)
      said=${said##*problem }
      [[ $said != *denied* ]] || said="jobs apparently cannot submit jobs here: $said; use another backend: \
resil cron uninstall, then on a login node resil cron install --backend crontab, or --backend foreground (in tmux)"
      trouble "a successor of the scheduler's job is missing: $said"
      ;;
  esac
  return "$code"
}

keep_on() { # beside the scheduler
  local every=$(((end - began) / 20)) wait_s failures=0
  trap '[[ -z $sleeper ]] || kill "$sleeper" 2>/dev/null; exit' TERM
  ((every < 300)) || every=300
  ((every > 5)) || every=5
  while :; do
    keep_and_tell
    case $? in
      0) wait_s=$every failures=0 ;;
      3) return ;;
      *) wait_s=$((failures > 3 ? 300 : 60 << failures)) failures=$((failures + 1)) ;;
    esac
    ((wait_s < every)) || wait_s=$every
    [[ -z $seen ]] || find "$directory" -name '*.out' -printf '%T@ %p\0' 2>/dev/null | sort -znr | tail -zn +21 |
      cut -zd ' ' -f 2- | xargs -0r rm -f
    pause "$wait_s"
  done
}

# The job was cancelled, or its time is over. Cancelled together with all that waits: that is meant, and stops the
# scheduler. `scancel -u` takes a moment, so what waits now is looked at again.
last_word() {
  local i
  for i in 1 2 3 4; do
    is_over && return
    look && ((!${#waits[@]} && !${#runs[@]})) && break
    ((i == 4)) || pause 1
  done
  if ((!${#waits[@]} && !${#runs[@]})) && [[ -n $cancelled_lately ]]; then
    say "all jobs of the scheduler were cancelled together: it is stopped until resil cron install"
    printf '{"by":"%s","why":"its running and waiting jobs were cancelled together (scancel)","time":%d}\n' "$by" \
      "$now" >"$directory/stop.$job" && mv -f "$directory/stop.$job" "$state/stop"
    cancel_jobs waiting # what was queued meanwhile
  else
    keep_and_tell
  fi
}

# fail WHY: this job cannot work. The next ones begin in a minute, doubling to an hour.
fail() {
  local wait_s=2
  ((SECONDS < 600)) || failed=0 # it has worked before
  delay_s=$((failed > 5 ? 3600 : 60 << failed))
  failed=$((failed + 1))
  say "$1; bash keeps the chain: the next job begins in $((delay_s / 60)) min$(
    ((delay_s < 3600)) || echo ', and from now on once an hour')"
  trouble "$1 (failure $failed, the next job begins in $((delay_s / 60)) min): see $directory/$job.out on ${SLURMD_NODENAME-its node}"
  client scontrol update "jobid=$job" "comment=$mark${mode:0:1}0.$digest failed: $1" >/dev/null 2>&1
  until keep_and_tell; do
    (($? != 3 && !stop_at)) && ((now < end - 90)) || return 1
    pause "$wait_s"
    ((wait_s < 300)) && wait_s=$((wait_s * 2))
  done
  return 1
}

main() {
  local code=0 child='' keeper interrupted='' found word tries
  trap 'printf -v stop_at "%(%s)T" -1; interrupted=1; [[ -z $child ]] || kill -TERM "$child" 2>/dev/null' TERM INT HUP
  trap 'signalled=1 interrupted=1; [[ -z $child ]] || kill -USR1 "$child" 2>/dev/null' USR1
  for word in "$@"; do
    [[ $word =~ ^(failed|slot)=([0-9]+)$ ]] && printf -v "${BASH_REMATCH[1]}" %s "${BASH_REMATCH[2]}"
  done
  for tries in 1 2 3 4 5; do # a file server may show a new directory a moment later
    look_at_state
    found=$?
    ((found == 10 && tries < 5)) || break
    pause "$tries"
  done
  # Not with --output: a job whose output cannot be opened fails before its first line.
  if ((found != 10 && found != 13)) && { : >>"$directory/$job.out"; } 2>/dev/null; then
    exec >>"$directory/$job.out" 2>&1
  fi
  case $found in
    11) say "stopped on purpose: no successor" && return 0 ;;
    12) say "this installation was replaced: no successor" && return 0 ;;
    10 | 13)
      found="$state is missing or does not respond on ${SLURMD_NODENAME-this node}"
      ((failed < 30)) || { say "$found, for a day now: the scheduler ends" && return 1; }
      fail "$found"
      return
      ;;
  esac
  ((!stop_at)) || { last_word && return 0; }
  keep_on </dev/null &
  keeper=$!
  cd "$project" 2>/dev/null || cd /
  umask "$mask"
  "${clean[@]}" "SLURM_JOB_ID=$job" "SLURM_JOB_START_TIME=${SLURM_JOB_START_TIME:-$began}" "SLURM_JOB_END_TIME=$end" \
    "SLURMD_NODENAME=${SLURMD_NODENAME-}" "TMPDIR=${TMPDIR-/tmp}" \
    "$python" -P -m resilience cron job --token "$token" --scheduler "$scheduler" --slot "$slot" --end "$end" &
  child=$!
  umask "$file_mask"
  while :; do
    interrupted=''
    wait "$child"
    code=$?
    [[ -n $interrupted ]] || break
    if ((stop_at)) && [[ -n $keeper ]]; then # first of all, before anything slow is ended
      kill "$keeper" 2>/dev/null
      keeper=''
      last_word
    fi
  done
  child=''
  [[ -z $keeper ]] || { kill "$keeper" && wait "$keeper"; } 2>/dev/null
  if ((stop_at)); then
    return 0
  elif ((code == 0)) || [[ -n $signalled && $code -gt 128 ]]; then
    keep_and_tell
    return 0
  fi
  fail "the scheduler ended with code $code"
}

# revive: 0 the chain is alive, or was stopped or uninstalled on purpose, or another process is restarting it; 10 it was
# dead, and a job is queued; 75 the check failed, or sbatch refused: nothing was done. Prints one line, within two
# minutes, and changes only the queue and its own directory.
revive() {
  local claim id said
  look_at_state
  case $? in
    0 | 14) ;;
    11) say "the scheduler was stopped on purpose" && return 0 ;;
    10 | 12) say "this scheduler is no longer installed" && return 0 ;;
    *) say "the state directory does not respond: nothing was checked" && return 75 ;;
  esac
  [[ $(id -un) == "$by" ]] || { say "the scheduler belongs to $by: only $by can restart it" && return 75; }
  look || { say "$problem; the state of the scheduler is unknown" && return 75; }
  for id in ${runs[@]+"${runs[@]}"} ${waits[@]+"${waits[@]}"}; do
    say "the scheduler is alive: job ${id%%|*}" && return 0
  done
  # Many trainings may check at the same time: one of them acts (O_EXCL, which works on NFS).
  claim=$directory/revived.$((now / 120))
  if ! (set -C && : >"$claim") 2>/dev/null; then
    [[ -e $claim ]] && say "another process is restarting the scheduler" && return 0
    say "cannot write to $directory" && return 75
  fi
  keep
  said=$facts$problem
  if [[ $said != *submitted* ]]; then
    rm -f "$claim"
    [[ -n $said ]] || { say "the scheduler is alive again" && return 0; } # another process was faster
    say "the scheduler is dead, and sbatch refused: ${said//$'\n'/; }" && return 75
  fi
  find "$directory" -name 'revived.*' ! -name "${claim##*/}" -delete
  [[ $said =~ submitted\ ([0-9]+) ]]
  say "the scheduler was dead: job ${BASH_REMATCH[1]} restarts it"
  return 10
}

# cancel_jobs WORD...: cancel what waits first, as it would start otherwise; with `all`, then what runs.
cancel_jobs() {
  local i ids row errors=0
  for ((i = 0; i < 60; i++)); do
    look || { fact "problem $problem" && return 75; }
    ids=()
    for row in ${waits[@]+"${waits[@]}"}; do ids+=("${row%%|*}"); done
    if ((!${#ids[@]})) && [[ $1 == all ]]; then
      for row in ${runs[@]+"${runs[@]}"}; do ids+=("${row%%|*}"); done
    fi
    ((${#ids[@]})) || break
    REPLY=$(client scancel ${waits[@]+--state=PENDING} "${ids[@]}" 2>&1) && fact "cancelled ${ids[*]}"
    [[ -z $REPLY ]] || errors=$((errors + 1))
    ((errors < 3)) || { fact "problem $REPLY" && return 75; }
    ((i == 0)) || sleep 0.5
  done
  ((i < 60)) || { fact "problem jobs ${ids[*]} of the scheduler were not cancelled in time" && return 75; }
  for row in ${runs[@]+"${runs[@]}"}; do
    client scancel --batch --signal=USR1 "${row%%|*}" >/dev/null 2>&1
    fact "signalled ${row%%|*}"
  done
}

[[ ! ${1-} =~ ^(revive|keep|rows|plan|end|kill)$ ]] || job=0 script=$directory/job.bash
case ${1-} in
  revive) revive ;;
  keep) keep ;;
  rows | plan)
    look || { printf 'problem %s\n' "${problem//$'\n'/; }" && exit 75; }
    if [[ $1 == rows ]]; then
      for row in ${all[@]+"${all[@]}"}; do fact "row $row"; done
    else
      plan
      for pair in ${missing[@]+"${missing[@]}"}; do
        # shellcheck disable=SC2086 # two words
        command_line $pair
        fact "submit ${line[*]}"
      done
      ((!${#surplus[@]})) || fact "cancel ${surplus[*]}"
    fi
    ;;
  end) cancel_jobs waiting ;;
  kill) cancel_jobs all ;;
  limits) client sinfo -h -o 'partition %P|%l' ;;
  *) main "$@" ;;
esac
code=$?
[[ ${1-} == revive || ${job} != 0 ]] || printf %s "$facts"
exit "$code"
