"""The contract for models: tools, resources and prompts of the Model Context Protocol, over stdio and streamable HTTP.

A tool is a function that takes a `RequestContext` (the contract for its caller) and typed arguments, and returns a small record;
its schemas derive from its signature. This package depends on no store, server or transport.
"""
