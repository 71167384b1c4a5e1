"""The measured engines: one file for each, all of the same shape (see `protocol`), run as separate processes.

Peers run in the peers' virtual environment, Treadle in ours; so nothing here but `treadle.py` may import Treadle, and nothing
but the standard library is imported outside of the peers' own files.
"""
