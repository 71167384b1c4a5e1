"""The actors of a history besides the servers: a client, people, an operator, remote workers, agents, services."""
