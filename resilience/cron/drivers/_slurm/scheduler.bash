# The body below the settings: runs the scheduler, and maintains its chain of jobs. bash >= 4.2, squeue, sbatch, coreutils.
#
# As a batch script it runs `resil cron job`, which ticks and maintains the chain. If that cannot start (a broken
# environment, a file system that is not mounted here), bash alone queues the next job, and logs it.
#
# As `bash job.bash revive` it checks whether the chain is alive, and restarts it if squeue answers that it is not:
#     0  it is alive, or was stopped or uninstalled on purpose, or another process is restarting it
#     10 it was dead, and a job is queued
#     75 the check failed, or sbatch refused: nothing was done
# It prints one line in each case, within two minutes, and changes only the queue and its own directory.

set -u
mask=$(umask)
umask "$file_mask" # for our own files; entries run with the user's
directory=$state/driver
job=${SLURM_JOB_ID:-0}
ended=''
# If the state directory is missing or hung, SLURM's copy of the script for this job remains.
script=$0

say() { printf '%(%Y-%m-%dT%H:%M:%S%z)T %s\n' -1 "$*"; }

# Use only the environment recorded by `install`, not that of the submitter or of a surrounding training.
client() { "${clean[@]}" LC_ALL=C timeout -k 5 40 "$@"; }

pause() {
  local sleeper
  sleep "$1" &
  sleeper=$!
  wait "$sleeper" || kill "$sleeper" 2>/dev/null
}

# Check the state directory in a child, because it may hang: 0 ours, 10 missing, 11 stopped, 12 another installation,
# 13 no answer within a minute, 14 ours, but without the batch script.
look_at_state() {
  local child i
  script=$0
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
      wait "$child" && script=$directory/job.bash
      return
    }
    sleep "0.$((i < 20 ? 0 : 1))2"
  done
  return 13
}

# The ids of the chain's other jobs that wait or run; fails when squeue does not answer.
others() {
  local rows id state_code comment
  rows=$(client squeue -h --me -n "$name" -t all -o '%A %t %k' 2>/dev/null) || return 1
  while read -r id state_code comment; do
    [[ $id != "$job" && " $comment" == *" resil:.cron:$token-"* ]] || continue
    case $state_code in PD | R | CF | S | ST | SI | SO | RQ | RS | RH | RF) printf '%s\n' "$id" ;; esac
  done <<<"$rows"
}

# queue_one DELAY_S ARGUMENT...: submit a job of the chain that begins no sooner; a pulse at its slot.
queue_one() {
  local delay_s=$1 seed=$job letter=d now
  shift
  printf -v now '%(%s)T' -1
  if [[ $mode == pulse ]]; then
    letter=p
    seed=$(((now + delay_s) / pulse_s * pulse_s))
    ((seed > now)) || seed=$((now / pulse_s * pulse_s + pulse_s))
    delay_s=$((seed - now))
  fi
  (cd / && client sbatch --parsable --comment="resil:.cron:$token-$letter$seed.bash$now" --begin="now+$delay_s" \
    "${options[@]}" "$script" "$@" slot="$([[ $mode == pulse ]] && echo "$seed")" 2>&1)
}

# keep_chain DELAY_S ARGUMENT...: make sure that another job is queued; retry until this job ends. If the chain was
# stopped on purpose, so is this job.
keep_chain() {
  local pause_s=2 there said found
  while :; do
    look_at_state
    found=$?
    ((found == 11 || found == 12)) && say "stopped, or reinstalled: no successor" && exit 0
    if there=$(others); then
      if [[ -n $there ]]; then
        say "the chain continues with job ${there//$'\n'/, }"
        return 0
      fi
      if said=$(queue_one "$@"); then
        say "job ${said##*$'\n'} is queued and will continue the chain"
        return 0
      fi
      say "sbatch refused the next job of the chain: $said"
    else
      say "squeue does not answer; the state of the chain is unknown"
    fi
    [[ -z $ended ]] && ((SECONDS < time_limit_s - 90)) || return 1
    pause "$pause_s"
    ((pause_s < 300)) && pause_s=$((pause_s * 2))
  done
}

revive() {
  local mark there said now
  look_at_state
  case $? in
    0 | 14) ;;
    11) say "the scheduler was stopped on purpose" && return 0 ;;
    10 | 12) say "this scheduler is no longer installed" && return 0 ;;
    *) say "the state directory does not respond: nothing was checked" && return 75 ;;
  esac
  if [[ $(id -un) != "$by" ]]; then
    say "the scheduler belongs to $by: only $by can restart it"
    return 75
  fi
  job=0
  there=$(others) || {
    say "squeue does not answer; the state of the scheduler is unknown"
    return 75
  }
  if [[ -n $there ]]; then
    say "the scheduler is alive: job ${there//$'\n'/, }"
    return 0
  fi
  # Many trainings may check at the same time: one of them acts (O_EXCL, which works on NFS).
  printf -v now '%(%s)T' -1
  mark=$directory/revived.$((now / 120))
  if ! (set -C && : >"$mark") 2>/dev/null; then
    [[ -e $mark ]] && say "another process is restarting the scheduler" && return 0
    say "cannot write to $directory" && return 75
  fi
  said=$(queue_one 0) || {
    rm -f "$mark"
    say "the scheduler is dead, and sbatch refused: $said"
    return 75
  }
  for mark in "$directory"/revived.*; do
    [[ $mark == "$directory/revived.$((now / 120))" ]] || rm -f "$mark"
  done
  say "the scheduler was dead: job ${said##*$'\n'} restarts it"
  return 10
}

record_failure() { # Append a line to the history of the chain, for readers on other machines.
  local now text=${1//[\\\"]/ }
  printf -v now '%(%s)T' -1
  mkdir -p "$state/history" || return 0
  printf '{"name":"scheduler","slot":%d,"outcome":"failed","time":%d,"exit_code":%d,"job_id":"%s","host":"%s","summary":"%s"}\n' \
    "$now" "$now" "$2" "$job" "${SLURMD_NODENAME-}" "${text//[$'\n\t']/ }" >>"$state/history/scheduler.jsonl"
} 2>/dev/null

main() {
  local code child='' interrupted='' signalled='' lost=0 slot=0 found word
  trap 'ended=1 interrupted=1; [[ -z $child ]] || kill -TERM "$child" 2>/dev/null' TERM INT HUP
  trap 'signalled=1 interrupted=1; [[ -z $child ]] || kill -USR1 "$child" 2>/dev/null' USR1
  for word in "$@"; do
    case $word in lost=*) lost=${word#*=} ;; slot=*) slot=${word#*=} ;; esac
  done
  look_at_state
  found=$?
  # Not with --output: a job whose output cannot be opened fails before its first line.
  if ((found != 10 && found != 13)) && { : >>"$directory/$job.out"; } 2>/dev/null; then
    exec >>"$directory/$job.out" 2>&1
  fi
  case $found in
    11) say "stopped on purpose: no successor" && return 0 ;;
    12) say "this installation was replaced: no successor" && return 0 ;;
    10 | 13)
      say "$state is missing or does not respond on ${SLURMD_NODENAME-this node}"
      if ((lost >= 24)); then
        say "it has been unavailable for a day: the scheduler ends" && return 1
      fi
      keep_chain 3600 "lost=$((lost + 1))"
      return 1
      ;;
  esac
  cd "$project" 2>/dev/null || cd /
  umask "$mask"
  "${clean[@]}" "SLURM_JOB_ID=$job" "SLURM_JOB_START_TIME=${SLURM_JOB_START_TIME-}" \
    "SLURM_JOB_END_TIME=${SLURM_JOB_END_TIME-}" "SLURMD_NODENAME=${SLURMD_NODENAME-}" "TMPDIR=${TMPDIR-/tmp}" \
    "RESIL_CRON_SCRIPT=$0" "$python" -P -m resilience cron job --token "$token" --scheduler "$scheduler" --slot "${slot:-0}" &
  child=$!
  while :; do
    interrupted=''
    wait "$child"
    code=$?
    [[ -n $interrupted ]] || break
  done
  child=''
  umask "$file_mask"
  ((code == 0)) && return 0
  # 75: the job has logged the problem with its successors. Above 128: it was signalled, and died of that after its work.
  if ((code == 75)) || [[ -n $ended$signalled && $code -gt 128 ]]; then
    keep_chain 0
    return
  fi
  say "the scheduler ended with code $code; bash maintains its chain"
  record_failure "the scheduler's job ended with code $code: see $directory/$job.out" "$code"
  keep_chain 300
  # If every job fails at once, limit them to one a minute.
  while [[ -z $ended ]] && ((SECONDS < short_s)); do pause 1; done
  return 1
}

if [[ ${1-} == revive ]]; then
  revive
else
  main "$@"
fi
exit
