"""The exceptions of this package. Each message has cause and remedy."""

from __future__ import annotations

from typing import Any


class MonitorError(Exception):
    """The base class of all errors of this package.

    Attributes:
        paths: full paths that the message may contain; recordings keep only their last parts.
    """

    paths: tuple[str, ...] = ()


class NotSwitchable(MonitorError, TypeError):
    """The error for an object that `switchable` cannot drive; the message has cause and remedy."""


class BackendUnavailable(MonitorError):
    """The error for an engine that does not exist or cannot run here; the message lists those that can."""


class TransformNotTranslatable(MonitorError):
    """The error for a transform without an equivalent in DALI; the message names the transform and its position."""


class Refused(MonitorError):
    """The error for a call that a loader cannot serve: going on would deliver other samples than were requested."""


class SampleError(MonitorError):
    """The error for a sample that could not be read.

    Attributes:
        path: of the file, as in the data set.
        index: the sample's index in the data set: what the sampler gave, whatever that is.
    """

    def __init__(self, message: str, *, path: str = "", index: Any = -1) -> None:
        super().__init__(message)
        self.path = path
        self.index = index


class SessionError(MonitorError):
    """The error for a request that the state of the monitor or of a recorded session does not allow."""
