"""Ports, and parts of ports, that both stores implement alike: named statements, whose rows become records."""
