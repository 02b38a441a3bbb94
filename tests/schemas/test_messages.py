"""Messages: each one of every union survives the wire; bytes of no message are refused."""

from __future__ import annotations

import typing
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.schemas import messages
from moonpool.schemas.keyspace import KeyspaceSpec, Kind

UNIONS: dict[Callable[[bytes], typing.Any], typing.Any] = {
    messages.decode_master_request: messages.MasterRequest,
    messages.decode_from_master: messages.MasterReply | messages.MasterPush,
    messages.decode_node_request: messages.NodeRequest,
    messages.decode_from_node: messages.NodeReply,
    messages.decode_lane_request: messages.LaneRequest,
    messages.decode_lane_reply: messages.LaneReply,
}
SPEC = st.builds(
    KeyspaceSpec,
    kind=st.sampled_from(Kind),
    name=st.text(),
    shard_bytes=st.lists(st.integers(0, 9)).map(tuple),
)
st.register_type_strategy(KeyspaceSpec, SPEC)
INTEGER = st.integers(-(2**63), 2**64 - 1)


def strategy(kind: type[msgspec.Struct]) -> st.SearchStrategy[msgspec.Struct]:
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{name: field(hints[name]) for name in kind.__struct_fields__})


def field(hint: typing.Any) -> st.SearchStrategy[typing.Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is int:
        return INTEGER
    if origin is list:
        return st.lists(field(arguments[0]), max_size=3)
    if origin is tuple:
        return st.tuples(*(field(argument) for argument in arguments))
    if origin is dict:
        return st.dictionaries(field(arguments[0]), field(arguments[1]), max_size=3)
    if len(arguments) > 1:
        return st.one_of(*(field(argument) for argument in arguments))
    if hint is float:
        return st.floats(allow_nan=False)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct) and hint is not KeyspaceSpec:
        return strategy(hint)
    return st.from_type(hint)


CASES = [(decode, kind) for decode, union in UNIONS.items() for kind in typing.get_args(union)]


@pytest.mark.parametrize(("decode", "kind"), CASES, ids=lambda value: getattr(value, "__name__", ""))
@settings(derandomize=True, deadline=None, max_examples=20)
@given(data=st.data())
def test_every_message_survives_the_wire(
    decode: Callable[[bytes], object], kind: type[msgspec.Struct], data: st.DataObject
) -> None:
    message = data.draw(strategy(kind))
    assert decode(messages.encode(message)) == message


@pytest.mark.parametrize("decode", list(UNIONS))
@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    noise=st.binary(max_size=200) | st.builds(msgspec.msgpack.encode, st.lists(st.text() | st.integers(0, 9)))
)
def test_noise_is_refused_in_one_way(decode: Callable[[bytes], object], noise: bytes) -> None:
    try:
        decode(noise)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    assert decode(messages.encode(decode(noise))) == decode(noise)


def test_every_message_of_the_file_is_in_some_union() -> None:
    known = {kind for union in UNIONS.values() for kind in typing.get_args(union)}
    defined = {
        kind
        for kind in vars(messages).values()
        if isinstance(kind, type) and issubclass(kind, messages.Message) and kind is not messages.Message
    }
    assert defined == known


def test_a_message_of_the_wrong_side_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        messages.decode_master_request(messages.encode(messages.Done()))
