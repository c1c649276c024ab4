"""The examples of the pages about the service: the programs run, and curl prints what the page shows."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from autojacobin.service import Access, Limits, serving

DOCS = Path(__file__).parents[2] / "docs"
PAGE = "\n".join((DOCS / name).read_text(encoding="utf-8") for name in ("service.md", "service-writing.md"))
TOKEN = "0123456789abcdef0123456789abcdef"
EXAMPLES = re.findall(r"```console\n\$ (.*?)\n(.*?)\n```", PAGE)


@pytest.fixture(scope="module")
def documented(tmp_path_factory):
    home = tmp_path_factory.mktemp("docs")
    programs = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        for program in programs:
            if "Index.create" in program:  # test_readme.py runs the others
                exec(program, {})
    (home / "write-token").write_text(f"{TOKEN}\n")
    patient = Limits(request_seconds=600)  # the first search may wait for the compiler
    with (
        serving({"grid": home / "grid"}, limits=patient) as grid,
        serving({"places": home / "places"}, access=Access(write_token=TOKEN)) as places,
    ):
        yield home, {"http://127.0.0.1:8571": grid, "http://127.0.0.1:8572": places}


def test_there_are_examples():
    assert len(EXAMPLES) >= 5
    assert all("curl" in command for command, _ in EXAMPLES)


@pytest.mark.skipif(not (shutil.which("curl") and os.name == "posix"), reason="needs curl and a shell")
@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_curl_prints_what_the_page_shows(documented, number):
    home, addresses = documented
    command, shown = EXAMPLES[number]
    for address, served in addresses.items():
        command = command.replace(address, served)
    result = subprocess.run(["sh", "-c", command], cwd=home, capture_output=True, text=True, check=False, timeout=1200)
    assert result.returncode == 0, result.stderr
    assert result.stdout == shown
