"""What is measured: one file for each engine, all of the same shape (see `protocol`), run as processes of their own.

Peers run in the peers' virtual environment, Treadle in ours; so nothing here but `treadle.py` may import Treadle, and nothing
but the standard library is imported outside of the peers' own files.
"""
