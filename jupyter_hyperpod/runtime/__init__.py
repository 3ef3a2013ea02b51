"""The processes on the nodes: agent, coordinator and worker, and the Session that the user's code holds.

Imports core, policy and storage only; never Jupyter, never the control plane. Only modules that handle tensors import
torch.
"""
