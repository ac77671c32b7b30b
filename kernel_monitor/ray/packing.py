"""A batch as bytes and buffers: tensors and arrays travel as they lie in memory and arrive as writable ones."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt
import torch

Bytes = npt.NDArray[np.uint8]


def pack(value: Any) -> tuple[bytes, list[Bytes]]:
    """Return a value without its tensors and arrays, and those as uint8[bytes] each."""
    sink = io.BytesIO()
    packer = _Packer(sink)
    packer.dump(value)
    return sink.getvalue(), packer.buffers


def unpack(header: bytes, buffers: Sequence[Bytes]) -> Any:
    """The value again; its tensors and arrays use the memory of the buffers."""
    return _Unpacker(io.BytesIO(header), buffers).load()


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    """By value also what was defined in a notebook: the class comes back as the kernel's own one."""

    def __init__(self, sink: io.BytesIO) -> None:
        super().__init__(sink, protocol=5)
        self.buffers: list[Bytes] = []
        self._known: dict[int, tuple[Any, Any]] = {}  # by id, with the object, which is thereby kept

    def persistent_id(self, value: Any) -> Any:
        if type(value) is np.ndarray:
            if value.dtype.hasobject:
                return None
        elif type(value) is not torch.Tensor or not _is_plain(value):
            return None
        if id(value) not in self._known:
            layout, buffer = _tensor(value) if isinstance(value, torch.Tensor) else _array(value)
            self._known[id(value)] = value, (len(self.buffers), *layout)
            self.buffers.append(buffer)
        return self._known[id(value)][1]


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is nothing but numbers in this process's memory."""
    plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    return plain and not tensor.is_conj() and not tensor.is_neg() and tensor.is_leaf and not tensor.__dict__


def _tensor(tensor: torch.Tensor) -> tuple[tuple[Any, ...], Bytes]:
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    straight = tensor.detach().permute(order)
    if not straight.is_contiguous():  # what overlaps or has gaps
        order, straight = list(range(tensor.dim())), tensor.detach().contiguous()
    layout = (tensor.dtype, tuple(straight.shape), tuple(order), tensor.requires_grad)
    flat = straight.reshape(-1)
    return layout, flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)


def _array(array: npt.NDArray[Any]) -> tuple[tuple[Any, ...], Bytes]:
    turned = array.flags.f_contiguous and not array.flags.c_contiguous
    straight = np.ascontiguousarray(array.T if turned else array)
    return (array.dtype, array.shape, turned), straight.reshape(-1).view(np.uint8)


class _Unpacker(pickle.Unpickler):
    def __init__(self, source: io.BytesIO, buffers: Sequence[Bytes]) -> None:
        super().__init__(source)
        self._buffers = buffers
        self._made: dict[int, Any] = {}

    def persistent_load(self, pid: Any) -> Any:
        number, kind, *layout = pid
        if number not in self._made:
            make = _made_tensor if isinstance(kind, torch.dtype) else _made_array
            self._made[number] = make(self._buffers[number], kind, *layout)
        return self._made[number]


def _made_tensor(
    buffer: Bytes, dtype: torch.dtype, shape: tuple[int, ...], order: tuple[int, ...], requires_grad: bool
) -> torch.Tensor:
    flat = torch.from_numpy(buffer).view(dtype) if buffer.size else torch.empty(0, dtype=dtype)
    straight = flat.reshape(shape)
    turned = straight.permute(sorted(range(len(order)), key=order.__getitem__))
    return turned.requires_grad_(requires_grad)


def _made_array(buffer: Bytes, dtype: np.dtype[Any], shape: tuple[int, ...], turned: bool) -> npt.NDArray[Any]:
    straight = buffer.view(dtype).reshape(shape[::-1] if turned else shape)
    return straight.T if turned else straight
