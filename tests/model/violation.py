"""Something that must not be."""


class Violation(Exception):
    """Says what is wrong and how it came about."""
