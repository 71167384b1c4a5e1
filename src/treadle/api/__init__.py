"""The contract: every call that people, programs and agents make to an engine from outside, defined once.

A group of calls is a protocol in one file, with its records. The services of the kernel perform them behind one guard
(`kernel.guard`), HTTP serves them, `treadle.client` sends them; commands, tools and pages use the contract alone, so they work
on a store and on a server alike.
"""
