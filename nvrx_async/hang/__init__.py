"""Hang detection: pure deciders over what ranks report and what can be seen of them from outside.

`monitor` judges, `deadlines` and `computed` say when a rank is late, `outside` whether it stands still.
"""

__all__: list[str] = []  # a rank that imports one module must not load the others
