"""What runs on the nodes: agent, coordinator, worker, and the Session that a person's code holds.

Imports core, policy and storage only; never Jupyter, never the control plane. torch is imported where tensors are.
"""
