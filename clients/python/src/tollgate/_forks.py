"""What a forked process must not share with its parent: connections, pipes and locks.

Promises: whatever is registered is told in the child before any other code of the child runs.
Never: does anything in the parent.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """Something that has to change in a forked process."""

    def after_fork(self) -> None:
        """Runs in the child, which has one thread: locks of the parent may be held for ever."""


_registered: "weakref.WeakSet[Forkable]" = weakref.WeakSet()


def register(what: Forkable) -> None:
    """``what.after_fork()`` runs in every process that is forked from now on."""
    _registered.add(what)


def cut(descriptor: int) -> None:
    """Ends the child's part of a connection or pipe, and keeps the number of the descriptor taken:
    the object that holds it may still close it, or remove it from an event loop that both processes
    share, and must not hit another file."""
    if descriptor < 0:  # closed before
        return
    null = os.open(os.devnull, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
    try:
        os.dup2(null, descriptor, inheritable=False)
    finally:
        os.close(null)


def _in_child() -> None:
    for what in list(_registered):
        # Without a free descriptor a connection stays shared; the locks of the others count more, whatever fails.
        with contextlib.suppress(Exception):
            what.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
