"""What the laboratory knows by name: kinds of observations, and likelihoods that suit them."""

from typing import Literal

Kind = Literal["auto", "levels", "binarized", "reals", "counts"]
LikelihoodName = Literal["gaussian", "bernoulli"]
