r"""Mistakes in using a guide that shape checks cannot catch: errors where they are certain, else warnings.

With K outputs, the first call refuses

- a loss below what it can be: 0 if the guide's likelihood gives probabilities, and the logarithm of a normalizing
  constant if its variance is fixed. It looks like log p in place of -log p;
- an x that a likelihood gives a probability above 1, as one of bits does to pixels in 0 to 255;
- an x that lies 2000 K nats from a Gaussian guide's mean, 63 deviations, as pixels in 0 to 255 do;
- an x that varies a hundred times more, or less, than the data that the guide started from.

It warns of what may be meant:

- a guide that starts at random;
- a "mean" above 5 K, and :math:`5 |x|^2` / variance if the guide's variance is fixed. It looks like a sum over the
  batch, but a host of small variance has such a loss too;
- a loss that per example is below min(10, K / 20), or as a "sum" below K / 20. It looks like a mean over outputs, or
  over the batch, but so does a density of about 1;
- a loss that is negative in the first epoch or at the first step, and half a nat per output below the guide's;
- a Gaussian guide for an x of zeros and ones whose loss is not negative, as that of a cross-entropy.

One call cannot tell a sum over the batch from a mean, but batches of different sizes can: a sum grows with the batch.
Where the size changes by a factor of two and back, as at the end of an epoch, and the loss follows the other reduction
both times, the guide refuses to go on. One number per example is the safest loss: its shape says what it is.
"""

import functools
import math
import warnings

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from silentgrad.decoders import LinearDecoder, LinearGaussian, LinearPrecisionGaussian, StandardizedGaussian, Tractable
from silentgrad.decoders.likelihood import LinearLikelihood
from silentgrad.errors import DomainError
from silentgrad.likelihoods import LocationScale

FARTHEST = 2000.0  # nats per output
UNLIKE = 100.0  # between the deviations of x and of the data that a guide started from; pixels make it 255
UNLIKE_COLUMNS = 500.0  # between columns; those of images in 256 levels, dequantized or not, stay within about 350
ROWS = 512  # of the data, by which columns are compared
NEARLY_ALL = 0.95  # of x that is 0 or 1; of the pixels of MNIST, which is no data of bits, 0.82 are
FEWEST = 8  # examples by which a batch tells how a loss is reduced
CALLS, CALLS_IN_EPOCHS = 128, 16  # after which an optimizer has made a step, whatever it adds gradients over
RIGHT_AS_IT_IS = "If it is right as it is, build the guide with check=False"
GAUSSIANS = (LinearGaussian, StandardizedGaussian, LinearPrecisionGaussian)


def require_tensor(name: str, value: object) -> None:
    """Raise unless a value is a tensor."""
    if not isinstance(value, Tensor):
        raise DomainError(f"{name} has to be a tensor, got {type(value).__name__}")


def require_data(data: object) -> None:
    """Raise for data to start from that are no tensor, and say how to make one of them."""
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
    """Return whether a linear decoder gives the location of x, so that it has x's unit."""
    return not isinstance(decoder, LinearLikelihood) or isinstance(decoder.likelihood, LocationScale)


def can_start(decoder: LinearDecoder) -> bool:
    """Return whether `init_from_data` has a start for a linear decoder: a stranger's likelihood may have none."""
    likelihood = getattr(decoder, "likelihood", None)
    return likelihood is None or hasattr(likelihood, "u_at_mean") or hasattr(likelihood, "rough_u")


def warn_of_start(data: Tensor, latent_dim: int, has_unit: bool) -> None:
    """Warn of data from which a guide does not start well.

    They are too few, if their principal components, one less than examples, do not start `latent_dim` latents. Or their
    columns have units so different that one variance, with which a Gaussian starts, suits few of them. The middle four
    fifths of a column's values tell its unit: pixels that are black but for a few images have none.
    """
    doubt, rows = "", data[:: max(1, len(data) // ROWS)].flatten(1)
    if len(data) <= latent_dim:
        doubt = (
            f"{len(data)} examples have at most {len(data) - 1} principal components, and the guide has {latent_dim} "
            "latents: the others start without weights. Start it from more training examples"
        )
    elif has_unit:
        tenth = len(rows) // 10
        widths = rows.kthvalue(len(rows) - tenth, dim=0).values - rows.kthvalue(1 + tenth, dim=0).values
        widths = widths[widths > 0]
        if widths.numel() > 0 and widths.max() > UNLIKE_COLUMNS * widths.min():
            doubt = (
                f"the columns of the data differ in scale by a factor of {float(widths.max() / widths.min()):.0e}, and "
                "the guide starts with one variance for all: precisions of the others can diverge. Divide every column "
                "by its standard deviation, here and for the guide's x"
            )
    if doubt:
        warnings.warn(doubt, stacklevel=3)  # the caller of init_from_data


class FirstCall:
    """Figures by which a guide's first call is judged, per example.

    Args:
        decoder: The guide's decoder.
        reduction: "none", "mean" or "sum": what the host's loss is said to be.
        x: Examples.
        mask: Which of their entries were observed, if not all.
        nll: The host's loss.
        silent: The guide's, one number per example.
    """

    def __init__(
        self, decoder: Tractable, reduction: str, x: Tensor, mask: Tensor | None, nll: Tensor, silent: Tensor
    ) -> None:
        self.decoder, self.reduction, self.nll, self.silent = decoder, reduction, nll, silent
        self.masked = mask is not None
        self.observed = x if mask is None else torch.where(mask, x, 0)
        self.x = x if mask is None else x[mask]
        self.outputs = self.x.numel() / silent.numel()
        over = silent.numel() if reduction == "sum" else 1
        self.host, self.size = float(nll.mean()) / over, float(nll.abs().mean()) / over

    def require_plausible(self, begins: bool, spread: float | None, at_random: bool) -> None:
        """Raise for numbers that only a mistake gives, and warn of those that may be meant; see the module.

        Args:
            begins: Whether training begins with the call.
            spread: Standard deviation of the data that the guide started from, if it did.
            at_random: Whether the guide's decoder is as it was drawn.
        """
        if spread is not None and not self.masked:
            self._require_units(spread)
        self._require_scale()
        if self.host < self._least:
            raise DomainError(
                f"nll is {self.host:.3g} per example of {self.outputs:g} outputs, lower than a negative log-likelihood "
                f"of the guide's kind can be. It looks like log p(x|z): pass -log p(x|z). {RIGHT_AS_IT_IS}"
            )
        start = ""
        if at_random:
            start = (
                "the guide starts at random, and its start is what helps: call guide.init_from_data(data) with some "
                "training examples before the first step. If a random start is meant, build the guide with check=False"
            )
        for doubt in (start, self._of_reduction(), self._of_sign(begins), self._of_bits()):
            if doubt:
                warnings.warn(doubt, stacklevel=6)  # the caller of the guide

    def _require_units(self, started: float) -> None:
        spread = float(self.x.std(correction=0))
        if spread != 0 and not 1 / UNLIKE < spread / started < UNLIKE:
            raise DomainError(
                f"x has a standard deviation of {spread:.3g}, the data that the guide started from {started:.3g}: "
                f"start it from data that are scaled as x is. {RIGHT_AS_IT_IS}"
            )

    def _require_scale(self) -> None:
        if self._least == 0 and float(self.silent.min()) < -self.outputs / 100:
            raise DomainError(
                "x has a probability above 1 under the guide's likelihood, which does not take such numbers: scale x, "
                "pixels from 0 to 255 to 0 to 1"
            )
        each = float(self.silent.mean()) / max(1.0, self.outputs)
        if isinstance(self.decoder, GAUSSIANS) and each > FARTHEST:
            raise DomainError(
                f"x lies {math.sqrt(2 * each):.0f} deviations from the linear decoder's mean, {each:.3g} nats per "
                "output. Scale it, pixels from 0 to 255 to 0 to 1 and columns to a standard deviation of 1, or start "
                f"the guide from data that are scaled as x is, guide.init_from_data(data). {RIGHT_AS_IT_IS}"
            )

    def _of_reduction(self) -> str:
        largest, usual = 5.0 * self.outputs, self.outputs
        if isinstance(self.decoder, LinearGaussian):
            largest += float(5 * (self.observed.square() / self.decoder.variance).sum() / self.silent.numel())
        if self._least == 0:
            usual = min(usual, float(self.silent.mean()))  # rare counts and bits take less
        if self.reduction == "mean" and self.size > largest:
            doubt = "a sum over the batch (then say reduction='sum'), or that of a host of small variance"
        elif self.size < (usual / 20 if self.reduction == "sum" else min(10, usual / 20)):
            averaged = "batch or the outputs" if self.reduction == "sum" else "outputs"
            doubt = (
                f"a mean over the {averaged} (a log-likelihood is a sum over outputs: multiply a mean over outputs by "
                f"{self.outputs:g}), a density of about 1, or that of a host that is already trained"
            )
        else:
            return ""
        return (
            f"nll is {self.size:.3g} per example of {self.outputs:g} outputs; about one nat per output is usual. It "
            f"may be {doubt}. {RIGHT_AS_IT_IS}"
        )

    def _of_sign(self, begins: bool) -> str:
        guide = float(self.silent.mean())
        if not begins or self.host >= min(0, guide - self.outputs / 2):
            return ""
        return (
            f"nll is {self.host:.3g} per example of {self.outputs:g} outputs before anything was learned, and the "
            f"guide's own {guide:.3g}. Is it log p(x|z) in place of -log p(x|z)? A density's may be negative: then "
            "build the guide with check=False"
        )

    def _of_bits(self) -> str:
        x = self.x
        if not isinstance(self.decoder, GAUSSIANS) or x.numel() == 0 or self.nll.min() < 0:
            return ""
        bits = float(((x == 0) | (x == 1)).float().mean())
        if bits < NEARLY_ALL or x.min() != 0 or x.max() != 1:
            return ""
        return (
            f"x is 0 or 1 in {bits:.0%} of its entries and nll is not negative, as that of a cross-entropy, but the "
            "guide is Gaussian. Give it the host's likelihood, likelihood=silentgrad.likelihoods.Bernoulli(). If the "
            "host is Gaussian too, build the guide with check=False"
        )

    @functools.cached_property
    def _least(self) -> float:
        """The number that a loss of the guide's likelihood cannot be below, if there is one."""
        if isinstance(self.decoder, LinearGaussian):
            return min(0.0, self.outputs * float((2 * math.pi * self.decoder.variance).log().mean()) / 2)
        if isinstance(self.decoder, LinearLikelihood) and _gives_probabilities(self.decoder):
            return 0.0
        return -math.inf


@torch.no_grad()
def _gives_probabilities(decoder: LinearLikelihood) -> bool:
    """Return whether x is discrete under the decoder's likelihood, so that no log-probability is above 0."""
    at_zero = decoder.likelihood(decoder.affine.bias.new_zeros(decoder.event_shape))
    try:
        return at_zero.support is not None and at_zero.support.is_discrete
    except NotImplementedError:  # a distribution that does not say what x it takes
        return False


class Reductions:
    """Comparison of how a host says that its loss is reduced with how the loss changes with the size of the batch.

    Nothing is read back from a device unless the size changes.
    """

    def __init__(self) -> None:
        self.over = False
        self.contrary = 0  # changes of the batch's size, one after the other, that the loss followed in the other way
        self.batch, self.loss = 0, torch.empty(0)

    def call(self, said: str, batch: int, nll: Tensor) -> None:
        """Look at a call's loss, said to be a "mean" or a "sum" over the batch, beside that of the call before.

        Raises:
            DomainError: The size has changed and changed back, and the loss is reduced in the other way.
        """
        if self.over or said == "none":
            return
        size, loss, self.batch, self.loss = self.batch, self.loss, batch, nll.detach()
        if min(batch, size) < FEWEST or max(batch, size) < 2 * min(batch, size):
            return
        ratio = float(nll / loss)
        growth = math.log(ratio) / math.log(batch / size) if ratio > 0 else -math.inf  # 0 of a mean, 1 of a sum
        summed = said == "sum"
        self.over = abs(growth - summed) <= 0.25
        self.contrary = (self.contrary + 1) * (abs(growth - (not summed)) <= 0.25)
        if self.contrary == 2:
            truth = "mean" if summed else "sum"
            raise DomainError(
                f"with {size} and then {batch} examples nll went from {float(loss):.3g} to {float(nll):.3g}, and "
                f"likewise the time before: it is a {truth} over the batch, not a {said}. Say reduction={truth!r}. "
                f"{RIGHT_AS_IT_IS}"
            )


class Watch:
    """Look, once after a while of training, at whether an optimizer moves a module's parameters.

    A step changes a parameter's value, unless its learning rate is zero; and whoever takes steps clears gradients.
    Where nobody does, the same gradient is added to time after time.
    """

    def __init__(self) -> None:
        self.over = False
        self.calls = 0
        self.epoch: int | None = None
        self.value: Tensor | None = None
        self.gradient: Tensor | None = None

    def call(self, module: nn.Module, epoch: int | None) -> None:
        """Count a call of the module in training, in an epoch if epochs are counted; warn if nothing has moved it."""
        learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if self.over or not learning or not torch.is_grad_enabled():
            return
        smallest = min(learning, key=Tensor.numel)
        if self.value is None:
            self.epoch, self.value = epoch, smallest.detach().clone()
        self.calls += 1
        kept, self.gradient = smallest.grad is self.gradient, smallest.grad
        if self.calls <= (CALLS if epoch == self.epoch else CALLS_IN_EPOCHS):
            return
        self.over = True
        if kept and self.gradient is not None and self.gradient.any() and torch.equal(smallest, self.value):
            warnings.warn(
                f"after {self.calls - 1} calls no optimizer has moved the guide's parameters: give it those of "
                "guide.parameters() beside the host's. A guide that is not to learn is guide.requires_grad_(False)",
                stacklevel=6,  # the caller of the guide
            )
        self.value = self.gradient = None
