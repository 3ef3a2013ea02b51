"""The hands of the brain, without Jupyter: submit, supervise, follow."""
