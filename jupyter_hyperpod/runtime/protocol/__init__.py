"""Every message between the coordinator, the agents and the workers of a job: its fields, senders and receivers.

An agent stands between its worker and the coordinator. What one of them says to the other passes through it, and on
the way up the agent adds the name of its member.
"""

from . import codec, facts, orders, replica

__all__ = ["codec", "facts", "orders", "replica"]
