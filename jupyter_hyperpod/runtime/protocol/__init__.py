"""Every message between the coordinator, the agents and the workers of a job: its fields, senders and receivers.

Messages between a worker and the coordinator pass through the worker's agent. On the way up the agent adds the name of
its member.
"""

from . import codec, facts, orders, replica

__all__ = ["codec", "facts", "orders", "replica"]
