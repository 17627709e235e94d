#!/usr/bin/env bash
# Stops the Slurm that start.sh started: first its jobs, then each daemon by the process id in its pid file.
set -uo pipefail
dir=${SLURM_LAB_DIR:-${TMPDIR:-/tmp}/slurm_lab}
[ -d "$dir" ] || exit 0
export SLURM_CONF=$dir/slurm.conf
PATH=$PATH:/usr/sbin:/sbin

alive() { [ -r "/proc/$1/stat" ] && ! grep -q ') Z ' "/proc/$1/stat"; }
end() { # pid files...
    local file pid
    for file in "$@"; do
        pid=$(cat "$file" 2>/dev/null) || continue
        kill -TERM "$pid" 2>/dev/null
        for _ in $(seq 80); do alive "$pid" || break; sleep 0.1; done
        alive "$pid" && kill -KILL "$pid" 2>/dev/null
    done
}

if [ -e "$dir/slurmctld.pid" ] && [ -n "$(timeout 5 squeue -h 2>/dev/null)" ]; then
    timeout 5 scancel --full -u "$(id -un)" 2>/dev/null
    for _ in $(seq 80); do [ -z "$(timeout 5 squeue -h 2>/dev/null)" ] && break; sleep 0.1; done
fi
end "$dir"/slurmd-*.pid "$dir"/slurmctld.pid "$dir"/munged.pid
exit 0
