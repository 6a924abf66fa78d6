"""The bound of thousands of random circuits against the expectation by enumeration."""

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch import distributions as td
from torch.nn.functional import one_hot

import random_circuits
import silentgrad as sg

MANY, BATCH = 50, 4
LATENTS = 6


def bits() -> tuple[td.Distribution, Tensor]:
    """Bernoulli latents, the first example's without variance, and all their states."""
    probs = torch.rand(BATCH, LATENTS // 2, dtype=torch.float64)
    probs[0] = probs[0].round()
    states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=LATENTS // 2)), dtype=torch.float64)
    return td.Bernoulli(probs), states.unsqueeze(1)


def categories() -> tuple[td.Distribution, Tensor]:
    """Two one-hot latents of three categories, the first example's without variance, and all their states."""
    logits = 2 * torch.randn(BATCH, 2, 3, dtype=torch.float64)
    probs = logits.softmax(-1)
    probs[0] = one_hot(probs[0].argmax(-1), 3)
    states = one_hot(torch.cartesian_prod(torch.arange(3), torch.arange(3)), 3).double()
    return td.OneHotCategorical(probs), states.unsqueeze(1)


LATENT_KINDS = {"bits": bits, "categories": categories}


@given(
    seed=st.integers(0, 10**6),
    latent=st.sampled_from(list(LATENT_KINDS)),
    structure=st.sampled_from(random_circuits.STRUCTURES),
    outputs=st.integers(1, 6),
    components=st.integers(1, 4),
    gates=st.sampled_from(["leaves", "all", "none"]),
    leaves=st.sampled_from(random_circuits.LEAVES),
    proxy=st.booleans(),
    size=st.sampled_from([0.1, 0.7, 2.0]),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_bound_is_never_above_the_expectation(
    seed: int,
    latent: str,
    structure: str,
    outputs: int,
    components: int,
    gates: str,
    leaves: str,
    proxy: bool,
    size: float,
) -> None:
    """A hundred circuits with fifty parameter sets each."""
    torch.manual_seed(seed)
    q, states = LATENT_KINDS[latent]()
    states = states.expand(-1, BATCH, *states.shape[2:])
    latents = states[0, 0].numel()
    kind = random_circuits.leaves_of(leaves, latents, outputs, components)
    regions = random_circuits.random_structure(structure, outputs, seed)
    circuit = sg.Circuit(latents, outputs, components, regions, gates, kind, proxy).double()
    x = torch.randn(BATCH, outputs, dtype=torch.float64)
    bound, log_probs = random_circuits.of_many(circuit, MANY, size, x, q, states)
    truth = (chances(q, states).unsqueeze(0) * log_probs).sum(1)
    assert (bound <= truth + 1e-9 * truth.abs()).all()
    if components == 1:
        torch.testing.assert_close(bound, truth)
    if not proxy or gates == "none":
        torch.testing.assert_close(bound[:, 0], truth[:, 0])  # where q has no variance


def chances(q: td.Distribution, states: Tensor) -> Tensor:
    """The probability of each state, `(states, batch)`, from those of the numbers that are one."""
    probs = q.mean
    if isinstance(q, td.OneHotCategorical):
        return (probs * states).sum(-1).prod(-1)
    return (probs * states + (1 - probs) * (1 - states)).prod(-1)
