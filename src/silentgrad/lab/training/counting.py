"""The likelihoods of counts by their names."""

from collections.abc import Callable, Mapping, Sequence

from torch import nn

from silentgrad.lab.kinds import CountLikelihoodName, LikelihoodName
from silentgrad.likelihoods import (
    NegativeBinomial,
    Poisson,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
)

LIKELIHOODS: Mapping[CountLikelihoodName, Callable[[Sequence[int]], nn.Module]] = {
    "negative-binomial": NegativeBinomial,
    "poisson": lambda event_shape: Poisson(),
    "zero-inflated-poisson": ZeroInflatedPoisson,
    "zero-inflated-negative-binomial": ZeroInflatedNegativeBinomial,
}


def count_likelihood(name: LikelihoodName | None, event_shape: Sequence[int]) -> nn.Module | None:
    """A new likelihood of counts, with parameters of its own for each output; None if the name is not one of those."""
    for known, likelihood in LIKELIHOODS.items():
        if name == known:
            return likelihood(event_shape)
    return None
