# ---- spares ---------------------------------------------------------------------------------------------------
# With [nodes] spares the job has more nodes than its launch, and survives the loss of one but the first (--no-kill).
# After such a loss this script begins again in the same job: another attempt, on the nodes that are left. Each time
# there are fewer of them, so there are at most as many relaunches as spares. Reasons: docs/decisions/0039.
# The launch has the first resil_nodes nodes of resil_left.

resil_use_nodes() { # how many of resil_left, for srun and other programs of SLURM
  local IFS=,
  SLURM_JOB_NODELIST="${resil_left[*]:0:$1}" SLURM_NODELIST=$SLURM_JOB_NODELIST SLURM_NNODES=$1 SLURM_JOB_NUM_NODES=$1
  export SLURM_JOB_NODELIST SLURM_NODELIST SLURM_NNODES SLURM_JOB_NUM_NODES
  if [ -n "${SLURM_NTASKS_PER_NODE:-}" ]; then
    export SLURM_NTASKS=$(($1 * SLURM_NTASKS_PER_NODE)) SLURM_NPROCS=$(($1 * SLURM_NTASKS_PER_NODE))
  else
    unset SLURM_NTASKS SLURM_NPROCS
  fi
}

resil_again= # this is a relaunch
if [[ ${RESIL_AGAIN:-} == "$RESIL_JOB_ID "* ]]; then # not that of the job that submitted this one
  resil_again=yes
  # shellcheck disable=SC2206 # words
  resil_left=(${RESIL_AGAIN#* })
  resil_use_nodes ${#resil_left[@]}
else
  mapfile -t resil_left < <(timeout 20 scontrol show hostnames "${SLURM_JOB_NODELIST:-}" 2>/dev/null)
fi
unset RESIL_AGAIN

# A step that has lost a node may stay, with its memory and CPUs on the other nodes (22.05): hence the other options.
resil_choose_nodes() { # before the launch
  if ((${#resil_left[@]} < resil_nodes)); then
    resil_finish 75 exited "this job has ${#resil_left[@]} of $resil_nodes nodes for the launch"
  fi
  resil_use_nodes "$resil_nodes"
  export MASTER_ADDR=${resil_left[0]}
  resil_on=(--nodes="$resil_nodes" --nodelist="$SLURM_JOB_NODELIST")
  [ -z "$resil_again" ] || resil_on+=(--overlap --mem=0)
  resil_say "the launch has the nodes $SLURM_JOB_NODELIST; spares: ${resil_left[*]:resil_nodes}"
}

resil_leave_out() { # "n1,n3 why": resil_left, from the answer of a command of resil; fails if these are too few
  local list=${1%% *}
  [ "$list" != - ] || return
  # shellcheck disable=SC2206 # words
  resil_left=(${list//,/ })
  ((${#resil_left[@]} >= resil_nodes))
}

# srun may exit with 0 when it loses a node (docs/decisions/0009), and SLURM may know of the loss only minutes later.
resil_look_at_nodes() { # after the launch: resil_lost, resil_rest, and resil_left without the nodes that are lost or bad
  local names host kept='' count=0
  [ -z "$resil_stop_asked$resil_term$resil_forced" ] || return 0
  names=$(resil_squeue -t RUNNING -j "$RESIL_JOB_ID" -o '%A %N' | sed -n "s/^$RESIL_JOB_ID //p")
  names=$(timeout 20 scontrol show hostnames "$names" 2>/dev/null)
  [ -n "$names" ] || return 0
  for host in "${resil_left[@]}"; do
    if [[ $'\n'$names$'\n' == *$'\n'"$host"$'\n'* ]]; then
      kept+=" $host"
    elif ((count < resil_nodes)); then
      resil_lost="SLURM has given up node $host"
    fi
    count=$((count + 1))
  done
  case ${resil_lost:+lost}:$resil_code in :0 | *:75) return ;; esac
  # shellcheck disable=SC2206 # words
  resil_left=($kept)
  [ -z "$resil_lost" ] || ((${#resil_left[@]} < resil_nodes)) || resil_rest=yes
  resil_ask_about_nodes "$resil_spares" resil_act
  case ${resil_checked%% *} in 10 | 11) ;; *) return ;; esac
  host=${resil_checked#* } resil_rest=
  [ "${resil_checked%% *}" = 11 ] || resil_lost=${host#* }
  if resil_leave_out "$host"; then resil_rest=yes; fi
}

resil_go_on_here() { # at the end of an attempt: begin again, unless it was ended on purpose
  if [ -z "$resil_rest" ] || [ -n "$resil_stop_asked$resil_term$resil_forced" ]; then return; fi
  resil_json "${resil_left[*]}"
  resil_journal relaunch left "$REPLY"
  # shellcheck disable=SC2086 # words
  kill -s KILL $resil_beat_pid $resil_queue_pid 2>/dev/null # it would take the next attempt for one that supersedes it
  # shellcheck disable=SC2086 # words
  wait $resil_beat_pid $resil_queue_pid 2>/dev/null
  trap - HUP INT QUIT USR1 USR2 ALRM TERM "$resil_signal" # what is ignored now could not be trapped then
  exec {resil_news}>&-
  unset RESIL_ATTEMPT RESIL_ERROR_FILE
  export RESIL_AGAIN="$RESIL_JOB_ID ${resil_left[*]}"
  shopt -s execfail
  exec "$BASH" "$0"
}
# ---------------------------------------------------------------------------------------------------------------
