"""A real HTTP server on this machine that can be told to break off, to lie and to corrupt, request by request."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.waiting import SECONDS, joined


class Server:
    """Serves ``content``; each request is handled by the next of ``acts``, and by ``honest`` once they are used up."""

    def __init__(self, url, content):
        self.url, self.content = url, content
        self.acts = []
        self.requests = []  # headers of each, as they came


@contextmanager
def serving(content, context=None):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            server.requests.append(dict(self.headers))
            self.connection.settimeout(SECONDS)
            act = server.acts.pop(0) if server.acts else honest
            act(self, server)
            self.close_connection = True

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        if context is not None:
            listener.socket = context.wrap_socket(listener.socket, server_side=True)
        scheme = "http" if context is None else "https"
        server = Server(f"{scheme}://127.0.0.1:{listener.server_port}/file.bin", content)
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown()
            joined(thread)


def _head(handler, status, length, **more):
    handler.send_response(status)
    if length is not None:
        handler.send_header("Content-Length", str(length))
    for name, value in more.items():
        if value:
            handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()


def honest(handler, server, upto=None):
    _head(handler, 200, len(server.content))
    handler.wfile.write(server.content[:upto])


def breaking_off_at(upto):
    return lambda handler, server: honest(handler, server, upto)


def announcing(length):
    def act(handler, server):
        _head(handler, 200, length)
        handler.wfile.write(server.content)

    return act


def without_length(handler, server):
    _head(handler, 200, None)
    handler.wfile.write(server.content)


def corrupting(handler, server):
    _head(handler, 200, len(server.content))
    handler.wfile.write(bytes([server.content[0] ^ 1]) + server.content[1:])


def answering(status):
    return lambda handler, server: _head(handler, status, 0)


def redirecting_to(place):
    return lambda handler, server: _head(handler, 302, 0, Location=place)


def hanging_up(handler, server):
    handler.connection.close()
    handler.wfile = open("/dev/null", "wb")  # noqa: SIM115  # which the base class closes
