"""The project's own benchmarks by name: against other systems, on rigs of their own, for as long as you like.

`jupyter hyperpod bench NAME` finds them beside the package; an installed package has none of them. Those that a person
runs on their own machine are in `jupyter_hyperpod.bench`.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

MODULES = {
    # a member is killed or stopped: our recovery beside that of other systems
    "recovery": "benchmarks.recovery.comparison",
    # a node is cut off the network: the survivors' stall, and whether it ever commits a step (root)
    "partition": "benchmarks.recovery.partition",
    # an undisturbed step of ours against plain DDP's, in alternating blocks
    "overhead": "benchmarks.recovery.overhead",
    # pictures that workers decode and augment: our steps and samples per second against DDP with torch's DataLoader
    "data": "benchmarks.recovery.data",
    # a job grows and shrinks while it trains: the survivors' pause, and whether a process is started anew
    "elastic": "benchmarks.recovery.elastic",
    # a member is killed every 5.5 and every 1.4 steps: how much of an undisturbed run's speed is left
    "abuse": "benchmarks.recovery.abuse",
    # random schedules of faults against one undisturbed run: every loss and the final state, bit for bit
    "chaos": "benchmarks.recovery.chaos",
    # pieces of training in many people's styles: the same bits under kills, growth and shrinking, or refused in words
    "adoption": "benchmarks.adoption.comparison",
    # random bit flips in the training state: found when, whose, and what looking for them costs
    "corruption": "benchmarks.recovery.corruption",
    # one job under a fault every few seconds, for as long as you like: what grows, is anything lost?
    "soak": "benchmarks.recovery.soak",
    # a rank is killed with each checkpointless component switched off: what each is worth
    "components": "benchmarks.recovery.components",
    # a deployment grows: decision to first answer by stages; replicas are killed under load: requests lost
    "serving": "benchmarks.serving.replicas",
    # an Xid in a node's kernel log of a real SLURM: labelled, drained, rebooted or replaced when (root)
    "health": "benchmarks.slurm.health",
    # a real SLURM of four nodes: a kill, a power cut, an urgent job, a thousand jobs (root)
    "slurm": "benchmarks.slurm.faults",
    # random faults on that SLURM, one after another, for as long as you like (root)
    "slurm-soak": "benchmarks.slurm.soak",
    "takeover": "benchmarks.slurm.takeover",
    # a real Kubernetes of two nodes: a cell starts, pods and nodes are lost, hundreds of jobs are followed (root)
    "kubernetes": "benchmarks.kubernetes.cluster",
    # random faults on that Kubernetes, one after another, for as long as you like (root)
    "kubernetes-soak": "benchmarks.kubernetes.soak",
    # the planner: a year of a hundred thousand instances, and real jobs under faults against their simulation
    "plan": "benchmarks.planner.plan",
    # a job of ten million steps: how long people wait for it, and what its journal takes
    "journals": "benchmarks.control.journals",
    # a job that has printed a gigabyte: how long its newest lines and a range in the middle take to read
    "printed": "benchmarks.control.printed",
    # a job of a thousand members and more: a generation forms again, and what the coordinator needs
    "scale": "benchmarks.control.scale",
    # a thousand strangers at every listening socket of a job: what they cost it, and whether members still get in
    "strangers": "benchmarks.control.strangers",
    # a hundred browsers on one Jupyter server with a thousand jobs: bytes, its event loop, delay, memory
    "browsers": "benchmarks.control.browsers",
    # one browser, ten thousand nodes and jobs: what a person waits for, from the click to the picture
    "browser": "benchmarks.control.browser",
    # a model from an object store into memory: ours against other loaders, and against the machine
    "loading": "benchmarks.loading.comparison",
}
