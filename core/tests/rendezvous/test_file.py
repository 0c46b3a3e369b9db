from functools import partial
import pytest
from pathlib import Path
from elastic_core.rendezvous.file import FileBackend
from elastic_core.testing.backend_conformance import BackendConformance, ProcessConformance
class TestFileBackend(BackendConformance, ProcessConformance):
    @pytest.fixture
    def make_backend(self, tmp_path):
        return partial(FileBackend.open, tmp_path)
    @pytest.fixture
    def opener(self, make_backend):
        return make_backend
