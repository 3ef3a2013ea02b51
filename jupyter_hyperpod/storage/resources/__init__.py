"""What the nodes of a job have used: a journal of samples beside that of the facts, which nobody has to read who does
not look at it.

An event ``nodes.sampled`` has many nodes: ``values`` has a list with the value of each, or one value that all have.
All are integers but ``cores``: sums over the ``ms`` before the sample (``cpu_ms``, ``received``, ``sent``, ``gpu_ms``),
and what was there at the sample (``memory``, ``limit``, ``gpu_memory``, ``gpu_limit``). So several samples become one
without a loss: sums are added, and of the rest the highest counts.
"""
