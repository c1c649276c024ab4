"""What several of these tests need."""

import types

import numpy as np
import pytest


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Make modules take the code paths for a GPU: they do not recognise NumPy under another name."""
    elsewhere = types.SimpleNamespace(**{name: getattr(np, name) for name in dir(np) if not name.startswith("__")})

    def change(*modules):
        for module in modules:
            monkeypatch.setattr(f"autojacobin.autoencoder.{module}.namespace", lambda array: elsewhere)

    return change
