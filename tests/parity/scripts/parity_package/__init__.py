"""A package that is a program, and has one in it."""
