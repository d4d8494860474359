"""A GGUF file: its metadata, and its tensors expanded to float32."""

from pathlib import Path

import gguf
import numpy as np

from gguf_model.weights import Refused


class File:
    """Metadata by key, tensors by name."""
    def __init__(self, path: Path):
        try:
            reader = gguf.GGUFReader(path)
        except (ValueError, IndexError, OverflowError, KeyError) as error:
            raise Refused(f"this is no whole GGUF file: {error}") from error
        self._fields = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.architecture = self.text("general.architecture")

    def find(self, key: str):
        """The value of a key, with the architecture's name for a leading dot; None if it is missing."""
        field = self._fields.get(self._whole(key))
        return None if field is None else field.contents()

    def _whole(self, key: str) -> str:
        return self.architecture + key if key.startswith(".") else key

    def _checked(self, key: str, kind, what: str):
        value = self.find(key)
        if isinstance(value, bool) or not isinstance(value, kind):
            found = "is missing" if value is None else f"is {str(value)[:80]!r}"
            raise Refused(f"{self._whole(key)} {found}; it must be {what}")
        return value

    def text(self, key: str) -> str:
        return self._checked(key, str, "a text")

    def texts(self, key: str) -> list:
        return self._checked(key, list, "a list")

    def size(self, key: str) -> int:
        value = self._checked(key, int, "a number above 0")
        if value < 1:
            raise Refused(f"{self._whole(key)} is {value}; it must be above 0")
        return value

    def real(self, key: str) -> float:
        """A float32 as the decimal number that was meant: 1e-05 and not 9.999999747378752e-06."""
        return float(str(np.float32(self._checked(key, float, "a number"))))

    def require(self, key: str, *allowed) -> None:
        """Refuses a key that is there and has another value."""
        if (value := self.find(key)) is not None and value not in allowed:
            names = ", ".join(map(repr, allowed))
            raise Refused(f"{self._whole(key)} is {value!r}, which is not supported; allowed: {names}")

    def names(self) -> set[str]:
        return set(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Outermost dimension first, as in safetensors."""
        return tuple(int(extent) for extent in reversed(self._tensors[name].shape))

    def values(self, name: str) -> np.ndarray:
        tensor = self._tensors[name]
        try:
            return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        except NotImplementedError as error:
            raise Refused(f"{name} is {tensor.tensor_type.name}, which the gguf package cannot expand") from error
