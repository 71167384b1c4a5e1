"""The goal pipeline: objectives, workorders, gates and pause states, built on the engine."""
