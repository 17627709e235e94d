"""The command that starts the processes of MPI: on this machine, or on the nodes of a Slurm job."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cerebras_tensorflow.config import env
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.runtime.collectives.mpi import missing

_ANSWER_LIMIT_S = 30.0
_HOSTS_FILE = "hosts"
_OPEN_MPI = "Open MPI"
_PLUGINS = {_OPEN_MPI: ("pmix",), "MPICH": ("pmi2",)}  # of srun, which let the processes find each other
_OF_LAUNCHERS = ("PMI_", "PMIX_", "SLURM_", "OMPI_", "PRTE_")
_OF_SLURM_JOB = ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_JOBID")  # what srun needs to start a step of this job


@dataclass(frozen=True)
class MpiCommand:
    """How to start processes of MPI.

    Attributes:
        words: The command, without the program to start.
        environment: Environment variables for it.
        nodes: The node of each rank; empty: all are on this machine.
        network: How the processes exchange bytes: env.MPI, or env.TCP.
    """

    words: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    network: str = env.MPI


def mpi_command(size: int, folder: Path) -> MpiCommand:
    """Return how to start the processes of a run.

    In a Slurm job of several nodes, srun starts them as a step of the job: rank 0 on this node, the others on the next
    ones. They use connections of our own, since those of MPI have no authentication; MPI only if the user asks for it.
    Without Slurm, mpiexec starts them on this machine, where MPI uses shared memory.

    Args:
        size: Number of ranks.
        folder: Private folder of the run. It gets a list of the nodes.

    Raises:
        SettingsError: If mpi4py or an MPI library is not installed.
    """
    mpiexec = find_mpiexec()
    nodes = nodes_of_ranks(slurm_nodes(), env.read().slurm_node or "", size)
    network = env.read().csx_network
    plugin = None
    if len(set(nodes)) > 1:
        plugin = _plugin(mpiexec) if network == env.MPI else "none"
    if plugin is not None:
        hosts = folder / _HOSTS_FILE
        hosts.write_text("".join(f"{node}\n" for node in nodes), encoding="ascii")
        return MpiCommand(
            _srun(plugin, nodes), {**_environment(_OF_SLURM_JOB), "SLURM_HOSTFILE": str(hosts)}, nodes, network
        )
    environment = _environment()
    environment.setdefault("UCX_TLS", "sm,self")  # MPICH: shared memory only, so that no process listens on a port
    environment.setdefault("OMPI_MCA_pml", "ob1")  # Open MPI: the same
    environment.setdefault("OMPI_MCA_btl", "sm,self")
    if os.geteuid() == 0:  # Open MPI refuses the superuser, who is the user of many containers
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return MpiCommand((*_on_this_machine(mpiexec), "-n", str(size)), environment)


def find_mpiexec() -> str:
    """Return the path of mpiexec.

    Raises:
        SettingsError: If mpi4py or mpiexec is not installed.
    """
    try:
        import mpi4py  # noqa: F401 - loads no MPI library
    except ImportError as error:
        raise missing(error) from error
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise missing("there is no mpiexec")
    return found


def slurm_nodes() -> tuple[str, ...]:
    """Return the names of the nodes of this process's Slurm job; empty if it is in none."""
    names = env.read().slurm_nodes
    if not names or shutil.which("srun") is None:
        return ()
    shown = _ran(["scontrol", "show", "hostnames", names])
    if shown is None or shown.returncode != 0:
        reason = "no answer" if shown is None else shown.stderr.strip() or f"exit status {shown.returncode}"
        run_log.warning("num_csx: all CSX run on this node, since scontrol does not name those of the job: %s", reason)
        return ()
    return tuple(shown.stdout.split())


def nodes_of_ranks(nodes: Sequence[str], own: str, size: int) -> tuple[str, ...]:
    """Return the node of each rank: rank 0 on this node, and as many ranks on each node as on the others.

    >>> nodes_of_ranks(["a", "b", "c"], "b", 2), nodes_of_ranks(["a", "b"], "a", 4)
    (('b', 'a'), ('a', 'a', 'b', 'b'))
    >>> nodes_of_ranks([], "", 2)
    ()
    """
    if own not in nodes:
        return ()
    order = [own, *(node for node in nodes if node != own)][:size]
    return tuple(order[rank * len(order) // size] for rank in range(size))


def _srun(plugin: str, nodes: Sequence[str]) -> tuple[str, ...]:
    return (
        "srun",
        f"--mpi={plugin}",
        "--overlap",  # the step of this process has the CPUs and the memory too
        "--overcommit",
        "--mem=0",
        "--gres=none",
        "--cpu-bind=none",
        "--kill-on-bad-exit=0",  # a rank that dies must not end the others: this process first says which one it was
        "--distribution=arbitrary",  # as in the file of hosts
        f"--nodes={len(set(nodes))}",
        f"--ntasks={len(nodes)}",
    )


def _plugin(mpiexec: str) -> str | None:
    """Return srun's plugin for this MPI; None, with a warning, if it has none."""
    library = _OPEN_MPI if _OPEN_MPI in _output([mpiexec, "--version"]) else "MPICH"
    listed = set(re.findall(r"\w+", _output(["srun", "--mpi=list"])))
    for plugin in _PLUGINS[library]:
        if plugin in listed:
            return plugin
    run_log.warning(
        "num_csx: all CSX run on this node. To start them on the other nodes of the job, srun needs the plugin %s "
        "for %s; `srun --mpi=list` shows its plugins.",
        " or ".join(_PLUGINS[library]),
        library,
    )
    return None


def _on_this_machine(mpiexec: str) -> tuple[str, ...]:
    forking = f"{mpiexec}.gforker"  # MPICH's for one machine: unlike Hydra, it listens on no port
    if os.path.exists(forking):
        return (forking,)
    if "HYDRA" in _output([mpiexec, "--version"]):
        # A rank that dies must not end the others: this process first says which one it was.
        return (mpiexec, "-disable-auto-cleanup", "-launcher", "fork", "-hosts", "localhost", "-iface", "lo")
    return (mpiexec, "--oversubscribe")


def _output(command: Sequence[str]) -> str:
    """Return all that a command prints; empty if it fails to start or to answer."""
    done = _ran(command)
    return "" if done is None else done.stdout + done.stderr


def _ran(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str] | None:
    """Run a command to its end; return None if it does not start, or does not end within the limit."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_ANSWER_LIMIT_S,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def _environment(kept: Sequence[str] = ()) -> dict[str, str]:
    """Return the environment of the processes, without variables of another launch except the kept ones."""
    environ = {name: value for name, value in os.environ.items() if name in kept or not name.startswith(_OF_LAUNCHERS)}
    import mpi4py

    # mpi4py looks in the folder of the interpreter. Where a virtual environment borrows packages, it is beside these.
    for name in ("libmpi.so.12", "libmpi.so.40"):  # of MPICH, of Open MPI
        library = Path(mpi4py.__file__).parents[3] / name
        if library.exists():
            environ.setdefault("MPI4PY_LIBMPI", str(library))
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    return environ


def check_mpi() -> None:
    """Check that processes of MPI can start, without starting one.

    Raises:
        SettingsError: If mpi4py, mpiexec or the MPI library is not installed.
    """
    find_mpiexec()
    command = [sys.executable, "-c", "from mpi4py import MPI"]
    loaded = _ran(command, {**_environment(), "MPI4PY_RC_INITIALIZE": "0"})
    if loaded is None:
        raise missing(f"mpi4py does not load an MPI library within {_ANSWER_LIMIT_S:g} s")
    if loaded.returncode:
        reason = (loaded.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise missing(f"mpi4py cannot load an MPI library: {reason}") from None
