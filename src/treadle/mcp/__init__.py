"""The contract for models: tools, resources and prompts of the Model Context Protocol, over stdio and streamable HTTP.

A tool is a function that is given a desk (the contract as its caller may use it) and typed arguments, and answers with a small
record; its schemas are made from its signature. Nothing here knows a store, a server or HTTP: who serves it says what a desk is.
"""
