"""Jobs on a real SLURM, on the testbed of the tests."""
