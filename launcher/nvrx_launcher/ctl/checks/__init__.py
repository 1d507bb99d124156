"""What `nvrx doctor` looks at, a module for each part of the machine."""

__all__: list[str] = []
