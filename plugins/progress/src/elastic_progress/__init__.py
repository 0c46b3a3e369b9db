"""elastic-progress: reads from the output of workers how far they have come, and looks for their checkpoints.

``plugin`` is what Elastic loads; it also fails a rank whose loss stays nan. ``flags`` declares its flags. ``reader``
reads the streams of workers, and ``lines`` finds progress in lines, by ``patterns``: a table of what frameworks print,
and expressions of users. ``checkpoints`` looks for the newest file below ``--checkpoint_path``, and finds out whether
the workers of a planned stop had time to save.
"""

__version__ = "0.1.0"
