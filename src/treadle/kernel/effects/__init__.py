"""Effects: recorded calls to the outside world, at most once as far as can be known."""
