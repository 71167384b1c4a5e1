"""The contract: every call that people, programs and agents make of an engine from outside, said once.

A group of calls is a protocol, one file each, with the records that go over the wire. `treadle.service` carries the calls out
on an engine, `treadle.http` serves them, `treadle.client` sends them, and commands, tools and pages are written against the
contract alone: so they work on a store and on a server, and cannot disagree.
"""
