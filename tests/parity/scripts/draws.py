"""Random numbers without a seed, and with the script's. Its first lives fail, as often as the argument says."""

from __future__ import annotations

import multiprocessing
import os
import random
import secrets
import sys
import tempfile
import uuid

from tell import LIFE, tell

tell(
    unseeded={
        "random": random.random(),
        "instance": random.Random().random(),
        "urandom": os.urandom(8).hex(),
        "secrets": secrets.token_hex(8),
        "uuid": [str(uuid.uuid4()), str(uuid.uuid1())],
        "temporary name": tempfile.mktemp(),
        "authentication key": bytes(multiprocessing.current_process().authkey).hex(),
    }
)
random.seed(3)
tell(seeded=[random.random(), random.gauss(0, 1), random.choices("abcdef", k=5), random.Random("text").random()])
sys.exit(int(sys.argv[1]) > LIFE)
