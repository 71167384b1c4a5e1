"""The process that scripts run in. It starts fast: nothing in here imports Treadle, or anything outside the standard library.

parent.py     one warmed process: forks a child per script, ends it when its time is up, says how it ended
child.py      in the child: takes limits, reads the script, runs it, writes its answer
limits.py     what a script may use; each limit that cannot be set is reported, never assumed
syscalls.py   the filter for system calls (Linux)
linux.py      the few calls that Python has no name for
names.py      the built-ins and modules that scripts see
wire.py       JSON behind its length
"""
