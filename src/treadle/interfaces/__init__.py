"""The interfaces for people and programs: command line, HTTP, dashboard, MCP, language server."""
