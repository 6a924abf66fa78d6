r"""Misuses of a guide that no shape tells: its first call refuses them, or warns where they may be meant.

What a host says of its loss can be wrong, and so can the units of the loss and of x. About a nat per output is the
natural size of an untrained host's loss, more if its variance is fixed and small. So the first call refuses, with K
outputs,

- a "mean" above 5 K, and :math:`5 |x|^2` / variance if the guide's variance is fixed: it looks like a sum over the
  batch;
- any loss that per example is below min(10, K / 20), which looks like a mean over outputs (a "sum", over the batch);
- a loss below what it can be: 0 if the guide's likelihood gives probabilities, and the logarithm of a normalizing
  constant if its variance is fixed. It looks like log p in place of -log p;
- an x that a likelihood gives a probability above 1, as one of bits does to pixels in 0 to 255;
- an x that lies 2000 K nats from a Gaussian guide's mean, 63 deviations, as pixels in 0 to 255 do;
- an x that varies a hundred times more, or less, than the data that the guide started from.

The loss of a density may be negative. There is a warning, no more, if it is so in the first epoch or at the first step
and half a nat per output below the guide's.

Mistakes can pass in batches of less than about eight, with few outputs, or with a host that is already trained; those
that change the shape cannot, so one number per example is the safest loss.
"""

import math
import warnings
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from silentgrad.decoders import LinearGaussian, LinearPrecisionGaussian, StandardizedGaussian, Tractable
from silentgrad.decoders.likelihood import LinearLikelihood
from silentgrad.errors import DomainError
from silentgrad.likelihoods import LocationScale

FARTHEST = 2000.0  # nats per output
UNLIKE = 100.0  # between the deviations of x and of the data that a guide started from; pixels make it 255
UNLIKE_COLUMNS = 500.0  # between columns; those of images in 256 levels, dequantized or not, stay within about 350
ROWS = 512  # of the data, by which columns are compared
CALLS, CALLS_IN_EPOCHS = 128, 16  # after which an optimizer has made a step, whatever it adds gradients over
RIGHT_AS_IT_IS = "If it is right as it is, build the guide with check=False"


def require_tensor(name: str, value: object) -> None:
    """Refuses whatever is no tensor."""
    if not isinstance(value, Tensor):
        raise DomainError(f"{name} has to be a tensor, got {type(value).__name__}")


def require_data(data: object) -> None:
    """Refuses data to start from that are no tensor, and says how to make one of them."""
    if isinstance(data, Tensor):
        if not data.is_floating_point():
            raise DomainError(f"a guide starts from data as x is, floating point and scaled alike; got {data.dtype}")
        return
    remedy = "torch.as_tensor(data)"
    if isinstance(data, DataLoader):
        remedy = "torch.cat([x for x, *_ in loader]), or torch.cat(list(loader)) if a batch is x alone"
    elif isinstance(data, Dataset):
        remedy = "torch.stack([x for x, *_ in dataset])"
    raise DomainError(f"a guide starts from one tensor of examples, got {type(data).__name__}: pass {remedy}")


def is_location(decoder: nn.Module) -> bool:
    """Whether a linear decoder gives the location of x, so that it has x's unit."""
    return not isinstance(decoder, LinearLikelihood) or isinstance(decoder.likelihood, LocationScale)


def warn_of_unlike_columns(data: Tensor) -> None:
    """Warns of columns in units so different that one variance, with which a Gaussian starts, suits few of them.

    The middle four fifths of a column's values tell its unit: pixels that are black but for a few images have none.
    """
    every = max(1, len(data) // ROWS)
    rows = data[::every].flatten(1)
    tenth = len(rows) // 10
    widths = rows.kthvalue(len(rows) - tenth, dim=0).values - rows.kthvalue(1 + tenth, dim=0).values
    widths = widths[widths > 0]
    if widths.numel() == 0 or widths.max() <= UNLIKE_COLUMNS * widths.min():
        return
    warnings.warn(
        f"the columns of the data differ in scale by a factor of {float(widths.max() / widths.min()):.0e}, and the "
        "guide starts with one variance for all: precisions of the others can diverge. Divide every column by its "
        "standard deviation, here and for the guide's x",
        stacklevel=3,  # the caller of start_from
    )


class FirstCall(NamedTuple):
    """What a guide's first call is judged by.

    Args:
        decoder: The guide's decoder.
        reduction: "none", "mean" or "sum": what the host's loss is said to be.
        x: Examples.
        mask: Which of their entries were observed, if not all.
        nll: The host's loss.
        silent: The guide's, one number per example.
        begins: Whether training begins with it.
        spread: Standard deviation of the data that the guide started from, if it did.
    """

    decoder: Tractable
    reduction: str
    x: Tensor
    mask: Tensor | None
    nll: Tensor
    silent: Tensor
    begins: bool
    spread: float | None

    def require_plausible(self) -> None:
        """Refuses numbers that look like those of a misuse; see the module."""
        self._require_units()
        self._require_scale()
        self._require_reduction()
        self._require_sign()

    @property
    def batch(self) -> int:
        """Number of examples."""
        return self.silent.numel()

    @property
    def outputs(self) -> float:
        """Number of observed outputs of an example, on average."""
        if self.mask is None:
            return self.x.numel() / self.batch
        return float(self.mask.sum()) / self.batch

    @property
    def observed(self) -> Tensor:
        """x, zero where it was not observed."""
        if self.mask is None:
            return self.x
        return torch.where(self.mask, self.x, 0)

    def per_example(self, loss: Tensor) -> float:
        """A host's loss per example."""
        if self.reduction == "sum":
            return float(loss) / self.batch
        return float(loss.mean())

    def _require_units(self) -> None:
        if self.spread is None or self.mask is not None:
            return
        spread = float(self.x.std(correction=0))
        if spread == 0 or 1 / UNLIKE < spread / self.spread < UNLIKE:
            return
        raise DomainError(
            f"x has a standard deviation of {spread:.3g}, the data that the guide started from {self.spread:.3g}: "
            f"start it from data that are scaled as x is. {RIGHT_AS_IT_IS}"
        )

    def _require_scale(self) -> None:
        if self._least() == 0 and float(self.silent.min()) < -self.outputs / 100:
            raise DomainError(
                "x has a probability above 1 under the guide's likelihood, which does not take such numbers: scale x, "
                "pixels from 0 to 255 to 0 to 1"
            )
        if not isinstance(self.decoder, LinearGaussian | StandardizedGaussian | LinearPrecisionGaussian):
            return
        each = float(self.silent.mean()) / max(1.0, self.outputs)
        if each <= FARTHEST:
            return
        raise DomainError(
            f"x lies {math.sqrt(2 * each):.0f} deviations from the linear decoder's mean, {each:.3g} nats per output. "
            "Scale it, pixels from 0 to 255 to 0 to 1 and columns to a standard deviation of 1, or start the guide "
            f"from data that are scaled as x is, guide.start_from(data). {RIGHT_AS_IT_IS}"
        )

    def _require_reduction(self) -> None:
        size, outputs = self.per_example(self.nll.abs()), self.outputs
        averaged = "outputs"
        if self.reduction == "sum":
            averaged = "batch or the outputs"
        largest = 5.0 * outputs
        if isinstance(self.decoder, LinearGaussian):
            largest += float(5 * (self.observed.square() / self.decoder.variance).sum() / self.batch)
        if self.reduction == "mean" and size > largest:
            suspicion = "a sum over the batch: then say reduction='sum'"
        elif size < min(10, outputs / 20):
            suspicion = f"a mean over the {averaged}: a log-likelihood is a sum over outputs"
        else:
            return
        raise DomainError(
            f"nll is {size:.3g} per example of {outputs:g} outputs, where about a nat each is usual. It looks like "
            f"{suspicion}. {RIGHT_AS_IT_IS}"
        )

    def _require_sign(self) -> None:
        host, guide = self.per_example(self.nll), float(self.silent.mean())
        if host >= 0:
            return
        if host < self._least():
            raise DomainError(
                f"nll is {host:.3g} per example of {self.outputs:g} outputs, lower than a negative log-likelihood of "
                f"the guide's kind can be. It looks like log p(x|z): pass -log p(x|z). {RIGHT_AS_IT_IS}"
            )
        if self.begins and host < guide - self.outputs / 2:
            warnings.warn(
                f"nll is {host:.3g} per example of {self.outputs:g} outputs before anything was learned, and the "
                f"guide's own {guide:.3g}. Is it log p(x|z) in place of -log p(x|z)? A density's may be negative: "
                "then build the guide with check=False",
                stacklevel=7,  # the caller of the guide
            )

    def _least(self) -> float:
        """What a loss of the guide's likelihood cannot be below, if there is such a number."""
        if isinstance(self.decoder, LinearGaussian):
            volume = float((2 * math.pi * self.decoder.variance).log().mean()) / 2
            return min(0.0, self.outputs * volume)
        if isinstance(self.decoder, LinearLikelihood) and _gives_probabilities(self.decoder):
            return 0.0
        return -math.inf


@torch.no_grad()
def _gives_probabilities(decoder: LinearLikelihood) -> bool:
    """Whether x is discrete under the decoder's likelihood, so that no log-probability is above 0."""
    at_zero = decoder.likelihood(decoder.affine.bias.new_zeros(decoder.event_shape))
    try:
        return at_zero.support is not None and at_zero.support.is_discrete
    except NotImplementedError:  # a distribution that does not say what x it takes
        return False


class Watch:
    """Looks once, after a while of training, whether an optimizer moves a module's parameters.

    A step writes into a parameter, which torch counts, at a learning rate of zero too; a fused one does not count, but
    changes the value. And where no optimizer clears a gradient it is added to time after time, which torch counts too.
    """

    def __init__(self) -> None:
        self.over = False
        self.calls = 0
        self.epoch: int | None = None
        self.writes: list[int] = []
        self.value = torch.empty(0)

    def call(self, module: nn.Module, epoch: int | None) -> None:
        """Counts a call of the module in training, and warns once if nothing has moved its parameters.

        Args:
            module: The module; one whose parameters do not learn is left alone.
            epoch: The epoch, if epochs are what is counted.
        """
        learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if self.over or not learning or not torch.is_grad_enabled():
            return
        smallest = min(learning, key=Tensor.numel)
        if self.calls == 0:
            self.epoch, self.writes = epoch, [parameter._version for parameter in learning]
            self.value = smallest.detach().clone()
        self.calls += 1
        new_epoch = epoch != self.epoch and self.calls > CALLS_IN_EPOCHS
        if not new_epoch and self.calls <= CALLS:
            return
        self.over = True
        untouched = self.writes == [parameter._version for parameter in learning]
        if untouched and self._only_added_to(smallest) and torch.equal(smallest, self.value):
            warnings.warn(
                f"after {self.calls - 1} calls no optimizer has moved the guide's parameters: give it those of "
                "guide.parameters() beside the host's. A guide that is not to learn is guide.requires_grad_(False)",
                stacklevel=6,  # the caller of the guide
            )
        self.value = torch.empty(0)

    def _only_added_to(self, parameter: nn.Parameter) -> bool:
        """Whether a gradient was added to in about every call, and never cleared."""
        gradient = parameter.grad
        return gradient is not None and 4 * gradient._version >= self.calls
