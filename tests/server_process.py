"""`plait serve` as a process of its own, and bare connections to it."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

from calling_generate import ENVIRONMENT

PATIENCE = 120.0


class Server:
    """A server that is starting; `url` waits until it is ready, which it says in two lines."""

    def __init__(self, model, *options):
        command = [sys.executable, "-m", "plait", "serve", str(model), "--port", "0", *map(str, options)]
        environment = {**ENVIRONMENT, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        self.connections = []
        self.ready = ()

    @property
    def url(self):
        if not self.ready:
            self.ready = (self.process.stdout.readline(), self.process.stdout.readline())
        found = re.search(r"http://127\.0\.0\.1:\d+", self.ready[0])
        assert found, (self.ready, self.process.stderr.read() if self.process.poll() is not None else "")
        return found[0]

    @property
    def port(self):
        return int(self.url.rpartition(":")[2])

    def send(self, path, request):
        """A connection on which a request has been sent."""
        body = json.dumps(request).encode()
        made = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        self.connections.append(made)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        made.sendall(head.encode() + body)
        return made

    def get(self, path):
        """(status, headers and body as text)"""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as made:
            made.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            return answered(made)

    def health(self):
        return json.loads(self.get("/health")[1].partition("\r\n\r\n")[2])

    def wait(self, wanted):
        """Until /health says what is wanted."""
        end = time.monotonic() + PATIENCE
        while not wanted(found := self.health()):
            assert time.monotonic() < end, found
            time.sleep(0.02)
        return found

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def ended(self):
        """(exit status, stderr)"""
        err = self.process.communicate(timeout=PATIENCE)[1]
        return self.process.returncode, err


def answered(connection):
    """(status, all the rest as text), read until the connection is closed."""
    data = b""
    while piece := connection.recv(1 << 16):
        data += piece
    head, _, rest = data.decode().partition("\r\n")
    return int(head.split()[1]), rest


def until(connection, word):
    """What has come when `word` has."""
    data = b""
    while word not in data:
        piece = connection.recv(1 << 16)
        assert piece, data
        data += piece
    return data


@contextmanager
def serving(model, *options):
    server = Server(model, *options)
    try:
        yield server
    finally:
        for connection in server.connections:
            connection.close()
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()
