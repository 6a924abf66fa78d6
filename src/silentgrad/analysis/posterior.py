r"""What the latents of some examples tell: which are used, how much of x they hold, and how good they are.

**Mutual information.** With the aggregate posterior :math:`q(z) = E_x q(z|x)` of moments m and C, and a prior p(z),

.. math:: E_x D(q(z|x) \,\|\, p) = I(x; z) + D(q(z) \,\|\, p), \qquad I(x; z) = H[q(z)] - E_x H[q(z|x)].

No q(z) has more entropy than :math:`N(m, C)`, so with its entropy this is an upper bound of I, exact where q(z) is
Gaussian, and what it leaves of the KL divergence a lower bound of the mismatch. The mixture of the N encoded examples
in place of q(z) gives a lower bound of I, of at most log N.
"""

import math

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.analysis.batch import MeasurableModel, prior_of
from silentgrad.analysis.variance import seeded
from silentgrad.errors import IntractableError
from silentgrad.estimators import STL, Averaged, Reparameterized
from silentgrad.evaluation import ACTIVE
from silentgrad.latents.families import family_of, standard_prior
from silentgrad.latents.independent import base_of
from silentgrad.latents.priors import Prior
from silentgrad.objective import Term

DRAWS = 16
REFINED, RATE = 80, 0.1  # steps and learning rate of the refinement of q for every example


@torch.no_grad()
def nats_per_latent(q: td.Distribution, prior: Prior | None = None) -> Tensor:
    """Return the mean KL divergence of each latent; from the standard prior of the family if none is given."""
    return (prior or standard_prior(q, family_of(q))).divergence_per_latent(q).mean(0)


def active_units(q: td.Distribution, prior: Prior | None = None, threshold: float = ACTIVE) -> Tensor:
    """Return which latents are used: those whose KL divergence from the prior is above a threshold on average.

    Without a prior, it is the standard one of the family; the threshold is in nats.

    Example:
        >>> q = td.Normal(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.tensor([0.1, 1.0]))
        >>> active_units(q).tolist()
        [True, False]
    """
    return nats_per_latent(q, prior) > threshold


@torch.no_grad()
def mutual_information(q: td.Distribution) -> tuple[float, float]:
    """Return bounds of the mutual information of x and z in nats, from below and above; see the module.

    Args:
        q: Latents of some examples, independent Gaussians.

    Example:
        >>> q = td.Normal(10 * torch.eye(4), torch.full((4, 4), 0.1))  # four examples that z tells apart
        >>> f"{mutual_information(q)[0]:.3f} {math.log(4):.3f}"
        '1.386 1.386'
    """
    loc, scale = (part.flatten(1).double() for part in gaussian_parts(q, "mutual information"))
    with seeded(0, loc.device):
        z, precision = loc + scale * torch.randn_like(loc), scale.square().reciprocal()
    # log N(z_i; loc_j, scale_j) of all pairs, by expanded squares: pairs times latents would not fit
    squares = z.square() @ precision.T - 2 * z @ (loc * precision).T + (loc.square() * precision).sum(1)
    pairs = -0.5 * squares - scale.log().sum(1)
    least = (pairs.diagonal() - torch.logsumexp(pairs, 1)).mean() + math.log(len(z))
    covariance = torch.atleast_2d(loc.T.cov()) + scale.square().mean(0).diag()
    most = torch.logdet(covariance) / 2 - scale.log().sum(1).mean()
    return float(least), float(most)


def amortization_gap(model: MeasurableModel, x: Tensor) -> Tensor:
    """Return the nats that the ELBO of each example gains if its q(z|x) is refined by itself: its gap is at least that.

    The refinement descends by STL, whose gradient has no noise at the optimum, and is kept where it is a gain.

    Args:
        model: The model, as `gradient_variance` takes it, whose latents are independent Gaussians.
        x: Examples.

    Raises:
        IntractableError: The latents are of another kind.
    """
    with torch.no_grad():
        q = model.encoder(x)
    loc, scale = gaussian_parts(q, "the amortization gap")
    prior, moves = prior_of(model, q), torch.zeros(2, *loc.shape).to(loc).requires_grad_()

    def moved() -> td.Distribution:  # in deviations of q, however narrow it is
        return family_of(q).rebuild(q, [loc + scale * moves[0], scale * moves[1].exp()])

    def bound(q: td.Distribution) -> Tensor:  # by draws that are the same for every q
        with seeded(0, x.device):
            return -Term(model.decoder, Averaged(Reparameterized(), DRAWS)).loss(x, q) - prior.divergence(q)

    term, optimizer = Term(model.decoder, STL()), torch.optim.Adam([moves], lr=RATE)
    with seeded(0, x.device), torch.enable_grad():
        for step in range(REFINED):
            optimizer.param_groups[0]["lr"] = RATE * (1 - step / REFINED)
            own = moved()
            loss = (term.loss(x, own, prior) + prior.divergence(own)).sum()
            (moves.grad,) = torch.autograd.grad(loss, moves)
            optimizer.step()
    with torch.no_grad():
        return (bound(moved()) - bound(q)).clamp(min=0)


def gaussian_parts(q: td.Distribution, asked: str) -> tuple[Tensor, Tensor]:
    """Return means and deviations; raise if what is asked for is not known of the latents."""
    base = base_of(q)
    if not isinstance(base, td.Normal):
        raise IntractableError(f"{asked} is measured for independent Gaussian latents, not for {type(base).__name__}")
    return base.loc, base.scale
