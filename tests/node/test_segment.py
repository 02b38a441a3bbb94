"""The segment file: made, found again, never shared, never shortened."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.support.huge import collapses

from moonpool.schemas.errors import ConfigError
from moonpool.store_client.huge_pages import HUGE_BYTES, FileMapping
from moonpool.store_client.node import segment
from moonpool.store_client.node.annex import Annex, Facts, SessionRecord
from moonpool.store_client.node.layout import ANNEX_BYTES, ANNEX_OFFSET, HEAD_BYTES, Head, Layout
from moonpool.store_client.node.segment import Segment, open_segment

LAYOUT = Layout(1 << 20, 4)


def closed(made: Segment) -> Path:
    made.close()
    return made.path


def test_a_new_segment_is_private_whole_and_named_after_its_id(shm: Path) -> None:
    made = open_segment(str(shm), "n", LAYOUT)
    status = made.path.stat()
    assert made.path.name == f"moonpool-{os.getuid()}-n-{made.head.segment.hex()}.segment"
    assert status.st_mode & 0o777 == 0o600
    assert status.st_size == LAYOUT.file_bytes
    # Head and pages are real memory already; headers are holes until their page gets a slot size.
    assert status.st_blocks * 512 == HEAD_BYTES + LAYOUT.capacity_bytes
    assert made.reserve_headers(2, 256)
    assert made.path.stat().st_blocks * 512 == HEAD_BYTES + LAYOUT.capacity_bytes + 256 * 128
    assert Head.read(made.path.read_bytes()[:4096]) == made.head and not made.adopted
    made.close()


def test_the_same_segment_is_found_again_with_its_bytes(shm: Path) -> None:
    made = open_segment(str(shm), "n", LAYOUT)
    made.buffer[LAYOUT.data_offset : LAYOUT.data_offset + 4] = b"kept"
    path = closed(made)
    again = open_segment(str(shm), "n", LAYOUT)
    assert again.adopted and again.head == made.head and again.path == path
    assert again.buffer[LAYOUT.data_offset : LAYOUT.data_offset + 4] == b"kept"
    again.close()


@pytest.mark.parametrize("name", ["n-2", "other"])
def test_segments_of_other_names_are_left_alone(shm: Path, name: str) -> None:
    other = closed(open_segment(str(shm), name, LAYOUT))
    open_segment(str(shm), "n", LAYOUT).close()
    assert other.exists()


def test_a_segment_of_another_size_makes_way_and_stays_readable(shm: Path) -> None:
    made = open_segment(str(shm), "n", LAYOUT)
    path = closed(made)
    larger = open_segment(str(shm), "n", Layout(1 << 20, 5))
    assert not larger.adopted and not path.exists()
    # A reader that still maps the old file must not die of it.
    assert made.buffer[LAYOUT.file_bytes - 1] == 0
    larger.close()


def test_a_segment_of_another_boot_is_not_adopted(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = closed(open_segment(str(shm), "n", LAYOUT))
    monkeypatch.setattr(segment, "boot_id", lambda: "another boot")
    made = open_segment(str(shm), "n", LAYOUT)
    assert not made.adopted and not path.exists()
    made.close()


def test_a_file_that_was_never_finished_is_not_adopted(shm: Path) -> None:
    made = open_segment(str(shm), "n", LAYOUT)
    made.buffer[:8] = bytes(8)
    path = closed(made)
    again = open_segment(str(shm), "n", LAYOUT)
    assert not again.adopted and not path.exists()
    again.close()


def test_of_two_good_ones_one_is_kept(shm: Path) -> None:
    first = closed(open_segment(str(shm), "n", LAYOUT))
    hidden = first.rename(shm / "hidden")
    second = closed(open_segment(str(shm), "n", LAYOUT))
    hidden.rename(first)
    open_segment(str(shm), "n", LAYOUT).close()
    assert sorted([first.exists(), second.exists()]) == [False, True]


def test_two_nodes_never_share_a_segment(shm: Path) -> None:
    made = open_segment(str(shm), "n", LAYOUT)
    with pytest.raises(ConfigError, match="is running"):
        open_segment(str(shm), "n", LAYOUT)
    made.close()


def test_a_link_is_not_followed(shm: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    link = shm / f"moonpool-{os.getuid()}-n-{'0' * 32}.segment"
    link.symlink_to(victim)
    with pytest.raises(ConfigError, match="symbolic"):
        open_segment(str(shm), "n", LAYOUT)
    assert victim.read_bytes() == b"precious"


def test_too_little_memory_is_said_before_any_is_taken(shm: Path) -> None:
    with pytest.raises(ConfigError, match="left"):
        open_segment(str(shm), "n", Layout(64 << 20, 1 << 16))
    assert list(shm.iterdir()) == []


def test_a_huge_page_folder_does_not_say_its_room_beforehand(
    shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hugetlbfs without a limit of its own has 0 blocks, 0 of them free."""
    said = os.statvfs(shm)
    zeroed = [*said[:2], 0, 0, 0, *said[5:]]
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(zeroed))
    open_segment(str(shm), "n", LAYOUT).close()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="segment_dir"):
        open_segment(str(tmp_path / "missing"), "n", LAYOUT)


def test_prefault_touches_everything_and_changes_nothing(shm: Path) -> None:
    made = open_segment(str(shm), "n", LAYOUT)
    rng = np.random.default_rng(0)
    content = rng.bytes(LAYOUT.capacity_bytes)
    made.buffer[LAYOUT.data_offset : LAYOUT.data_offset + LAYOUT.capacity_bytes] = content
    seen: list[tuple[int, int]] = []
    made.prefault(lambda *step: seen.append(step))
    assert seen[-1] == (LAYOUT.capacity_bytes, LAYOUT.capacity_bytes)
    assert made.buffer[LAYOUT.data_offset : LAYOUT.data_offset + LAYOUT.capacity_bytes] == content
    made.close()


def test_a_numa_node_that_is_not_there_costs_one_line(shm: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        made = open_segment(str(shm), "n", LAYOUT, numa_node=900)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    made.close()


def test_memory_is_bound_to_a_numa_node_that_is_there(shm: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        made = open_segment(str(shm), "n", LAYOUT, numa_node=0)
    maps = Path("/proc/self/numa_maps")
    if maps.exists():
        line = next(line for line in maps.read_text().splitlines() if str(made.path) in line)
        assert " bind:0 " in line
    else:
        assert "is not bound" in caplog.text or "bound to NUMA node 0" in caplog.text
    made.close()


KILLED = """
import sys, time
from moonpool.store_client.node.annex import Annex, Facts, SessionRecord
from moonpool.store_client.node.layout import Layout
from moonpool.store_client.node.segment import open_segment
made = open_segment(sys.argv[1], "n", Layout(1 << 20, 4))
annex = Annex(made.buffer)
print("ready", flush=True)
number = 0
while True:
    number += 1
    annex.store(Facts([], [SessionRecord(number, "x" * 150)] * (number % 900)))
"""


def test_the_annex_survives_a_kill_at_any_moment(shm: Path) -> None:
    for pause_s in (0.0, 0.003, 0.011):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(shm)], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
            try:
                child.wait(pause_s + 0.05)
            except subprocess.TimeoutExpired:
                child.kill()
        made = open_segment(str(shm), "n", LAYOUT)
        assert made.adopted
        sessions = Annex(made.buffer).facts.sessions
        assert len({record.session for record in sessions}) <= 1
        assert not sessions or len(sessions) == sessions[0].session % 900
        made.close()


def test_an_annex_with_a_flipped_byte_falls_back_to_the_one_before(shm: Path) -> None:
    made = open_segment(str(shm), "n", LAYOUT)
    annex = Annex(made.buffer)
    annex.store(Facts([], [SessionRecord(1, "/a")]))
    annex.store(Facts([], [SessionRecord(2, "/b")]))
    area = ANNEX_OFFSET + ANNEX_BYTES * annex._area
    made.buffer[area + 30] ^= 0xFF
    assert Annex(made.buffer).facts.sessions == [SessionRecord(1, "/a")]
    made.close()


def test_a_new_segment_lies_in_huge_pages_and_says_how_far_it_is(shm: Path) -> None:
    layout, seen = Layout(4 << 20, 4), list[tuple[int, int]]()
    made = open_segment(str(shm), "n", layout, huge_pages=lambda *step: seen.append(step))
    assert seen == [(layout.capacity_bytes, layout.capacity_bytes)]
    assert made.path.stat().st_blocks * 512 == HEAD_BYTES + layout.capacity_bytes
    made.prefault(lambda *_: None)
    if collapses():  # as many as the kernel finds free memory in one piece for
        assert HUGE_BYTES <= made.mapping.huge_bytes() <= layout.capacity_bytes
    made.close()


def test_whoever_is_stopped_on_the_way_leaves_nothing(shm: Path) -> None:
    def stop(*_: int) -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        open_segment(str(shm), "n", LAYOUT, huge_pages=stop)
    assert not list(shm.glob("*.segment"))
    open_segment(str(shm), "n", LAYOUT).close()


def test_a_segment_whose_memory_runs_out_on_the_way_is_refused(
    shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(FileMapping, "use_huge_pages", full)
    with pytest.raises(ConfigError, match="No space left"):
        open_segment(str(shm), "n", LAYOUT, huge_pages=lambda *_: None)
    assert not list(shm.glob("*.segment"))
