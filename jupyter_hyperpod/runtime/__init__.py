"""The processes of a job: agent, coordinator and worker, their messages, and the Session that the user's code holds.

Never imports Jupyter or the control plane; `tests/test_layers.py` lists what it may import. Only modules that handle
tensors import torch.
"""
