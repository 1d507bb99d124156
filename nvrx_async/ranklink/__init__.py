"""The link between a rank and its agent: a shared page for what the rank reports, a unix socket for what must wake.

`rank` is the rank's side (standard library only), `agent` the agent's. They share `messages`, `frames` and `page`.
"""

__all__: list[str] = []  # a rank that imports one module must not load the others
