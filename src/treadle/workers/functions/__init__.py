"""Durable functions: the code, what it is given (`ctx`), and what drives it from step to step and through crashes."""
