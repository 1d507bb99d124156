"""Executable model of a job: real machines, a modelled store, network, hosts, keepers and ranks, one seeded clock."""
