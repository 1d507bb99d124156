"""Rounds: who trains with which ranks, when a round is over and what comes next. Machines and deciders, no I/O."""

__all__: list[str] = []
