"""Names for the process of a starter (``elastic_core.starter``), which forks workers on the warden's request.

Its entry is called with the descriptor of a socket. ``Channel`` reads messages from it: first the starter's own order,
then requests, each with descriptors, whose names ``request["descriptors"]`` has in their order. It answers once with
``{"event": "ready", "text": …, "fields": {…}}``, or ``{"event": "failed", "reason": …}``, and ends when the channel
closes.

A request has a ``kind``: ``WORKER`` (``argv``, ``env``, ``cwd``, ``cpus``, ``ignored``), ``SERVICE`` (``entry``,
``arguments``) or ``STARTER`` (a request of ``Starter.growth``; ``control`` is the socket of the process that replaces
this one). The warden, whose pid is ``warden``, is to become the parent, so the process, which has one thread and blocks
all signals, forks twice (``die_once_adopted``). On the descriptor ``pipe`` it writes ``pid N`` and a newline, and just
before the program begins ``ok N MISSING`` and a newline: how many modules it imports itself, as far as that is known.
A request that it cannot fulfil is answered with ``no REASON``.
"""

from elastic_core.host.process_title import Title
from elastic_core.warden.channel import Channel, Message, close_all
from elastic_core.warden.linux import die_once_adopted, ignore_requests_to_end
from elastic_core.warden.spawn import take_descriptors, volunteer_for_oom
from elastic_core.warden.starter import NOTHING_NEW
from elastic_core.worker import stack_dump
from elastic_core.worker.channel import INITIALIZED, report
from elastic_core.worker.failure_recorder import FailureRecorder

__all__ = [
    "INITIALIZED",
    "NOTHING_NEW",
    "Channel",
    "FailureRecorder",
    "Message",
    "Title",
    "close_all",
    "die_once_adopted",
    "ignore_requests_to_end",
    "report",
    "stack_dump",
    "take_descriptors",
    "volunteer_for_oom",
]
