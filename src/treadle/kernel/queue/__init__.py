"""Tasks: enqueue, claim, settle, retry, cancel; task lists, locks and dead letters."""
