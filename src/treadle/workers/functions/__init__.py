"""Durable functions: their registry, the operations of `ctx`, and the driver that executes and replays their code."""
