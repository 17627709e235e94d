#!/usr/bin/env bash
# Starts a real Slurm on this one machine: munged, slurmctld and several slurmd, all on loopback, all in one folder.
# For tests and for people who want to try `csrun_wse --executor slurm`. Nothing under /etc is read or written.
#
#   eval "$(scripts/slurm_lab/start.sh)"      prints `export SLURM_CONF=...` once all nodes are idle; exits with 2 if Slurm cannot be installed
#   scripts/slurm_lab/stop.sh                 stops it
#
#   SLURM_LAB_DIR    folder of the lab, a short absolute path   (default: slurm_lab in $TMPDIR or /tmp)
#   SLURM_LAB_NODES  nodes                                      (default: 4)
#   SLURM_LAB_CPUS   CPUs that each node claims to have         (default: 8)
#   SLURM_LAB_PORT   first TCP port; the next free ones if taken (default: 16800)
set -euo pipefail
dir=${SLURM_LAB_DIR:-${TMPDIR:-/tmp}/slurm_lab}
nodes=${SLURM_LAB_NODES:-4}
cpus=${SLURM_LAB_CPUS:-8}
port=${SLURM_LAB_PORT:-16800}
here=$(cd "$(dirname "$0")" && pwd)
PATH=$PATH:/usr/sbin:/sbin

for program in munged slurmctld slurmd srun; do
    command -v "$program" >/dev/null && continue
    "$here/../debian_packages.sh" slurmctld slurmd slurm-client munge
    break
done
if [ -e "$dir/slurmctld.pid" ] && kill -0 "$(cat "$dir/slurmctld.pid")" 2>/dev/null; then
    echo "a Slurm already runs in $dir; stop it with $here/stop.sh" >&2
    exit 3
fi

taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
while for p in $(seq "$port" $((port + nodes))); do taken "$p" && break; done; do port=$((port + 100)); done

trap '[ $? = 0 ] || { tail -n 5 "$dir"/log/*.log >&2; SLURM_LAB_DIR=$dir "$here/stop.sh"; }' EXIT
rm -rf "$dir"
mkdir -p "$dir"/munge "$dir"/state "$dir"/log
for i in $(seq 0 $((nodes - 1))); do mkdir -p "$dir/spool/node$i" "$dir/tmp/node$i"; done

(umask 077 && head -c 1024 /dev/urandom >"$dir/munge/key")
chmod 0400 "$dir/munge/key"
munged --force --num-threads=2 --key-file="$dir/munge/key" --socket="$dir/munge/socket" \
    --pid-file="$dir/munged.pid" --log-file="$dir/log/munged.log" --seed-file="$dir/munge/seed" 2>"$dir/log/munged.err"

host=$(hostname -s)
me=$(id -un)
{
    cat <<CONF
ClusterName=slurm_lab
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=$me
SlurmdUser=$me
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
CredType=cred/munge
MpiDefault=none
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=5
KillWait=5
Waittime=0
InactiveLimit=0
TCPTimeout=2
MessageTimeout=10
JobRequeue=1
EnforcePartLimits=ALL
PropagateResourceLimits=NONE
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
TmpFS=$dir/tmp/%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd-%n.log
GresTypes=cs
NodeName=DEFAULT CPUs=$cpus Boards=1 SocketsPerBoard=1 CoresPerSocket=$cpus ThreadsPerCore=1 RealMemory=4000 State=UNKNOWN
CONF
    for i in $(seq 0 $((nodes - 1))); do
        gres=$([ "$i" = 0 ] && echo " Gres=cs:cerebras:1" || true)
        echo "NodeName=node$i NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 1 + i))$gres"
    done
    echo "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP"
} >"$dir/slurm.conf"
echo "NodeName=node0 Name=cs Type=cerebras Count=1" >"$dir/gres.conf"
# Slurm up to 22.05 needs no cgroup.conf and rejects this line; later releases need it if cgroups are not writable.
case $(slurmd -V | grep -oE '[0-9]+' | head -1) in 2[0-2]) ;; *) echo "CgroupPlugin=disabled" >"$dir/cgroup.conf" ;; esac
export SLURM_CONF=$dir/slurm.conf

slurmctld
for i in $(seq 0 $((nodes - 1))); do slurmd -N "node$i"; done
for _ in $(seq 300); do
    idle=$(timeout 5 sinfo -h -N -t idle -o %N 2>/dev/null | sort -u | wc -l)
    if [ "$idle" = "$nodes" ]; then
        echo "export SLURM_CONF=$SLURM_CONF"
        exit 0
    fi
    sleep 0.1
done
echo "the nodes are not idle after 30 s" >&2
exit 1
