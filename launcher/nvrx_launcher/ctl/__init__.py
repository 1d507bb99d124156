"""`nvrx`: see and steer jobs from any machine that reaches their etcd."""

__all__: list[str] = []
