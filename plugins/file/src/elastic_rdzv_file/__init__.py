"""The ``file`` rendezvous backend: roster and ledger in a directory that every agent of the job can reach.

General layout, from the command line down to the file system:

* ``plugin``: the hooks that core calls: what the backend takes, and how its first connection is made.
* ``backend``: roster and ledger on top of a few folders. Its docstring lists them.
* ``disk``: the operations on files that are atomic on a network mount, too; errors of the file system as ours.
* ``inotify``: how a waiter learns of changes: the kernel tells of them, or the waiter looks again.
"""

__version__ = "0.1.0"
