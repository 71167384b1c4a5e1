"""The processes that scripts run in. They start fast: nothing here imports Treadle or anything outside the standard library.

parent.py     the host process: forks a child per script, kills it after its timeout, reports its end
child.py      the child: applies limits, reads the script, runs it, writes its answer
limits.py     the limits of a script; each limit that cannot be set is reported
syscalls.py   the filter for system calls (Linux)
linux.py      system calls without a Python binding
names.py      the built-ins and modules that scripts see
wire.py       length-prefixed JSON messages
"""
