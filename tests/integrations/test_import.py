"""Frameworks are loaded by their own module alone, and a missing one is named."""

import subprocess
import sys

import pytest

FRAMEWORKS = {"haystack": "haystack", "langchain": "langchain_core", "llama_index": "llama_index"}


@pytest.mark.parametrize("package", [*FRAMEWORKS.values(), "sentence_transformers"])
def test_autojacobin_does_not_import_a_framework(package):
    program = f"import sys, autojacobin, autojacobin.integrations; sys.exit({package!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=1200).returncode == 0


@pytest.mark.parametrize("module", FRAMEWORKS)
def test_a_missing_framework_is_named_with_the_extra(module):
    program = f"""
import sys
sys.modules[{FRAMEWORKS[module]!r}] = None
from autojacobin import MissingExtraError
try:
    import autojacobin.integrations.{module}
except MissingExtraError as error:
    print(error)
"""
    printed = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=1200
    ).stdout
    assert f"pip install 'autojacobin[{module.replace('_', '-')}]'" in printed
