"""Servers that are often named as a c10d endpoint by mistake: etcd and Redis, which have backends of their own."""

from __future__ import annotations

REQUEST = b"GET /version HTTP/1.0\r\n\r\n"
"""A question that etcd answers with its version, and Redis with an error about GET. A TCPStore does not answer it."""
NAMES = {"etcd": "etcd", "redis": "Redis"}  # of the servers, by their backends
_USUAL_PORTS = {2379: "etcd", 6379: "redis"}
_REDIS_ERRORS = (b"-ERR ", b"-NOAUTH ", b"-DENIED ", b"-LOADING ")


def backend_of(answer: bytes) -> str | None:
    """Return the backend for the server that has answered :data:`REQUEST` so; None where the answer does not tell."""
    if answer.startswith(b"HTTP/") and b"etcdserver" in answer:
        return "etcd"
    return "redis" if answer.startswith(_REDIS_ERRORS) else None


def advice(port: int) -> str:
    """Return a sentence for who waits at a port that etcd or Redis usually has, to stand after another one; ''
    elsewhere.
    """
    if (backend := _USUAL_PORTS.get(port)) is None:
        return ""
    return f" Port {port} is usually {NAMES[backend]}'s: to meet there, add --rdzv_backend={backend}."
