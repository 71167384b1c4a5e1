"""Tests of the addresses."""

import unittest

from slug import slug


class SlugTest(unittest.TestCase):
    def test_words_are_joined(self) -> None:
        assert slug("Hello World") == "hello-world"

    def test_spaces_are_collapsed(self) -> None:
        assert slug("Hello   World") == "hello-world"

    def test_ends_are_trimmed(self) -> None:
        assert slug(" Hello ") == "hello"
