"""Long-running commands: finding handlers, worker processes, signals, the MCP mount."""
