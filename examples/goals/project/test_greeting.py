import unittest

from greeting import greet


class TestGreeting(unittest.TestCase):
    def test_it_names_the_person(self):
        assert greet("Ada") == "Hello, Ada!"


if __name__ == "__main__":
    unittest.main()
