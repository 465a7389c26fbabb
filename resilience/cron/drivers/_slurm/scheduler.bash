# What follows the settings above: be the scheduler, and keep its chain of jobs. bash >= 4.2, squeue, sbatch, coreutils.
#
# As a batch script it runs `resil cron job`, which ticks and keeps the chain. Where that cannot start (a broken
# environment, a file system that is not mounted here), bash alone sees to it that a job waits, and says so.
#
# As `bash job.bash revive` it looks whether the chain lives, and starts it again if squeue answers that it does not:
#     0  it lives, or was stopped or uninstalled on purpose, or somebody is just reviving it
#     10 it was dead, and a job is queued
#     75 nobody could look, or sbatch refused: nothing was done
# It writes one line in each case, within two minutes, and touches nothing but the queue and its own directory.

set -u
mask=$(umask)
umask "$file_mask" # for our own files; what the scheduler runs gets the person's
directory=$state/driver
job=${SLURM_JOB_ID:-0}
ended=''
# Where the state directory is not there or hangs, the copy that SLURM keeps for this job still is.
script=$0

say() { printf '%(%Y-%m-%dT%H:%M:%S%z)T %s\n' -1 "$*"; }

# Nobody's environment but what `install` wrote down: neither of the person who submitted nor of a training around us.
client() { "${clean[@]}" LC_ALL=C timeout -k 5 40 "$@"; }

pause() {
  local sleeper
  sleep "$1" &
  sleeper=$!
  wait "$sleeper" || kill "$sleeper" 2>/dev/null
}

# Look at the state directory in a child, because it may hang: 0 ours, 10 not there, 11 stopped, 12 somebody else's,
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

# keep_chain DELAY_S ARGUMENT...: see to it that another job waits, and try on until this job ends. Where the chain was
# ended on purpose, so does this job.
keep_chain() {
  local pause_s=2 there said found
  while :; do
    look_at_state
    found=$?
    ((found == 11 || found == 12)) && say "stopped, or installed anew: no successor" && exit 0
    if there=$(others); then
      if [[ -n $there ]]; then
        say "the chain goes on with job ${there//$'\n'/, }"
        return 0
      fi
      if said=$(queue_one "$@"); then
        say "job ${said##*$'\n'} is queued and will go on"
        return 0
      fi
      say "sbatch refused the next job of the chain: $said"
    else
      say "squeue does not answer: whether the chain goes on is not known"
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
    10 | 12) say "this scheduler is not installed any more" && return 0 ;;
    *) say "the state directory does not answer: nothing was looked at" && return 75 ;;
  esac
  if [[ $(id -un) != "$by" ]]; then
    say "the scheduler is $by's: only $by can start it again"
    return 75
  fi
  job=0
  there=$(others) || {
    say "squeue does not answer: whether the scheduler lives is not known"
    return 75
  }
  if [[ -n $there ]]; then
    say "the scheduler lives: job ${there//$'\n'/, }"
    return 0
  fi
  # Many trainings may look in the same minutes: one of them acts (O_EXCL, which NFS keeps).
  printf -v now '%(%s)T' -1
  mark=$directory/revived.$((now / 120))
  if ! (set -C && : >"$mark") 2>/dev/null; then
    [[ -e $mark ]] && say "somebody is just starting the scheduler again" && return 0
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
  say "the scheduler was dead: job ${said##*$'\n'} starts it again"
  return 10
}

tell_history() { # One line for the history of the chain, for those who look on from other machines.
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
  # Not by --output: a job whose output cannot be opened is lost before its first line.
  if ((found != 10 && found != 13)) && { : >>"$directory/$job.out"; } 2>/dev/null; then
    exec >>"$directory/$job.out" 2>&1
  fi
  case $found in
    11) say "stopped on purpose: no successor" && return 0 ;;
    12) say "this installation is not the one that counts any more: no successor" && return 0 ;;
    10 | 13)
      say "$state is not there or does not answer on ${SLURMD_NODENAME-this node}"
      if ((lost >= 24)); then
        say "so it was a whole day: the scheduler ends here" && return 1
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
  # 75: it has reported the fault of its successors. Above 128: it was asked to end, and the signal came after its work.
  if ((code == 75)) || [[ -n $ended$signalled && $code -gt 128 ]]; then
    keep_chain 0
    return
  fi
  say "the scheduler ended with code $code; bash keeps its chain"
  tell_history "the scheduler's job ended with code $code: see $directory/$job.out" "$code"
  keep_chain 300
  # A job that fails at once, and the next, and the next: at most one a minute.
  while [[ -z $ended ]] && ((SECONDS < short_s)); do pause 1; done
  return 1
}

if [[ ${1-} == revive ]]; then
  revive
else
  main "$@"
fi
exit
