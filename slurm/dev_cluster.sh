#!/usr/bin/env bash
# A real two-node Slurm on this machine, for development and tests: slurm/dev_cluster.sh start|stop|status
#
# Debian's slurmctld and two slurmd's under one state folder ($GRPOSWEEP_SLURM, default /tmp/grposweep-slurm), with a
# munge key created here, four simulated GPUs per node (character devices that no driver owns), and everything on
# 127.0.0.1. Needs root: Slurm starts jobs as their users. It is no cluster to train on: nothing keeps jobs apart.
# Accounts are kept by slurmdbd in a MariaDB of the cluster's own, in the same folder, reached by a socket.
#
# Partitions: main (the default), short (jobs of at most two minutes), low (its jobs are requeued when main wants their
# place). The quality of service `few` lets a user have three jobs in the queue. Afterwards
# `export SLURM_CONF=<state folder>/slurm.conf`, as `status` says.
set -euo pipefail

STATE=${GRPOSWEEP_SLURM:-/tmp/grposweep-slurm}
PORT=${GRPOSWEEP_SLURM_PORT:-16817} # slurmctld's; the nodes take the next two, slurmdbd the third
GPUS=4                              # per node
CPUS=32                             # per node; simulated, independent of this machine
MEMORY=16000                        # MB per node; simulated and counted, as nearly all clusters do
export SLURM_CONF=$STATE/slurm.conf

install_packages() {
  local wanted=0 tool
  for tool in slurmctld slurmd slurmdbd mariadbd munged sbatch; do
    command -v "$tool" >/dev/null || wanted=1
  done
  if ((!wanted)); then return; fi
  echo "installing Debian's slurm-wlm, slurmdbd, munge and mariadb-server"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    slurm-wlm slurmdbd munge mariadb-server >/dev/null
}

# Whether the daemon whose pid file is $1 runs; pids are used again, so its name ($2) must agree.
runs() {
  [[ -f $1 ]] && [[ $(cat "/proc/$(cat "$1" 2>/dev/null)/comm" 2>/dev/null) == "$2" ]]
}

write_configuration() {
  mkdir -p "$STATE"/{munge,ctld,n1,n2,gpus,database}
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
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=$((MEMORY / CPUS))
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$((PORT + 3))
AccountingStoragePass=$STATE/munge/socket
AccountingStorageEnforce=limits,qos
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
KillWait=5
MinJobAge=20
InactiveLimit=0
SlurmctldTimeout=60
SlurmdTimeout=60
GresTypes=gpu
NodeName=n1 NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$((PORT + 1)) CPUs=$CPUS RealMemory=$MEMORY Gres=gpu:$GPUS
NodeName=n2 NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$((PORT + 2)) CPUs=$CPUS RealMemory=$MEMORY Gres=gpu:$GPUS
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF
PartitionName=short Nodes=n[1-2] MaxTime=2 PriorityTier=10 PreemptMode=OFF
PartitionName=low Nodes=n[1-2] MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE GraceTime=30
CONF
  (
    umask 077 # slurmdbd wants it so
    cat >"$STATE/slurmdbd.conf" <<CONF
AuthType=auth/munge
AuthInfo=socket=$STATE/munge/socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=$((PORT + 3))
SlurmUser=root
LogFile=$STATE/slurmdbd.log
PidFile=$STATE/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
CONF
  )
}

start_database() {
  if [[ ! -d $STATE/database/mysql ]]; then
    mariadb-install-db --no-defaults --datadir="$STATE/database" --user=root --auth-root-authentication-method=socket \
      --skip-test-db >/dev/null 2>&1
  fi
  if ! runs "$STATE/mariadbd.pid" mariadbd; then
    mariadbd --no-defaults --user=root --datadir="$STATE/database" --socket="$STATE/mysql.socket" \
      --pid-file="$STATE/mariadbd.pid" --skip-networking --innodb-buffer-pool-size=64M \
      --innodb-flush-log-at-trx-commit=0 >"$STATE/mariadbd.log" 2>&1 &
    for _ in $(seq 100); do
      mariadb --no-defaults --socket="$STATE/mysql.socket" --execute="create database if not exists slurm" 2>/dev/null && break
      sleep 0.2
    done
  fi
  # libmariadb's own name for the socket; slurmdbd.conf has no word for it
  runs "$STATE/slurmdbd.pid" slurmdbd ||
    MYSQL_UNIX_PORT=$STATE/mysql.socket SLURM_CONF=$STATE/slurm.conf slurmdbd
  for _ in $(seq 100); do
    sacctmgr --immediate --noheader list cluster >/dev/null 2>&1 && break
    sleep 0.2
  done
}

# Whose jobs may run: this user's, in an account of this name; what exists already is no error.
open_accounts() {
  {
    sacctmgr --immediate add cluster grposweep
    sacctmgr --immediate add qos few MaxSubmitJobsPerUser=3
    sacctmgr --immediate add account lab Cluster=grposweep QOS=normal,few DefaultQOS=normal
    sacctmgr --immediate add user "$(id -un)" Account=lab Cluster=grposweep
    sacctmgr --immediate modify user "$(id -un)" set DefaultAccount=lab
  } >>"$STATE/sacctmgr.log" 2>&1 || true
}

start() {
  install_packages
  write_configuration
  if ! runs "$STATE/munge/pid" munged; then
    # --force: munged would rather not run as root
    munged --force --key-file="$STATE/munge/key" --socket="$STATE/munge/socket" --pid-file="$STATE/munge/pid" \
      --log-file="$STATE/munge/log" --seed-file="$STATE/munge/seed" 2>/dev/null
  fi
  start_database
  open_accounts
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
  for entry in "slurmd-n1.pid slurmd" "slurmd-n2.pid slurmd" "slurmctld.pid slurmctld" "slurmdbd.pid slurmdbd" \
    "mariadbd.pid mariadbd" "munge/pid munged"; do
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
