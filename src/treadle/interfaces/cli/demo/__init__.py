"""`treadle demo`: a story with real worker processes, checked against the store."""
