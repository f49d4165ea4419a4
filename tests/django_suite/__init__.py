"""Django's own tests of task backends, run with Toril's backend (``make test-django``).

`environments` makes an environment for each release of Django and takes ``tests/tasks`` out of its
source distribution.  `standing_in` is the program that runs there: it puts Toril's backend in the
place of Django's.  `excused` lists the tests that cannot hold, with reasons.  `__main__` compares.
"""
