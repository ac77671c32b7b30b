"""The entries of the DataLoaders that are iterated while attached: which DataLoaders are one loader."""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import Any, NamedTuple

from . import watched_loader
from .attached_loader import AttachedLoader


class Place(NamedTuple):
    """Where a loop over a DataLoader stands: DataLoaders made anew for the same loop and data set are one loader.

    An iterable-style data set may be made anew, too: no engine is chosen for it that another one should not have.
    """

    file: str
    line: int
    role: str | None  # of the loader in the framework that runs the loop
    dataset: int | type  # `id`, or the class of an iterable-style one
    code: Any  # a weak reference to the code of the loop; None: of a map-style data set


class Loaders:
    """The entries of the DataLoaders that were iterated while attached; each goes with its DataLoader or data set."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: a finalizer that runs while it is held may iterate a DataLoader
        self._by_id: dict[int, tuple[weakref.ref[Any], AttachedLoader]] = {}
        self._by_place: dict[Place, list[tuple[weakref.ref[Any], AttachedLoader]]] = {}

    def get(self, loader: Any) -> AttachedLoader | None:
        """Return the entry of a DataLoader; None before its first batch."""
        found = self._by_id.get(id(loader))
        return found[1] if found is not None and found[0]() is loader else None

    def get_or_make(self, loader: Any, place: Place | None, name: str) -> AttachedLoader:
        """Return the entry of a DataLoader; make it if there is none."""
        with self._lock:
            return self._get_or_make(loader, place, name)

    def _get_or_make(self, loader: Any, place: Place | None, name: str) -> AttachedLoader:
        found = self.get(loader)
        if found is None:
            found = self.find_earlier(loader, place)
            if found is not None:
                found.replace_loader(loader)
            else:
                found = AttachedLoader(_unused_name(name), loader)
                if place is not None:
                    self._keep_place(place, loader.dataset, found)
            self._keep_loader(loader, found)
        elif found.loader is not loader:  # another one of this entry was iterated meanwhile
            found.replace_loader(loader)
        return found

    def find_earlier(self, loader: Any, place: Place | None) -> AttachedLoader | None:
        """Return the entry of a DataLoader made earlier for the same loop and data set; None if there is none.

        The entry of a DataLoader that is still alive is not shared: a loop may iterate both, at once or in turn. Two
        exceptions: `skip_first_batches` of accelerate makes a DataLoader for the rest of another one's epoch; and a
        framework that makes a DataLoader for each evaluation may keep the earlier ones alive, as accelerate does.
        """
        if place is None:
            return None
        of = getattr(loader, "batch_sampler", None)  # fastai gives torch's iterators something that has none
        whole = getattr(of, "__dict__", {}).get("batch_sampler")
        for held, one in self._by_place.get(place, []):
            other = one.loader
            if place.code is not None:
                if other is None:
                    return one
                continue
            same = other is None or (whole is not None and getattr(other, "batch_sampler", None) is whole)
            if held() is loader.dataset and (same or (place.role is not None and not one.under_way)):
                return one
        return None

    def _keep_loader(self, loader: Any, entry: AttachedLoader) -> None:
        key = id(loader)
        self._by_id[key] = weakref.ref(loader, lambda _: self._by_id.pop(key, None)), entry

    def _keep_place(self, place: Place, dataset: Any, entry: AttachedLoader) -> None:
        # Kept as long as another DataLoader may come to it: with the data set, or the code of the loop.
        keeper = dataset if place.code is None else place.code()
        try:
            held = weakref.ref(keeper, lambda _: self._by_place.pop(place, None))
        except TypeError:  # a tuple as data set
            return
        self._by_place.setdefault(place, []).append((held, entry))


def _unused_name(name: str) -> str:
    """Return the name, with `_2` and so on appended if a live loader has it; not `-2`, as in ids."""
    taken = {source.name for source in watched_loader.live()}
    names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
    return next(free for free in names if free not in taken)
