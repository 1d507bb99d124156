"""The keeper: parent of all workers of a node, in a process of its own. Imports only the standard library."""

__all__: list[str] = []
