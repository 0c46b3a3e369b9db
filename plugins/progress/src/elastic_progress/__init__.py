"""elastic-progress: reads from the output of workers how far they have come, and looks for their checkpoints.

``reader`` is the plugin, and reads the streams of workers. ``lines`` finds progress in lines, by ``patterns``: a table
of what frameworks print. ``bars`` tells which progress bar is the training's, ``expressions`` checks expressions of
users. ``checkpoint_files`` looks for files below ``--checkpoint_path``.
"""

__version__ = "0.1.0"
