"""The program of the warden's process: as short as can be, since Python compiles a program anew at each start.

What it imports comes compiled from a file. Compiling ``process`` would take a warden 1.2 MB.
"""

import os
import sys

# Without site, only the place of this file leads to the package. Last on the path, so that it hides no module.
sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..")))

from elastic_core.warden.process import main

if __name__ == "__main__":
    main()
