"""Greets. Not very well yet."""


def greet(name):
    return "Hello"
