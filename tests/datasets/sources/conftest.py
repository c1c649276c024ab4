"""Every set of these tests has folders of its own, and may be made small."""

from dataclasses import replace

import pytest

from autojacobin.datasets import CATALOGUE


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch, tmp_path):
    monkeypatch.setenv("AUTOJACOBIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AUTOJACOBIN_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def shrunk(monkeypatch):
    """Gives an entry of the catalogue other sizes or files, and nothing else."""

    def shrink(name, **changes):
        monkeypatch.setitem(CATALOGUE, name, replace(CATALOGUE[name], **{"elsewhere": (), **changes}))
        return CATALOGUE[name]

    return shrink
