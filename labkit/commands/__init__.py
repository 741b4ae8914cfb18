"""The commands of ``labkit``, a module each: what it does (its docstring), its ``options``, and ``run``.

What a command needs is imported inside ``run``, so that ``labkit --help`` is quick.
"""

OK, NO, WRONG = 0, 1, 2
"""Exit statuses: done; the answer is no; wrong usage or bad input."""
