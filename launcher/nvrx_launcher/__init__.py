"""`nvrx-launch`: one agent per node. The agent never imports torch."""

__all__: list[str] = []
