"""The fixtures of tests with clusters."""

from conftest_cluster import cluster, hosts, slurm

__all__ = ["cluster", "hosts", "slurm"]
