"""The service as a user runs it: the real command, in a process of its own, on a port of its own."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

from autojacobin.service.calls import Call
from tests.waiting import SECONDS, joined, line_from, until, with_signals

PROGRAM = "from autojacobin.cli import main; main()"


class ServiceProcess:
    def __init__(self, *arguments, environment=None, before=""):
        """Start it; ``before`` is Python that runs first."""
        # one thread: the tests share the machine with each other
        surroundings = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
        self.process = subprocess.Popen(
            [sys.executable, "-c", before + PROGRAM, "serve", *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=surroundings,
            **with_signals(),
        )  # fmt: skip
        self.announced = line_from(self.process.stdout, "the service announces its address")
        assert " at http" in self.announced, self.process.stderr.read()
        self.address = self.announced.split(" at ")[1].split()[0]
        self.port = urlsplit(self.address).port
        self._log = []
        self._reader = threading.Thread(target=lambda: self._log.extend(self.process.stderr), daemon=True)
        self._reader.start()

    def wait_until_ready(self):
        """Whether it becomes ready before it ends; that takes as long as the compiler does."""
        return until(
            lambda: self.process.poll() is not None or self.ask("GET", "/readyz")[0] == 200, "the service is ready"
        ) and (self.process.poll() is None)

    def ask(self, method, path, body=None, headers=None):
        """Status, headers and body of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def post(self, path, document):
        """Status and document of the answer to a JSON request."""
        status, _, body = self.ask("POST", path, json.dumps(document).encode(), {"Content-Type": "application/json"})
        return status, json.loads(body)

    def metric(self, line):
        """Value of a metric, 0 where it has not been counted yet."""
        text = self.ask("GET", "/metrics")[2].decode()
        values = [float(found.rpartition(" ")[2]) for found in text.splitlines() if found.startswith(line + " ")]
        return values[0] if values else 0.0

    def stop(self, number=signal.SIGTERM):
        """Exit code and everything it logged."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(SECONDS)
        joined(self._reader)
        self.process.stdout.close()
        self.process.stderr.close()
        return code, "".join(self._log)


def eventually(condition, seconds=600):
    """Whether a condition comes true, which is looked at again and again; the end is for a run that is broken."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def asked(client, path):
    """Body of the answer to a request for a path, by a client of the library."""
    return client._send(Call("GET", path, lambda content, _: content))
