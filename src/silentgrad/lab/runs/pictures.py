"""What a run of images leaves to be looked at, and how `pictures.safetensors` names it."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class RunPictures:
    """Images `(n, channels, height, width)` that a trained model was given, and that it made.

    Args:
        originals: Examples of the test.
        means: The means of their reconstructions.
        stds: The standard deviations of their reconstructions; None where these show nothing.
        samples: Images decoded from draws of the prior.
    """

    originals: Tensor
    means: Tensor
    stds: Tensor | None
    samples: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """The content of `pictures.safetensors`."""
        tensors = {"originals": self.originals, "means": self.means, "samples": self.samples}
        if self.stds is not None:
            tensors["stds"] = self.stds
        return tensors

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "RunPictures":
        """The pictures that the content of a `pictures.safetensors` holds.

        Raises:
            ValueError: Some are missing, or are no images.
        """
        for name, images in tensors.items():
            if images.dim() != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
                raise ValueError(f"{name} has shape {tuple(images.shape)}, expected (n, 1 or 3, height, width)")
        for name in ("originals", "means", "samples"):
            if name not in tensors:
                raise ValueError(f"it has no {name}")
        return cls(tensors["originals"], tensors["means"], tensors.get("stds"), tensors["samples"])
