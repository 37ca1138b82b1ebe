"""What has no buffer of its own: tensors of torch, which need not be installed."""

import sys
from typing import Any


def class_of(value: Any, refusal: BaseException) -> type:
    """The class of a tensor. For anything else an exception; refusal says why it is no buffer."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return type(value)
    if isinstance(refusal, BufferError):
        raise ValueError(f"the buffer cannot be used: {refusal}") from refusal
    name = type(value).__name__
    raise TypeError(
        f"a numpy array, an array.array, a memoryview or a torch tensor is needed, not {name}: "
        "all_reduce() takes lists"
    ) from None
