"""Groups of the contract that their kernel services do not perform themselves yet."""
