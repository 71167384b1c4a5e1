"""Long-running commands: handler discovery, worker processes, signals, the MCP mount."""
