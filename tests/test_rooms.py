"""Memory on large pages: nobody's bytes are anybody else's, and what nobody has is let go."""

from __future__ import annotations

import threading
from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.runtime.rooms import Lots, Rooms


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 3 * 2**20), min_size=1, max_size=12))
def test_rooms_are_their_own_and_begin_with_a_line(sizes):
    rooms = Rooms(2**22)
    taken = [rooms.take(size) for size in sizes]
    assert [room.numel() for room in taken] == sizes
    assert all(room.data_ptr() % 64 == 0 for room in taken)
    spans = sorted((room.data_ptr(), room.data_ptr() + room.numel()) for room in taken)
    assert all(stop <= first for (_, stop), (first, _) in pairwise(spans))


@settings(max_examples=30, deadline=None)
@given(size=st.integers(2**16, 2**20), steps=st.lists(st.integers(0, 40), max_size=60))
def test_lots_in_use_are_apart_and_areas_without_any_are_let_go(size, steps):
    lots, had = Lots(size), []
    for step in steps:
        if had and step % 3 == 0:
            lots.give(had.pop(step % len(had)))
        else:
            had.append(lots.take())
            had[-1].data.fill_(len(had) % 251)
        spans = sorted((lot.data.data_ptr(), lot.data.data_ptr() + size) for lot in had)
        assert all(stop <= first for (_, stop), (first, _) in pairwise(spans))
    for lot in had:
        lots.give(lot)
    assert lots.areas == 0


def test_a_lot_that_was_given_back_is_the_next_that_is_taken():
    lots = Lots(2**18)
    first, second = lots.take(), lots.take()
    lots.give(first)
    again = lots.take()
    assert (again.area, again.index) == (first.area, first.index)
    assert lots.areas == 1
    assert second.data.data_ptr() != again.data.data_ptr()


def test_lots_are_taken_and_given_by_several_threads():
    lots, wrong = Lots(2**16), []

    def work(mark: int) -> None:
        for _ in range(200):
            lot = lots.take()
            lot.data.fill_(mark)
            if not torch.equal(lot.data, torch.full_like(lot.data, mark)):
                wrong.append(mark)
            lots.give(lot)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert lots.areas == 0


def test_pages_are_put_together_beneath_what_lies_there():
    rooms = Rooms(2**26)
    taken = [rooms.take(size) for size in (5 * 2**20, 70 * 2**20, 3)]
    for mark, room in enumerate(taken):
        room.fill_(mark + 1)
    rooms.gather()
    assert all(bool((room == mark + 1).all()) for mark, room in enumerate(taken))
    Rooms.settle()
    assert all(bool((room == mark + 1).all()) for mark, room in enumerate(taken))


def test_rooms_that_are_gone_while_pages_are_put_together_do_no_harm():
    for _ in range(3):
        rooms = Rooms(2**26)
        rooms.take(2**26).fill_(7)
        rooms.gather()
        del rooms
    Rooms.settle()
