"""Preloaded by every warm start of the parity suite, imported nowhere else: a process with it loaded was forked."""
