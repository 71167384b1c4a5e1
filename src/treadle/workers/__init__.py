"""What does the work: handlers, the loop that claims and runs, the keeper of leases, the waker of what is due."""
