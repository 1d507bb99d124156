"""The folder that stands first on the `PYTHONPATH` of hooked ranks. Nothing imports it as a package."""

__all__: list[str] = []
