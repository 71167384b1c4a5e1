"""For tests of Treadle and of what is built on it: a clock that one moves, stores, crash points."""
