"""What an installation brings: the core without the command line, extras that exist, an image, and nginx."""

import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from autojacobin.cli import app

ROOT = Path(__file__).parent.parent
CORE = {"numpy", "scipy", "scikit-learn", "numba", "safetensors", "threadpoolctl", "xxhash"}
WITHOUT_THE_EXTRA = """
import sys
sys.modules[{package!r}] = None
import autojacobin.hashers, autojacobin.index, autojacobin.service
from autojacobin.cli import main
main()
"""


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def extras():
    table = read("pyproject.toml").partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    return set(re.findall(r"^([\w-]+) = ", table, re.MULTILINE))


def test_the_core_needs_seven_packages():
    listed = read("pyproject.toml").partition("\ndependencies = [")[2].partition("\n]")[0]
    assert set(re.findall(r'"([\w-]+)>=', listed)) == CORE


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_the_command_without_its_extra_says_how_to_get_it(package):
    program = WITHOUT_THE_EXTRA.format(package=package)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=1200)
    assert result.returncode == 1
    assert result.stderr == (
        f"autojacobin: the command line needs the package '{package}', which is not installed; "
        "install it with: pip install 'autojacobin[cli]'\n"
    )


def test_every_extra_that_documentation_and_messages_name_exists():
    named = set()
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.py"), ROOT / "Makefile"]:
        for found in re.findall(r"pip install[^\n]*?(?:autojacobin|\.)\[([\w,-]+)\]", path.read_text(encoding="utf-8")):
            named |= set(found.split(","))
    assert {"cli", "web"} <= named
    assert named <= extras()


def test_the_install_command_of_messages_finds_what_was_installed_from_a_clone():
    """pip looks for the package itself in no index, because it is installed already."""
    pytest.importorskip("pip")
    editable = any("direct_url" in str(file) for file in metadata.files("autojacobin") or ())
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--dry-run", "--no-deps", "autojacobin[web]"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    assert result.returncode == 0, result.stderr
    assert "Requirement already satisfied: autojacobin[web]" in result.stdout or not editable


def test_the_page_about_the_service_shows_the_configuration_of_nginx():
    shown = re.search(r"```nginx\n(.*?)```", read("docs/service-operating.md"), re.DOTALL)[1]
    assert shown == read("deploy/nginx.conf")


@pytest.mark.skipif(shutil.which("nginx") is None or shutil.which("openssl") is None, reason="needs nginx and openssl")
def test_nginx_accepts_the_configuration(tmp_path):
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=search.example.org"]
    files = ["-keyout", str(tmp_path / "search.key"), "-out", str(tmp_path / "search.pem")]
    subprocess.run([*make, *files], capture_output=True, check=True, timeout=1200)
    site = read("deploy/nginx.conf").replace("/etc/ssl/autojacobin", str(tmp_path))
    whole = f"pid {tmp_path}/pid;\nerror_log {tmp_path}/log;\nevents {{}}\nhttp {{\n{site}}}\n"
    (tmp_path / "nginx.conf").write_text(whole, encoding="utf-8")
    command = ["nginx", "-t", "-e", str(tmp_path / "log"), "-c", str(tmp_path / "nginx.conf")]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    assert result.returncode == 0, result.stderr
    assert "test is successful" in result.stderr


def test_the_image_runs_commands_that_exist_and_not_as_root():
    image = read("Dockerfile")
    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert {re.search(r"^RUN autojacobin (\w+)", image, re.MULTILINE)[1], "serve"} <= known
    assert re.search(r'^CMD \["serve", "/index", "--host", "0\.0\.0\.0"\]', image, re.MULTILINE)
    last_user = re.findall(r"^USER (\S+)", image, re.MULTILINE)[-1]
    assert last_user not in ("root", "0")
    assert image.index(f"USER {last_user}") < image.index("RUN autojacobin warm") < image.index("ENTRYPOINT")
    assert "/readyz" in re.search(r"HEALTHCHECK.*\n.*", image)[0]
    installed = re.search(r"'/source\[([\w,]+)\]'", image)[1]
    assert set(installed.split(",")) <= extras()


def test_the_image_gets_every_file_that_the_build_reads():
    allowed = {line[1:] for line in read(".dockerignore").splitlines() if line.startswith("!")}
    project = read("pyproject.toml")
    needed = {"pyproject.toml", "src", re.search(r'^readme = "(.*)"', project, re.MULTILINE)[1]}
    needed |= set(re.search(r'^license-files = \["(.*)"\]', project, re.MULTILINE)[1].split('", "'))
    assert allowed == needed


def test_the_compose_file_mounts_files_that_exist_and_serves_as_the_image_does():
    services = yaml.safe_load(read("deploy/compose.yml"))["services"]
    assert (ROOT / "deploy" / services["autojacobin"]["build"] / "Dockerfile").exists()
    assert services["autojacobin"]["command"][0] == "serve"
    assert services["nginx"]["network_mode"] == "service:autojacobin"  # so that 127.0.0.1 is that of the service
    assert (ROOT / "deploy" / services["nginx"]["volumes"][0].partition(":")[0]).exists()
    host = services["autojacobin"]["command"][-1]
    assert f"server_name {host};" in read("deploy/nginx.conf")
