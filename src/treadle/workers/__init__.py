"""Workers: the loop that claims tasks and runs their handlers, the lease renewer, durable functions, and scripts."""
