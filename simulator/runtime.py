"""The simulator's :class:`~elastic_core.session.runtime.Runtime`: an agent with it runs in virtual time.

Unless a plan has a job token or a limit for values, values travel as objects: the codec has tests of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from elastic_core.errors import ElasticError
from elastic_core.protocol import codec
from elastic_core.protocol.codec import CODEC, Codec
from elastic_core.session.runtime import Runtime
from simulator import engine
from simulator.channel import Payload

if TYPE_CHECKING:
    from simulator.plan import Plan
    from simulator.world import World


def runtime_of(world: World, now: Callable[[], float], sleep: Callable[[float], None]) -> Runtime:
    """Return a runtime for one agent.

    Args:
        world: Its threads are those of this world's hub.
        now: The clock of the agent's host.
        sleep: Waits by that clock.
    """
    hub = world.hub
    return Runtime(
        now=now,
        sleep=sleep,
        new_id=world.new_entry_id,
        thread=cast("Any", partial(engine.Thread, hub)),
        condition=cast("Any", partial(engine.Condition, hub)),
        event=cast("Any", partial(engine.Event, hub)),
        ask=cast("Any", partial(engine.Future, hub)),
        codec=codec_of(world.plan),
        whole=world.plan.kept_entries,
    )


def codec_of(plan: Plan) -> Codec:
    """Return core's codec if values are sealed, which needs bytes; else one that passes objects."""
    if plan.has_token:
        return CODEC
    if plan.value_limit:
        encode_entry = partial(_encoded, partial(codec.encode_entry, most=plan.value_limit), codec.decode_entry)
        encode_row = partial(_encoded, codec.encode_row, codec.decode_row)  # a row takes as much in a job of any size
        return Codec(encode_entry, _unwrap, encode_row, _unwrap, can_fail=False)
    return UNENCODED


def _unwrap(data: bytes) -> Any:
    assert isinstance(data, Payload), data
    if isinstance(data.value, ElasticError):
        raise data.value
    return data.value


def _encoded(encode: Callable[[Any], bytes], decode: Callable[[bytes], Any], value: object) -> Payload:
    """Return the value that a reader of the encoded value gets."""
    return Payload.of(decode(encode(value)))


UNENCODED = Codec(Payload.of, _unwrap, Payload.of, _unwrap, can_fail=False)
"""The codec that passes objects."""
