"""Who plays in a history beside the servers: a client, people, an operator, outside workers, agents, services."""
