"""Every error that kernel_monitor raises on purpose. Each message names the cause and the remedy."""

from __future__ import annotations


class MonitorError(Exception):
    """Base of all errors of this package.

    Attributes:
        paths: files that the message may name, in full; a record of the error has their last parts.
    """

    paths: tuple[str, ...] = ()


class NotSwitchable(MonitorError, TypeError):
    """`switchable` was given something that it cannot drive; the message says what is missing and what to do."""


class BackendUnavailable(MonitorError):
    """The named loader backend does not exist or cannot run here; the message lists those that can."""


class TransformNotTranslatable(MonitorError):
    """A transform has no equivalent in DALI; the message names the transform and its position."""


class SampleError(MonitorError):
    """One sample could not be read.

    Attributes:
        path: the file's path as the data set gives it.
        index: the sample's index in the data set.
    """

    def __init__(self, message: str, *, path: str = "", index: int = -1) -> None:
        super().__init__(message)
        self.path = path
        self.index = index


class SessionError(MonitorError):
    """The monitor or a recorded session is not in a state that allows the request."""
