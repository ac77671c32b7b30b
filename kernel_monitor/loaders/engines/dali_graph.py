"""From a `Program` to a DALI pipeline with explicit parameters: DALI shuffles nothing and draws nothing.

Matching torchvision's pixels (measured with DALI 2.4 and Pillow): linear interpolation with antialiasing, no
sub-pixel scale, explicit target sizes, no EXIF rotation, chroma upsampling like libjpeg's on the GPU.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...errors import BackendUnavailable
from ...os_process import in_forked_children
from ..transforms.operation import Graph
from ..transforms.params import Ints, UInt64s, uniforms
from ..transforms.program import Program, arrays, distinct
from . import process_end

# Inputs: the bytes of each file's path, uint8[longest path], and their number, int32; or each file itself, uint8[1-D].
NAME, LENGTH, ENCODED = "name", "length", "encoded"

_LIBRARIES = ("libdali_core.so", "libdali_kernels.so", "libdali.so", "libdali_operators.so")  # each needs those before

_built: weakref.WeakSet[Any] = weakref.WeakSet()


Nodes = Callable[[Graph], Sequence[Any]]  # writes a chain of operators, and returns the nodes of its results
Make = Callable[..., Any]  # makes the pipeline of `Nodes`; its arguments are those of `build`


class Rows(NamedTuple):
    """The n samples that a run is fed."""

    keys: UInt64s  # uint64[n], for their random numbers
    indices: Ints  # int64[n], in the data set
    heights: Ints  # heights, widths: int64[n], of the files' images, pixels
    widths: Ints
    # int64[n], numbers of their transforms, see `FileSource.chains`; empty where there is one for all
    chains: Ints = np.empty(0, dtype=np.int64)


class Translated:
    """The work of a translated chain; `fused`: a crop that comes first is decoded alone, not cut out afterwards.

    `make` makes the pipeline of the chain, as `build` below does for DALI.
    """

    def __init__(self, program: Program, *, fused: bool = True, make: Make | None = None) -> None:
        self.rest, self.rest_kind = program.rest, program.rest_kind
        self._program = program
        self._fused = fused
        self._make = make or build

    def build(self, *, batch_size: int, threads: int, device: int | None, encoded: bool) -> Any:
        """Build a pipeline of DALI, or of threads.

        Its inputs are those of `files` and those of `arrays`; see `feed`. Its output is [n, 3, height, width], float32
        or uint8; with a `rest`, n images [height, width, 3], uint8.
        """
        nodes, dense = partial(self.nodes, encoded=encoded), self.rest is None
        return self._make(nodes, batch_size=batch_size, threads=threads, device=device, dense=dense)

    def nodes(self, graph: Graph, *, encoded: bool) -> Sequence[Any]:
        """Write the chain; return the node of its result."""
        program = self._program
        body = program.body
        fused = self._fused and bool(body) and body[0].region
        image = _decoded(graph, files(graph, encoded), region=fused)
        for k, step in enumerate(body):
            if k or not fused:
                image = step.build(graph, k, image)
        if program.rest is None:
            image = _scaled(program, graph, image)
            for k, step in enumerate(program.tail, len(body)):
                image = step.build(graph, k, image)
        return (image,)

    def arrays(self, rows: Rows) -> Mapping[str, npt.NDArray[Any]]:
        """Return what the pipeline is fed for some samples, by the name of its input."""
        return arrays(self._program, rows.keys, rows.heights, rows.widths)

    def feed(self, pipeline: Any, contents: Sequence[bytes], rows: Rows, *, encoded: bool) -> None:
        """Feed some samples to the pipeline that was built; `contents` as in `feed`."""
        feed(pipeline, contents, self.arrays(rows), encoded=encoded)


def build(nodes: Nodes, *, batch_size: int, threads: int, device: int | None, dense: bool = False) -> Any:
    """Build the `nvidia.dali.pipeline.Pipeline` of a chain; see `pipeline`. Its outputs may be dense by themselves."""
    del dense
    built = define(nodes, batch_size=batch_size, threads=threads, device=device)
    built.build()
    return built


def define(nodes: Nodes, *, batch_size: int, threads: int, device: int | None) -> Any:
    """The pipeline of `build`, not built: one for a GPU can be defined without one."""
    defined = pipeline(batch_size=batch_size, threads=threads, device=device)
    with defined:
        defined.set_outputs(*nodes(Graph(device)))
    return defined


def _preload() -> None:
    """Map DALI's libraries (600 MB) without the GIL, which an import would hold while the training loop waits.

    What cannot be mapped here is left to the import, which reports the error.
    """
    spec = importlib.util.find_spec("nvidia.dali")
    if spec is None or spec.origin is None:
        return
    # Called as a foreign function, dlopen releases the GIL; ctypes.CDLL(path) does not in every Python.
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.argtypes, dlopen.restype = [ctypes.c_char_p, ctypes.c_int], ctypes.c_void_p
    for name in _LIBRARIES:
        dlopen(bytes(Path(spec.origin).with_name(name)), os.RTLD_NOW)


def pipeline(*, batch_size: int, threads: int, device: int | None) -> Any:
    """Return an empty `nvidia.dali.pipeline.Pipeline`, to be defined and built.

    `batch_size` is the most that a run is fed, `device` a CUDA device's number, None for the CPU.
    """
    _preload()
    made_of = _pipeline_class()
    process_end.notice()  # again: DALI's own function was registered by this import
    # Depth 1: how many runs are in flight is the engine's own count, and partial batches are just smaller feeds.
    made = made_of(
        batch_size=batch_size, num_threads=threads, device_id=device, prefetch_queue_depth=1, exec_dynamic=True
    )
    _built.add(made)
    return made


@lru_cache(maxsize=1)
def _pipeline_class() -> Any:
    from nvidia.dali.pipeline import Pipeline
    from nvidia.dali.tensors import TensorListCPU

    class Fed(Pipeline):  # type: ignore[misc]
        """A pipeline that is spared the look at what kind of array it is fed."""

        def feed_input(self, name: str, values: Any) -> None:
            super().feed_input(name, TensorListCPU(values) if isinstance(values, np.ndarray) else values)

    return Fed


@in_forked_children
def _in_child() -> None:
    """Never end a pipeline in a forked child: neither Python's collector, nor its end, nor DALI's function of `atexit`.

    Its threads are in the parent only: its end would wait for them for ever, or abort the child. One more reference to
    it, which nothing gives back, outlives the modules' end.
    """
    for made in _built:
        type(made)._pipes.discard(weakref.ref(made))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
    _built.clear()


def files(graph: Graph, encoded: bool, number: int | str = "") -> Any:
    """Return the node of the encoded files: fed as they are, or read from the paths that are fed; see `feed_files`."""
    if encoded:
        return graph.fed(f"{ENCODED}{number}", 1, "UINT8")
    # The paths are fed as one array: a list of arrays takes the training loop's thread three times as long.
    path = graph.fed(f"{NAME}{number}", 1, "UINT8")[: graph.fed(f"{LENGTH}{number}", 0)]
    # Not mapped into memory (equally fast): reading a map of a file that is being cut short kills the process.
    return graph.fn.io.file.read(path, dont_use_mmap=True)


def feed(pipeline: Any, contents: Sequence[bytes], fed: Mapping[str, npt.NDArray[Any]], *, encoded: bool) -> None:
    """Feed some samples to a pipeline: n files or the bytes of their paths, as `encoded` says, and the other inputs."""
    feed_files(pipeline, contents, encoded=encoded)
    for name, values in fed.items():
        pipeline.feed_input(name, values)


def feed_files(pipeline: Any, contents: Sequence[bytes], *, encoded: bool, number: int | str = "") -> None:
    """Feed the files, or the bytes of their paths, to the inputs that are named with this `number`."""
    if encoded:
        pipeline.feed_input(f"{ENCODED}{number}", [np.frombuffer(each, dtype=np.uint8) for each in contents])
        return
    paths = np.array(contents)  # NumPy fills the shorter ones up with zeros
    pipeline.feed_input(f"{NAME}{number}", paths.view(np.uint8).reshape(len(contents), -1))
    pipeline.feed_input(f"{LENGTH}{number}", np.fromiter(map(len, contents), dtype=np.int32))


def _decoded(graph: Graph, data: Any, *, region: bool) -> Any:
    """Decoded as RGB, [height, width, 3]: whole, or only the region that step 0 wants."""
    # The hardware JPEG engine takes its share where there is one (hw_decoder_load is 0.65 by itself).
    decode: dict[str, Any] = {"device": "cpu", "output_type": graph.types.RGB, "adjust_orientation": False}
    if graph.device == "gpu":
        decode |= {"device": "mixed", "jpeg_fancy_upsampling": True}
    if not region:
        return graph.fn.decoders.image(data, **decode)
    decode |= {"axis_names": "HW", "normalized_anchor": False, "normalized_shape": False}
    return graph.fn.decoders.image_slice(data, graph.fed("start0", 1), graph.fed("shape0", 1), **decode)


def _scaled(program: Program, graph: Graph, image: Any) -> Any:
    # pixel * factor + offset, written as (pixel - mean) / std
    pairs = list(zip(program.factor, program.offset, strict=True))
    scaling: dict[str, Any] = {
        "dtype": graph.types.FLOAT if program.floating else graph.types.UINT8,
        "mean": [-offset / factor for factor, offset in pairs],
        "std": [1 / factor for factor, _ in pairs],
    }
    if program.mirrors:
        scaling["mirror"] = graph.fed("mirror", 0)
    return graph.fn.crop_mirror_normalize(image, output_layout="CHW", **scaling)


def explained(error: BaseException) -> str:
    """An exception in one line; of DALI's reports, the operator and its error."""
    text = str(error).strip()
    met = re.search(r"\nencountered:\s*\n+(.+)", text)
    if met is None:
        return (text.splitlines() or [type(error).__name__])[0]
    operator = re.search(r"operator `nvidia\.dali\.([\w.]+)`", text)
    return met[1].strip() if operator is None else f"{operator[1]}: {met[1].strip()}"


# ---- The user's own DALI pipeline, joined to the plan: it is given the files, the numbers and nothing to choose.

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

    def feed(self, pipeline: Any, contents: Sequence[bytes], rows: Rows, *, encoded: bool) -> None:
        feed(pipeline, contents, self.arrays(rows), encoded=encoded)


def refused(reason: str) -> BackendUnavailable:
    """The error for a pipeline of the user's that cannot be used."""
    return BackendUnavailable(f"The pipeline given as dali= cannot be used: {reason}")


def _wants(defined: Any, name: str) -> bool:
    try:
        defined.input_feed_count(name)
    except KeyError:
        return False
    return True


# ---- Several pipelines, for the parts of a ConcatDataset that have different transforms.


class Pipelines:
    """Several built pipelines that are run and read as one."""

    def __init__(self, each: list[Any]) -> None:
        self.each = each
        self._fed: deque[list[tuple[int, Ints]]] = deque()  # of each run: the pipelines' numbers, and their rows

    def note(self, groups: list[tuple[int, Ints]]) -> None:
        """Note the numbers of the pipelines that were fed, and which of a run's samples each was fed."""
        self._fed.append(groups)

    def schedule_run(self) -> None:
        """Run those that were fed last."""
        for number, _ in self._fed[-1]:
            self.each[number].schedule_run()

    def outputs(self, **options: Any) -> tuple[list[tuple[int, Ints, Any]]]:
        """Return the oldest run: of each pipeline its number, its samples and its output."""
        groups = self._fed.popleft()
        return ([(number, rows, self.each[number].outputs(**options)[0]) for number, rows in groups],)


class Parts:
    """The work of several translated chains; those of equal programs share a pipeline.

    Attributes:
        works: the work of each pipeline.
        numbers: for each chain, in the order of `FileSource.chains`, the number of its pipeline.
    """

    rest: int | None = None
    rest_kind = "pil"

    def __init__(self, programs: Sequence[Program], *, fused: bool, make: Make | None = None) -> None:
        found, self.numbers = distinct(programs)
        self.works = [Translated(program, fused=fused, make=make) for program in found]

    def build(self, *, batch_size: int, threads: int, device: int | None, encoded: bool) -> Pipelines:
        """Build all pipelines; `batch_size` is the most that a run of all together is fed."""
        options: dict[str, Any] = {"threads": threads, "device": device, "encoded": encoded}
        return Pipelines([work.build(batch_size=batch_size, **options) for work in self.works])

    def feed(self, pipeline: Pipelines, contents: Sequence[bytes], rows: Rows, *, encoded: bool) -> None:
        """Feed each pipeline its samples."""
        numbers = np.array(self.numbers, dtype=np.int64)[rows.chains]
        groups = [(number, np.flatnonzero(numbers == number)) for number in np.unique(numbers).tolist()]
        for number, some in groups:
            chosen = [contents[k] for k in some.tolist()]
            fed: dict[str, Any] = {name: column[some] for name, column in rows._asdict().items()}
            self.works[number].feed(pipeline.each[number], chosen, Rows(**fed), encoded=encoded)
        pipeline.note(groups)
