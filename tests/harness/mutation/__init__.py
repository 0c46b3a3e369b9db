"""Mutants of the protocol, made by machine, and whether its tables or the simulator notice each of them.

* ``operators`` makes the mutants of a function, one small change each.
* ``trial`` tries one in a forked process: the unit tests that come to the function, then the simulator's plans.
* ``server`` is the process that is forked: a pytest session that has collected the tests and then tries mutants.
* ``equivalents.json`` lists mutants that change nothing that anybody could notice, each with the reason.

``python -m mutation`` is the command line. mutmut and cosmic-ray have the same operators, but start a test command for
each mutant and know only its exit status; here the simulator is the judge as well, and a mutant takes a fork and the
milliseconds of the tests that come to it.
"""
