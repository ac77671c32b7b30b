"""The user's own DALI pipeline, joined to the plan: it is given the files, the numbers and nothing to choose.

`switchable(loader, dali=pipeline)`: the function is called once for each pipeline that is built, with a `Sample`
whose attributes are DALI nodes, and returns the node of the result. See example_notebooks/own_pipeline.ipynb.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import BackendUnavailable
from ..transforms.draws import uniforms
from ..transforms.ops.operation import Graph
from .dali_graph import ENCODED, NAME, Rows, explained, files, pipeline

_UNIT = 2.0**24  # numbers in [0, 1) that float32 holds exactly


class Sample:
    """One sample inside a DALI pipeline definition. Every attribute but `device` is a DALI node.

    Attributes:
        device: for the image decoders: `cpu` on `dali-cpu`, `mixed` on `dali-gpu`.
        encoded: uint8[bytes], the encoded file.
    """

    def __init__(self, graph: Graph, encoded: Any) -> None:
        self.device = "cpu" if graph.device == "cpu" else "mixed"
        self.encoded = encoded
        self._graph = graph
        self.inputs: dict[str, Callable[[Rows], npt.NDArray[Any]]] = {}
        self._nodes: dict[str, Any] = {}

    @property
    def index(self) -> Any:
        """int64, the sample's index in the data set."""
        return self._fed("index", "INT64", 0, lambda rows: rows.indices)

    @property
    def height(self) -> Any:
        """int32, of the file's image, pixels."""
        return self._fed("height", "INT32", 0, lambda rows: rows.heights.astype(np.int32))

    @property
    def width(self) -> Any:
        """int32, of the file's image, pixels."""
        return self._fed("width", "INT32", 0, lambda rows: rows.widths.astype(np.int32))

    def uniform(self, n: int, operation: int = 0) -> Any:
        """float32[n], uniform random numbers in [0, 1): a function of seed, epoch, index and occurrence alone.

        Args:
            n: how many numbers.
            operation: which of the sample's sequences, 0 or more; one for each thing that draws, as the same
                operation gives the same numbers again.
        """
        if n < 1 or operation < 0:
            raise ValueError(f"uniform(n={n}, operation={operation}): n is at least 1, operation at least 0")

        def numbers(rows: Rows) -> npt.NDArray[np.float32]:
            drawn = np.floor(uniforms(rows.keys, operation, n) * _UNIT) / _UNIT  # rounding could make 1.0 of them
            return drawn.astype(np.float32)

        return self._fed(f"uniform{operation}x{n}", "FLOAT", 1, numbers)

    def _fed(self, name: str, dtype: str, ndim: int, values: Callable[[Rows], npt.NDArray[Any]]) -> Any:
        if name not in self._nodes:
            self._nodes[name] = self._graph.fed(name, ndim, dtype)
            self.inputs[name] = values
        return self._nodes[name]


class OwnPipeline:
    """The work of a function given as `dali=`, which makes of a `Sample` the `DataNode` of its result."""

    rest: int | None = None
    rest_kind = "pil"

    def __init__(self, function: Callable[[Sample], Any]) -> None:
        self._function = function
        self._inputs: dict[str, Callable[[Rows], npt.NDArray[Any]]] = {}

    def build(self, *, batch_size: int, threads: int, device: int | None, encoded: bool) -> Any:
        """Call the function inside a pipeline definition and build that.

        Raises:
            BackendUnavailable: the function failed, or what it returned is no pipeline; in its own words.
        """
        defined = pipeline(batch_size=batch_size, threads=threads, device=device)
        from nvidia.dali.pipeline import DataNode

        with defined:
            graph = Graph(device)
            sample = Sample(graph, files(graph, encoded))
            try:
                result = self._function(sample)
            except Exception as error:  # the user's function
                raise refused(f"{type(error).__name__}: {explained(error)}") from error
            if not isinstance(result, DataNode):
                raise refused(f"it returned {type(result).__name__}, and must return one DataNode")
            defined.set_outputs(result if device is None else result.gpu())
        try:
            defined.build()
        except Exception as error:  # DALI's own
            raise refused(explained(error)) from error
        if not _wants(defined, ENCODED if encoded else NAME):
            raise refused("its result does not depend on sample.encoded")
        self._inputs = {name: values for name, values in sample.inputs.items() if _wants(defined, name)}
        return defined

    def arrays(self, rows: Rows) -> Mapping[str, npt.NDArray[Any]]:
        return {name: values(rows) for name, values in self._inputs.items()}


def refused(reason: str) -> BackendUnavailable:
    """The error for a pipeline of the user's that cannot be used."""
    return BackendUnavailable(f"The pipeline given as dali= cannot be used: {reason}")


def _wants(defined: Any, name: str) -> bool:
    try:
        defined.input_feed_count(name)
    except KeyError:
        return False
    return True
