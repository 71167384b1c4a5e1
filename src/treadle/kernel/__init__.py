"""The services that change durable state, the ports that stores implement, and the reads."""
