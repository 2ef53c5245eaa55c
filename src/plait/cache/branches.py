"""Items under token keys: exact look-up, and the items that share the longest beginning with a key."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["Branches", "Key", "shared"]

Key = tuple[int, ...]
Item = TypeVar("Item")


def shared(a: Key, b: Key) -> int:
    """How many tokens two keys begin with alike."""
    if a == b:
        return len(a)
    count = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        count += 1
    return count


class Branches(Generic[Item]):
    """Keys are the tokens themselves, so no collision of hashes can give one prompt the state of another.

    They are kept in order as well: the key with the longest common beginning is next to the place a key would have,
    so thousands of branches cost a search and not a comparison with each.
    """

    __slots__ = ("_items", "_order")

    def __init__(self) -> None:
        self._items: dict[Key, Item] = {}
        self._order: list[Key] = []

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items.values())

    def get(self, key: Key) -> Item | None:
        return self._items.get(key)

    def add(self, key: Key, item: Item) -> None:
        """`key` is new."""
        self._items[key] = item
        insort(self._order, key)

    def remove(self, key: Key) -> None:
        """KeyError: there is no such key."""
        del self._items[key]
        del self._order[bisect_left(self._order, key)]

    def nearest(self, key: Key) -> Iterator[tuple[int, Item]]:
        """(tokens in common, item), most in common first, down to none in common."""
        right = bisect_left(self._order, key)
        left = right - 1
        on_left = shared(self._order[left], key) if left >= 0 else 0
        on_right = shared(self._order[right], key) if right < len(self._order) else 0
        while on_left or on_right:
            if on_right >= on_left:
                yield on_right, self._items[self._order[right]]
                right += 1
                on_right = shared(self._order[right], key) if right < len(self._order) else 0
            else:
                yield on_left, self._items[self._order[left]]
                left -= 1
                on_left = shared(self._order[left], key) if left >= 0 else 0

    def beginnings(self, key: Key) -> list[Item]:
        """Items whose key is a beginning of `key`, longest first."""
        if len(self._order) <= len(key):
            found = sorted((k for k in self._order if key[: len(k)] == k), key=len, reverse=True)
            return [self._items[k] for k in found]
        lookups = (self._items.get(key[:length]) for length in range(len(key), -1, -1))
        return [item for item in lookups if item is not None]
