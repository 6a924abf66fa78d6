"""What the laboratory knows by name: kinds of observations, and likelihoods that suit them."""

from typing import Literal, get_args

Kind = Literal["auto", "levels", "binarized", "reals", "counts"]
CountLikelihoodName = Literal[
    "negative-binomial", "poisson", "zero-inflated-poisson", "zero-inflated-negative-binomial"
]
LikelihoodName = Literal["gaussian", "bernoulli", "mixture", "circuit", CountLikelihoodName]

OF_COUNTS: tuple[CountLikelihoodName, ...] = get_args(CountLikelihoodName)  # the default first
