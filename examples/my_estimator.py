"""Write an estimator of your own, have it checked, and put it into the benchmark.

Copy this file into a folder of your own, rename the class, and change `forward`. Then, from that folder:

    python my_estimator.py                     # the checks: bias, evaluations, shapes, dtypes, state
    silentgrad benchmark --scale smoke --datasets mnist --networks linear \\
        --estimators exact,rloo,my_estimator:MyEstimator

q may be a latent inside `Independent`. Its parameters are found by `bernoulli_of(q, self).logits`, one for each bit, or
`discrete_of(q, self)` for categories too. A pathwise estimator differentiates through z, `integrand(q.rsample())`; for
bits or categories, straight through, `integrand(value_with_gradient_of(q.sample(), q.mean))`.
"""

import torch
from torch import Tensor
from torch import distributions as td

import silentgrad as sg
from silentgrad.estimators import Integrand, joint_log_prob, per_example, value_with_gradient_of


class MyEstimator(sg.Estimator):
    """The score function with a second sample as its baseline."""

    unbiased = True  # what you claim, and the checks measure
    latents = (td.Bernoulli, td.OneHotCategorical)  # those that it takes; all if absent

    def evaluations(self, latents: int = 1, values: int = 2) -> int:
        return 2  # of the integrand, a step

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        z = q.sample()
        f = per_example(integrand(z), q)  # one number per example: any other shape is refused
        with torch.no_grad():
            baseline = integrand(q.sample())
        return value_with_gradient_of(f, f + (f.detach() - baseline) * joint_log_prob(q, z, f.shape))


def train() -> None:
    found = sg.testing.check_estimator(MyEstimator())
    print(found)
    assert found.passed


if __name__ == "__main__":
    train()
