#!/usr/bin/env bash
# A real two-node Slurm on this machine, for development and tests: slurm/dev_cluster.sh start|stop|status
#
# Debian's slurmctld and two slurmd's under one state folder ($GRPOSWEEP_SLURM, default /tmp/grposweep-slurm), with a
# munge key made on the spot, four simulated GPUs a node (character devices that no driver owns), and everything on
# 127.0.0.1. Needs root: Slurm starts jobs as their users. It is no cluster to train on: nothing keeps jobs apart.
#
# Partitions: main (the default), short (jobs of at most two minutes), low (its jobs are requeued when main wants their
# place). Afterwards `export SLURM_CONF=<state folder>/slurm.conf`, as `status` says.
set -euo pipefail

STATE=${GRPOSWEEP_SLURM:-/tmp/grposweep-slurm}
PORT=${GRPOSWEEP_SLURM_PORT:-16817} # slurmctld's; the nodes take the next two
GPUS=4                              # a node
CPUS=32                             # a node; pretended, whatever this machine has
export SLURM_CONF=$STATE/slurm.conf

install_packages() {
  if command -v slurmctld slurmd munged sbatch >/dev/null; then return; fi
  echo "installing Debian's slurm-wlm and munge"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm munge >/dev/null
}

# Whether the daemon whose pid file is $1 runs; pids are used again, so its name ($2) must agree.
runs() {
  [[ -f $1 ]] && [[ $(cat "/proc/$(cat "$1" 2>/dev/null)/comm" 2>/dev/null) == "$2" ]]
}

write_configuration() {
  mkdir -p "$STATE"/{munge,ctld,n1,n2,gpus}
  chmod 755 "$STATE" "$STATE"/*/
  if [[ ! -f $STATE/munge/key ]]; then
    (umask 077 && head -c 1024 /dev/urandom >"$STATE/munge/key")
  fi
  for ((gpu = 0; gpu < GPUS; gpu++)); do
    [[ -c $STATE/gpus/gpu$gpu ]] || mknod "$STATE/gpus/gpu$gpu" c 1 3 # as /dev/null
  done
  echo "Name=gpu File=$STATE/gpus/gpu[0-$((GPUS - 1))]" >"$STATE/gres.conf"
  cat >"$STATE/slurm.conf" <<CONF
ClusterName=grposweep
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$PORT
SlurmUser=root
AuthType=auth/munge
# A requeued job waits as long as a credential lives; two minutes is Slurm's own choice, too long for tests.
AuthInfo=socket=$STATE/munge/socket,cred_expire=10
CredType=cred/munge
StateSaveLocation=$STATE/ctld
SlurmctldPidFile=$STATE/slurmctld.pid
SlurmctldLogFile=$STATE/slurmctld.log
SlurmdPidFile=$STATE/slurmd-%n.pid
SlurmdSpoolDir=$STATE/%n
SlurmdLogFile=$STATE/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
KillWait=5
MinJobAge=20
InactiveLimit=0
SlurmctldTimeout=60
SlurmdTimeout=60
GresTypes=gpu
NodeName=n1 NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$((PORT + 1)) CPUs=$CPUS RealMemory=16000 Gres=gpu:$GPUS
NodeName=n2 NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$((PORT + 2)) CPUs=$CPUS RealMemory=16000 Gres=gpu:$GPUS
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF
PartitionName=short Nodes=n[1-2] MaxTime=2 PriorityTier=10 PreemptMode=OFF
PartitionName=low Nodes=n[1-2] MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE GraceTime=30
CONF
}

start() {
  install_packages
  write_configuration
  if ! runs "$STATE/munge/pid" munged; then
    # --force: munged would rather not run as root
    munged --force --key-file="$STATE/munge/key" --socket="$STATE/munge/socket" --pid-file="$STATE/munge/pid" \
      --log-file="$STATE/munge/log" --seed-file="$STATE/munge/seed" 2>/dev/null
  fi
  runs "$STATE/slurmctld.pid" slurmctld || slurmctld
  for node in n1 n2; do
    runs "$STATE/slurmd-$node.pid" slurmd || slurmd -N "$node"
  done
  for _ in $(seq 60); do
    if [[ $(sinfo --noheader --partition=main --states=idle,mixed,allocated --format=%D 2>/dev/null) == 2 ]]; then
      status
      return
    fi
    sleep 0.5
  done
  echo "the two nodes did not come up in 30 seconds; see $STATE/*.log" >&2
  return 1
}

stop() {
  for entry in "slurmd-n1.pid slurmd" "slurmd-n2.pid slurmd" "slurmctld.pid slurmctld" "munge/pid munged"; do
    read -r file name <<<"$entry"
    if runs "$STATE/$file" "$name"; then
      pid=$(cat "$STATE/$file")
      kill "$pid"
      for _ in $(seq 50); do
        runs "$STATE/$file" "$name" || break
        sleep 0.1
      done
    fi
    rm -f "${STATE:?}/$file"
  done
  echo "stopped; its state and logs are still in $STATE"
}

status() {
  if ! runs "$STATE/slurmctld.pid" slurmctld; then
    echo "not running (state folder $STATE)"
    return 3
  fi
  sinfo --format='%9P %.11l %.6D %.9T %N'
  echo "export SLURM_CONF=$SLURM_CONF"
}

case ${1:-} in
  start | stop | status) "$1" ;;
  *)
    echo "usage: $0 start|stop|status" >&2
    exit 2
    ;;
esac
