"""The SLURM backend: batch scripts and commands as text, and the thread that runs them."""
