"""The curl examples of docs/service.md, run as they stand against the index that the page makes."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from autojacobin.service import serving

PAGE = (Path(__file__).parents[2] / "docs" / "service.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```console\n\$ (.*?)\n(.*?)\n```", PAGE)


@pytest.fixture(scope="module")
def documented(tmp_path_factory):
    home = tmp_path_factory.mktemp("docs")
    program = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        exec(program, {})
    with serving({"grid": home / "grid"}) as address:
        yield address


def test_there_are_examples():
    assert len(EXAMPLES) >= 5
    assert all("curl" in command for command, _ in EXAMPLES)


@pytest.mark.skipif(not (shutil.which("curl") and os.name == "posix"), reason="needs curl and a shell")
@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_curl_prints_what_the_page_shows(documented, number):
    command, shown = EXAMPLES[number]
    result = subprocess.run(
        ["sh", "-c", command.replace("http://127.0.0.1:8571", documented)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout == shown
