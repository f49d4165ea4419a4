"""The command line: what a person runs in a terminal."""
