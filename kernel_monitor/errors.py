"""The exceptions of this package. Each message has cause and remedy."""

from __future__ import annotations

from typing import Any


class MonitorError(Exception):
    """Base of all errors of this package.

    Attributes:
        paths: full paths that the message may contain; recordings keep only their last parts.
    """

    paths: tuple[str, ...] = ()


class NotSwitchable(MonitorError, TypeError):
    """`switchable` was given an object that it cannot drive; the message has cause and remedy."""


class BackendUnavailable(MonitorError):
    """The named loader backend does not exist or cannot run here; the message lists those that can."""


class TransformNotTranslatable(MonitorError):
    """A transform has no equivalent in DALI; the message names the transform and its position."""


class Refused(MonitorError):
    """A call that a loader cannot serve, where going on would deliver something else than was asked for."""


class SampleError(MonitorError):
    """One sample could not be read.

    Attributes:
        path: of the file, as in the data set.
        index: the sample's index in the data set: what the sampler gave, whatever that is.
    """

    def __init__(self, message: str, *, path: str = "", index: Any = -1) -> None:
        super().__init__(message)
        self.path = path
        self.index = index


class SessionError(MonitorError):
    """The monitor or a recorded session is not in a state that allows the request."""
