"""The write side: the ports that stores implement, units of work, the committer, and value storage."""
