"""Preloaded by every warm start of the parity suite, imported by nobody else: who finds it loaded was forked."""
