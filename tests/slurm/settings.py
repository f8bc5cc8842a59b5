"""The files of a small cluster: slurm.conf, gres.conf, and who its users are."""

from __future__ import annotations

from dataclasses import dataclass

CPUS = 64  # as many jobs at once; config_overrides lets a node claim them
SHARDS = 8  # of each GPU
SCRIPTS = "/usr/libexec/nodeagent/slurm"
ADDRESS = "192.0.2.1"  # of every host
CALLS = f"Prolog={SCRIPTS}/prolog\nEpilog={SCRIPTS}/epilog\nTaskProlog={SCRIPTS}/task-prolog\n"
OURS = f"{CALLS}PrologFlags=Alloc\nJobSubmitPlugins=lua\n"
USERS = {"alice": 61001, "bob": 61002}


@dataclass(frozen=True)
class NodeSettings:
    """One node of the cluster. *minors*: of the render nodes of its GPUs, in the order of gres.conf."""

    name: str
    port: int
    minors: tuple[int, ...] = ()

    def line(self) -> str:
        """Its line of slurm.conf."""
        count = len(self.minors)
        gres = f" Gres=gpu:mi300x:{count},shard:{count * SHARDS}" if count else ""
        return f"NodeName={self.name} NodeAddr={ADDRESS} Port={self.port} CPUs={CPUS} RealMemory=4000{gres}\n"

    def gres(self) -> str:
        """Its lines of gres.conf."""
        node, files = f"NodeName={self.name}", [f"File=/dev/dri/renderD{minor}" for minor in self.minors]
        gpus = [f"{node} Name=gpu Type=mi300x {file} Flags=amd_gpu_env\n" for file in files]
        return "".join([*gpus, *(f"{node} Name=shard Count={SHARDS} {file}\n" for file in files)])


# The GPUs of the machine file mi300x-spx.
GPU0 = NodeSettings("gpu0", 6821, tuple(range(128, 192, 8)))
GPU1 = NodeSettings("gpu1", 6822, (128, 129))
HEAD = "head"
CPU0 = NodeSettings("cpu0", 6823)
NODES = (GPU0, GPU1, CPU0)


def slurm_conf(directory: str, scripts: str) -> str:
    """slurm.conf, with all files below *directory* and the lines *scripts*.

    cred_expire is how long a requeued job waits, and how long a step may take to start.
    """
    return f"""\
ClusterName=lab
SlurmctldHost={HEAD}({ADDRESS})
SlurmUser=slurm
AuthType=auth/munge
AuthInfo=socket={directory}/munge,cred_expire=15
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool/%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd-%n.pid
SlurmctldLogFile={directory}/log/slurmctld.log
SlurmdLogFile={directory}/log/%n.log
SlurmctldDebug=debug
SlurmdDebug=debug
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,nohold_on_prolog_fail
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=3
MinJobAge=60
{scripts}GresTypes=gpu,shard
{"".join(node.line() for node in NODES)}\
PartitionName=main Nodes={GPU0.name},{CPU0.name} Default=YES
PartitionName=pair Nodes={GPU0.name},{GPU1.name}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=cheap Nodes={GPU0.name} PreemptMode=CANCEL
PartitionName=urgent Nodes={GPU0.name} PriorityTier=10
"""


def gres_conf() -> str:
    """gres.conf, for all nodes."""
    return "".join(node.gres() for node in NODES)


def passwd() -> str:
    """Lines of passwd for the users, each of whom has a group of the same number."""
    return "".join(f"{name}:x:{uid}:{uid}::/tmp:/bin/sh\n" for name, uid in USERS.items())


def group() -> str:
    return "".join(f"{name}:x:{uid}:\n" for name, uid in USERS.items())


def hosts() -> str:
    return "".join(f"{ADDRESS} {name}\n" for name in (HEAD, *(node.name for node in NODES)))
