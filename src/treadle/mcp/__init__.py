"""The engine as tools, resources and prompts for agents, by the Model Context Protocol."""
