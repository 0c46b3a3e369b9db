from __future__ import annotations

import subprocess
import sys
from hashlib import sha512

import pytest

from elastic_core.digest import hex_digest


@pytest.mark.parametrize("digits", [14, 16, 32, 128])
def test_a_digest_is_the_same_on_every_host(digits: int) -> None:
    assert hex_digest("job", digits) == sha512(b"job").hexdigest()[:digits]
    assert len(hex_digest("job", digits)) == digits


def test_texts_that_differ_have_other_digests_even_where_they_are_no_utf_8() -> None:
    texts = ["", "a", "a\0", "ä", "\udcff", "\udcfe"]
    assert len({hex_digest(text, 16) for text in texts}) == len(texts)


def test_a_python_without_a_sha512_of_its_own_takes_that_of_openssl() -> None:
    hidden = "import sys; sys.modules['_sha2'] = sys.modules['_sha512'] = None"
    code = f"{hidden}\nfrom elastic_core.digest import hex_digest\nprint(hex_digest('job', 128))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == sha512(b"job").hexdigest()


def test_a_digest_does_not_load_openssl() -> None:
    code = "import sys; from elastic_core.digest import hex_digest; hex_digest('job', 16); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"hashlib", "_hashlib"} & {*modules}
