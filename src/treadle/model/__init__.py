"""Pure words of the engine: states, outcomes, retry policies, errors, ids, values, and the clock protocol."""
