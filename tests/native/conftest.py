"""The kernels of each level that is installed and that this CPU can run."""

import pytest

from autojacobin import _native


@pytest.fixture(params=_native.levels(), scope="session")
def kernels(request):
    return _native.load(request.param)
