"""The testbed's slurm.conf and what belongs to it, as text. Facts: `man slurm.conf` of 22.05."""

from __future__ import annotations

from pathlib import Path

NETWORK = "10.97.0"


def address(index: int) -> str:
    """The controller has index 0, nodes count from 1."""
    return f"{NETWORK}.{index + 1}"


def hosts(nodes: int, logins: int = 0) -> str:
    """/etc/hosts of every node."""
    lines = ["127.0.0.1 localhost", f"{address(0)} ctl"]
    lines += [f"{address(i)} n{i}" for i in range(1, nodes + 1)]
    return "\n".join(lines + [f"{address(nodes + i)} login{i}" for i in range(1, logins + 1)]) + "\n"


def slurm_conf(directory: Path, nodes: int) -> str:
    """No cgroups (they need a systemd), short timeouts: a node is down 6 s after its last answer."""
    return f"""ClusterName=testbed
SlurmctldHost=ctl
SlurmUser=slurm
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=30
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir=/run/slurm/spool
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={directory}/log/slurmctld.log
SlurmdLogFile={directory}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SlurmctldTimeout=30
SlurmdTimeout=6
TCPTimeout=2
MessageTimeout=4
InactiveLimit=0
KillWait=3
UnkillableStepTimeout=10
ReturnToService=2
ResumeTimeout=60
RebootProgram={directory}/reboot
HealthCheckProgram={directory}/healthcheck
HealthCheckInterval=5
HealthCheckNodeState=ANY
MinJobAge=600
JobRequeue=1
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,requeue_delay=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
SlurmdParameters=config_overrides
NodeName=n[1-{nodes}] CPUs=8 RealMemory=16000 Gres=gpu:h100:8 State=UNKNOWN
PartitionName=train Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=10 PreemptMode=REQUEUE GraceTime=5 State=UP
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=100 PreemptMode=OFF State=UP
PartitionName=spot Nodes=ALL MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE GraceTime=5 State=UP
"""


def gres_conf(directory: Path, nodes: int) -> str:
    """Eight devices a node; slurmd looks at the device files but nothing opens them."""
    return f"NodeName=n[1-{nodes}] Name=gpu Type=h100 File={directory}/dev/gpu[0-7] Flags=nvidia_gpu_env\n"


def scripts(directory: Path) -> dict[str, str]:
    """Programs that SLURM calls, with hardly anything in their environment."""
    drain = 'scontrol update nodename="$(hostname)" state=drain reason="$(cat /run/fault)"'
    return {
        "reboot": "#!/bin/sh\nkill -USR1 1\n",
        "healthcheck": f"#!/bin/sh\nexport SLURM_CONF={directory}/slurm.conf\n[ ! -e /run/fault ] || {drain}\n",
    }
