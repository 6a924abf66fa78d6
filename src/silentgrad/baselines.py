r"""Models without latents that a density of levels has to beat, in bits per dimension.

A figure means little by itself. These need no training loop, and each knows something else of the data:

============  ==================================================================================================
name          model
============  ==================================================================================================
gaussian      every output a Gaussian on dequantized levels, the noise integrated out
histogram     every output the smoothed frequencies of its levels in the training data
compressor    the size of the test data after bz2
linear        every output predicted from the ones before it by least squares; a histogram of the errors
============  ==================================================================================================

A Gaussian on dequantized levels cannot do better than :func:`dequantization_floor`, whatever it knows: within a level
the noise is uniform, and the best Gaussian for it pays :math:`\tfrac12 \log_2(2 \pi e / 12)` bits.
"""

import bz2
import math

import torch
from torch import Tensor

from silentgrad.errors import DomainError, ShapeError

NEIGHBORS = [(0, -1), (0, -2), (-1, -2), (-1, -1), (-1, 0), (-1, 1), (-1, 2), (-2, -1), (-2, 0), (-2, 1)]  # down, right
ROWS = 2**10  # images that are looked at together
PIXELS = 2**22  # of the training data that the predictor is fitted to: it has few weights


def bits_per_dim(log_likelihood: Tensor | float, outputs: int, levels: int | None = None) -> Tensor | float:
    """Return bits per dimension, of which fewer are better, from nats per example.

    Args:
        log_likelihood: log p(x) or a bound of it, in nats per example: of levels, or of dequantized levels.
        outputs: Number of outputs of an example, colors included.
        levels: Number of levels, where the likelihood is the density of levels dequantized to the unit interval; absent
            where it is their probability.

    Example:
        >>> round(bits_per_dim(-784 * math.log(2), 784), 6)
        1.0
    """
    return -log_likelihood / (outputs * math.log(2)) + math.log2(levels or 1)


def dequantization_floor() -> float:
    """Return the bits per dimension below which no Gaussian on dequantized levels comes."""
    return 0.5 * math.log2(2 * math.pi * math.e / 12)


def baselines(train: Tensor, test: Tensor, levels: int = 256) -> dict[str, float]:
    """Return the bits per dimension of models without latents on test data.

    Args:
        train: Whole levels 0, 1, ..., levels - 1 that the models are fitted to, `(examples, *event_shape)`.
        test: Whole levels that they are measured on.
        levels: Number of levels.

    Returns:
        Figures by name; "linear" for images only, `(examples, height, width)` or `(examples, colors, height, width)`.

    Example:
        >>> data = torch.randint(4, (500, 3, 3), generator=torch.Generator().manual_seed(0))
        >>> found = baselines(data[:400], data[400:], levels=4)
        >>> f"{found['histogram']:.2f} {sorted(found)}"
        "2.01 ['compressor', 'gaussian', 'histogram', 'linear']"
    """
    for name, data in {"train": train, "test": test}.items():
        _require_levels(name, data, levels)
    if train.shape[1:] != test.shape[1:]:
        raise ShapeError(f"training examples have shape {tuple(train.shape[1:])}, test ones {tuple(test.shape[1:])}")
    found = {
        "gaussian": _gaussian(train.flatten(1), test.flatten(1), levels),
        "histogram": _histogram(train.flatten(1), test.flatten(1), levels),
        "compressor": _compressor(test),
    }
    if train.dim() in (3, 4):
        found["linear"] = _linear(train, test, levels)
    return found


def _require_levels(name: str, data: Tensor, levels: int) -> None:
    if data.dim() < 2 or len(data) == 0:
        raise ShapeError(f"{name} has to be examples (examples, *event_shape), got shape {tuple(data.shape)}")
    whole = not data.is_floating_point() or bool((data == data.round()).all())
    if not whole or data.min() < 0 or int(data.max()) >= levels:  # as a number: bytes cannot be compared with 256
        raise DomainError(f"{name} has to be whole levels from 0 to {levels - 1}: multiply values between 0 and 1")


def _gaussian(train: Tensor, test: Tensor, levels: int) -> float:
    mean = train.double().mean(0)
    variance = (train.double() - mean).square().mean(0) + 1 / 12  # of dequantization, integrated out
    squares = (test.double() - mean).square() + 1 / 12
    nats = (torch.log(2 * math.pi * variance) + squares / variance) / 2
    return float(nats.mean()) / math.log(2)


def _histogram(train: Tensor, test: Tensor, levels: int) -> float:
    """Return the figure of smoothed frequencies, (count + 1) / (examples + levels), of each output."""
    outputs = train.shape[1]
    counts = torch.ones(outputs, levels, dtype=torch.float64, device=train.device)
    for rows in train.split(ROWS):
        counts.scatter_add_(1, rows.long().T, counts.new_ones(()).expand(outputs, len(rows)))
    bits = counts.sum(1, keepdim=True).log2() - counts.log2()
    return float(torch.stack([bits.gather(1, rows.long().T).sum() for rows in test.split(ROWS)]).sum() / test.numel())


def _compressor(test: Tensor) -> float:
    content = test.to(torch.uint8).cpu().contiguous().numpy().tobytes()
    return 8 * len(bz2.compress(content, 9)) / test.numel()


def _linear(train: Tensor, test: Tensor, levels: int) -> float:
    """Return the figure of linear prediction from neighbors above and to the left, and from earlier colors."""
    if train.dim() == 3:
        train, test = train.unsqueeze(1), test.unsqueeze(1)
    total = torch.zeros((), dtype=torch.float64, device=train.device)
    train = train[:: 1 + train[:, 0].numel() // PIXELS]
    for color in range(train.shape[1]):
        weights = _fitted(train, color)
        counts = torch.ones(2 * levels - 1, dtype=torch.float64, device=train.device)
        for rows in train.split(ROWS):
            errors = rows[:, color].long() - _predicted(rows, color, weights, levels)
            counts += torch.bincount(errors.flatten() + levels - 1, minlength=2 * levels - 1)
        below = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        for rows in test.split(ROWS):  # each error's bits are among those that the prediction leaves possible
            first = levels - 1 - _predicted(rows, color, weights, levels)  # of the error at level 0
            possible = below[first + levels] - below[first]
            total += (possible.log2() - counts[first + rows[:, color].long()].log2()).sum()
    return float(total) / test.numel()


def _fitted(train: Tensor, color: int) -> Tensor:
    """Return the weights of least squares, with a trace of ridge for pixels that never change."""
    known = len(NEIGHBORS) * train.shape[1] + color + 1
    gram, moments = (torch.zeros(known, n, dtype=torch.float64, device=train.device) for n in (known, 1))
    for rows in train.split(ROWS):
        features = _features(rows, color).double()
        gram += features.T @ features
        moments += features.T @ rows[:, color].double().reshape(-1, 1)
    gram.diagonal().add_(1e-6 * gram.diagonal().mean())
    return torch.linalg.solve(gram, moments).squeeze(1)


def _predicted(rows: Tensor, color: int, weights: Tensor, levels: int) -> Tensor:
    values = _features(rows, color).double() @ weights
    return values.round().clamp(0, levels - 1).reshape(rows[:, color].shape).long()


def _features(rows: Tensor, color: int) -> Tensor:
    """Return what is known before a color of each pixel, `(pixels, features)`: zeros beyond the border, and a one."""
    height, width = rows.shape[-2:]
    padded, one = torch.nn.functional.pad(rows.float(), (2, 2, 2, 0)), torch.ones_like(rows[:, :1], dtype=torch.float32)
    parts = [padded[..., 2 + y : 2 + y + height, 2 + x : 2 + x + width] for y, x in NEIGHBORS]
    return torch.cat([*parts, rows[:, :color].float(), one], 1).movedim(1, -1).flatten(0, -2)
