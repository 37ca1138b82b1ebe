"""What has no buffer of its own: tensors of torch, which need not be installed."""

import sys
from typing import Any


def as_array(value: Any, refusal: BaseException) -> Any:
    """The numpy array that shares the memory of a tensor. refusal says why value is no buffer."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.device.type != "cpu":
            raise TypeError(f"the tensor is on {value.device}: one in host memory is needed") from None
        return value.detach().numpy()
    if isinstance(refusal, BufferError):
        raise ValueError(f"the buffer cannot be used: {refusal}") from refusal
    name = type(value).__name__
    raise TypeError(
        f"a numpy array, an array.array, a memoryview or a torch tensor is needed, not {name}: all_reduce() takes lists"
    ) from None
