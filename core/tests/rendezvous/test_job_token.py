"""The sources of the job's token, the texts that are no token, and its absence from all output."""

from __future__ import annotations

import copy
import os
import pickle
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from elastic_core.errors import UsageError
from elastic_core.rendezvous.job_token import TOKEN_MAX_BYTES, TOKEN_VARIABLE, JobToken, read_token

TEXT = "0123456789abcdef" * 4


def written(path: Path, text: str = TEXT, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_without_one_there_is_none() -> None:
    assert read_token({}, None) is None


def test_the_environment_and_a_file_give_the_same_token(tmp_path: Path) -> None:
    tokens = [read_token({TOKEN_VARIABLE: TEXT}, None), read_token({}, written(tmp_path / "token", TEXT + "\n"))]
    keys = {token.key("job") for token in tokens if token is not None}
    assert [len(keys), *map(len, keys)] == [1, 32]


def test_jobs_and_tokens_have_keys_of_their_own() -> None:
    tokens = JobToken(TEXT.encode(), "a"), JobToken(TEXT.encode()[::-1], "b")
    assert len({token.key(job) for token in tokens for job in ("job", "job2", "j\udcff")}) == 6


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has 0 bytes; 32 to 4096 are allowed"),
        ("short", "has 5 bytes"),
        ("x" * (TOKEN_MAX_BYTES + 1), "bytes; 32"),
        ("abcdefg" * 10, "only 7 different characters"),
    ],
)
def test_a_text_that_could_be_guessed_is_no_token(tmp_path: Path, text: str, words: str) -> None:
    for environ, file in (({TOKEN_VARIABLE: text}, None), ({}, written(tmp_path / "token", text))):
        with pytest.raises(UsageError, match=words) as refused:
            read_token(environ, file)
        assert text == "" or text not in str(refused.value)
        assert "openssl rand -hex 32" in str(refused.value)


def test_two_tokens_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two tokens"):
        read_token({TOKEN_VARIABLE: TEXT}, written(tmp_path / "token"))


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440, 0o640])
def test_a_file_may_be_read_by_its_group(tmp_path: Path, mode: int) -> None:
    assert read_token({}, written(tmp_path / "token", mode=mode)) is not None


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o620, 0o602, 0o666])
def test_a_file_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(UsageError, match=f"has mode {mode:04o}.*\n.*chmod 600"):
        read_token({}, written(tmp_path / "token", mode=mode))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "token")
    os.chown(path, 12345, -1)
    with pytest.raises(UsageError, match="belongs to user 12345"):
        read_token({}, path)


def test_a_path_that_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    for path, words in (("fifo", "not a regular file"), ("none", "No such file"), (".", "directory")):
        with pytest.raises(UsageError, match=words):
            read_token({}, str(tmp_path / path))


def test_its_text_is_shown_nowhere() -> None:
    @dataclass
    class Config:
        job_token: JobToken

    token = JobToken(TEXT.encode(), "a test")
    assert TEXT not in f"{token} {token!r} {asdict(Config(token))} {vars(Config(token))}"
    assert copy.deepcopy(token) is token
    with pytest.raises(TypeError, match="does not leave its process"):
        pickle.dumps(token)
