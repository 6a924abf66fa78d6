"""A nonlinear decoder with any likelihood of one parameter per output, u = centre + network(z, c) + o."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.beside import NOTHING, Beside
from silentgrad.decoders import LinearLikelihood
from silentgrad.errors import ShapeError
from silentgrad.lab.networks.decoders import require_shape
from silentgrad.lab.networks.given import Elementwise


class NonlinearLikelihood(Elementwise):
    """p(x|z) = likelihood(u(z)), one u per output; an offset is added to u, covariates stand beside z.

    Args:
        network: From latents and covariates, `(batch, latents + covariates)`, to `(batch, *event_shape)`.
        event_shape: Shape of one example.
        likelihood: From u to the distribution of x, elementwise.
        covariates: Number of covariates of each example, to be given with x.
    """

    centre: Tensor

    def __init__(
        self, network: nn.Module, event_shape: Sequence[int], likelihood: nn.Module, covariates: int = 0
    ) -> None:
        super().__init__()
        self.network, self.likelihood, self.covariates = network, likelihood, covariates
        self.event_shape = torch.Size(event_shape)
        self.register_buffer("centre", torch.zeros(self.event_shape))

    def forward(self, z: Tensor) -> td.Independent:
        return self.decode(z, NOTHING)

    def decode(self, z: Tensor, beside: Beside) -> td.Independent:
        beside.require_none(type(self).__name__, "deviation")
        given = 0
        inputs = z.flatten(1)
        if beside.covariates is not None:
            given = beside.covariates.shape[-1]
            inputs = torch.cat([inputs, beside.covariates.to(inputs)], 1)
        if given != self.covariates:
            raise ShapeError(f"the decoder was built for {self.covariates} covariates, and {given} were given")
        u = self.network(inputs)
        require_shape(u, self.event_shape)
        u = self.centre + u
        known = beside.flattened(z.shape[:1], self.event_shape)
        if known.offset is not None:
            u = (u.flatten(1) + known.offset).unflatten(1, self.event_shape)
        return td.Independent(self.likelihood(u), len(self.event_shape))

    def init_from_data(self, data: Tensor, offset: Tensor | None = None, mask: Tensor | None = None) -> None:
        """Starts where x has its mean, and the likelihood's own parameters as a linear decoder starts them.

        Args:
            data: Examples `(examples, *event_shape)`.
            offset: Known part of u, as in `LinearLikelihood.expected_log_prob`.
            mask: Which entries were observed.
        """
        constant = LinearLikelihood(1, self.event_shape, self.likelihood)
        nn.init.zeros_(constant.affine.weight)
        constant.init_from_data(data, "mean", offset=offset, mask=mask)
        self.centre.copy_(constant.affine.bias.detach().unflatten(0, self.event_shape))
