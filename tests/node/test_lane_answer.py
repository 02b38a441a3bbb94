"""Answers of data lanes that the event loop's thread sends."""

from __future__ import annotations

import socket

from moonpool.schemas.errors import Unavailable
from moonpool.schemas.messages import PutAnswer, Status
from moonpool.store_client.node.lane_answer import LaneAnswer

OK, BUSY, FAILED = bytes([Status.OK]), bytes([Status.BUSY]), bytes([Status.FAILED])


def answer_on(sock: socket.socket) -> LaneAnswer:
    return LaneAnswer(sock, lambda statuses: b"<" + statuses + b">", 2 * OK, [[7, 8]])


def test_it_is_sent_by_whoever_hears_of_it() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        answer = answer_on(ours)
        assert not answer.wait(0.0)
        answer.seen({})
        assert theirs.recv(100) == b"<" + 2 * OK + b">"
        assert answer.wait(0.0)
        assert not answer.left


def test_what_the_master_has_no_use_for_is_told() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        answer_on(ours).seen({8: PutAnswer.BUSY})
        assert theirs.recv(100) == b"<" + OK + BUSY + b">"
        answer_on(ours).seen(Unavailable(peer="the master", retry_in_s=0.0))
        assert theirs.recv(100) == b"<" + 2 * FAILED + b">"


def test_what_does_not_fit_is_left_to_the_lane() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        try:
            while True:
                ours.send(bytes(4096))
        except BlockingIOError:
            ours.setblocking(True)
        answer = answer_on(ours)
        answer.seen({})
        assert answer.wait(0.0)
        assert bytes(answer.left) == b"<" + 2 * OK + b">"


def test_a_broken_lane_is_no_fault_of_who_tells() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        answer = answer_on(ours)
        ours.close()
        answer.seen({})
        assert answer.wait(0.0)
        assert answer.left
