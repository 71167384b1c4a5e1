"""Treadle beside its peers: the same work, on the same database settings, in one session. `python -m bench.peers`."""
