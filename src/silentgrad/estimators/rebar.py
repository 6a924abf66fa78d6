"""REBAR: RELAX with the integrand at a relaxed sample as its control variate; the derivation is there."""

from silentgrad.estimators.relax import Relax, RelaxedIntegrand


class Rebar(Relax):
    """The relaxed sample's gradient, made unbiased by the score function; its scale and temperature are learned.

    Take it where `GumbelSoftmax` works but its bias matters, at three evaluations.

    Args:
        temperature: Temperature that the relaxation starts from.
        scale: Multiple of the control variate to start from.

    References:
        Tucker, Mnih, Maddison, Lawson and Sohl-Dickstein 2017, REBAR: Low-Variance, Unbiased Gradient Estimates for
        Discrete Latent Variable Models, NeurIPS.
    """

    def __init__(self, temperature: float = 0.5, scale: float = 1.0) -> None:
        super().__init__(RelaxedIntegrand(temperature, scale))
