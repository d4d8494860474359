"""Writes weights as safetensors, tensor by tensor, so that only one is in memory at a time."""

import json
import math
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

NAMES = {"bf16": "BF16", "f16": "F16", "f32": "F32"}
BYTES = {"bf16": 2, "f16": 2, "f32": 4}


class Refused(Exception):
    """The file cannot become a model; the message says why."""


@dataclass(frozen=True)
class Tensor:
    """A tensor to write, whose values are only computed when it is written."""
    name: str
    shape: tuple[int, ...]
    values: Callable[[], np.ndarray]  # float32


def rounded(tensor: Tensor, dtype: str) -> bytes:
    """The tensor's bytes, rounded to the nearest value of `dtype`, ties to even."""
    values = np.ascontiguousarray(tensor.values(), dtype=np.float32)
    if values.shape != tensor.shape:
        raise Refused(f"{tensor.name} has the shape {values.shape}; it must be {tensor.shape}")
    if dtype == "f16":
        with np.errstate(over="ignore"):  # an infinity is refused below
            values = values.astype(np.float16)
    if not np.isfinite(values).all():
        raise Refused(f"{tensor.name} has values that are not finite in {dtype}")
    if dtype == "bf16":
        bits = values.view(np.uint32)
        values = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return values.tobytes()


def write(path: Path, tensors: Iterable[Tensor], dtype: str) -> None:
    """Writes a safetensors file."""
    tensors = list(tensors)
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for tensor in tensors:
        begin, end = end, end + math.prod(tensor.shape) * BYTES[dtype]
        header[tensor.name] = {"dtype": NAMES[dtype], "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            file.write(rounded(tensor, dtype))
