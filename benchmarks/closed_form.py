"""The cost of a closed form beyond its matrix products: forward plus backward, every ratio within one run.

    python benchmarks/closed_form.py                  # about three minutes on two cores

Each row times one decoder's `expected_log_prob` with its gradient (in the latent's and the decoder's parameters) and
the same matrix products alone, also with their gradients and in the same mode; the two take turns, medians are
compared.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch import distributions as td
from torch.nn.functional import linear

import silentgrad as sg

Step = Callable[[], object]
SIZES = ((256, 200, 3072), (64, 200, 784))
LIMITS = {"compiled": 1.25, "eager": 2.0, "fixed": 1.2}
FIVE, TEN = (2, 3), (2, 3, 3, 2)  # matrix products with each order of moments: Gaussian latents, skewed latents


def keep_freed_memory() -> None:
    """Make the C library keep freed memory, as in a training process; otherwise page faults are timed with the rest.

    glibc gives freed memory back to the system until it has seen a large block freed: one of at most 32 MiB, beyond
    which it learns nothing.
    """
    torch.zeros(2**23 - 2**14)


def medians(steps: dict[str, Step], seconds: float) -> dict[str, float]:
    """Median duration of each step in milliseconds, the steps taking turns."""
    for step in steps.values():
        for _ in range(3):
            step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[next(iter(times))]) < 5:
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


class Problem:
    """One size: inputs, latents and a decoder of each kind."""

    def __init__(self, batch: int, latents: int, outputs: int) -> None:
        torch.manual_seed(0)
        self.batch, self.latents, self.outputs = batch, latents, outputs
        self.x = torch.rand(batch, outputs)
        self.loc = torch.randn(batch, latents, requires_grad=True)
        self.log_scale = (torch.randn(batch, latents) / 10 - 1).requires_grad_()
        self.logits = torch.randn(batch, latents, requires_grad=True)

    def normal(self) -> td.Normal:
        return td.Normal(self.loc, self.log_scale.exp())

    def bernoulli(self) -> td.Bernoulli:
        return td.Bernoulli(logits=self.logits)

    def decoder(self, link: str, log_term: str = "auto") -> sg.LinearPrecisionGaussian:
        decoder = sg.LinearPrecisionGaussian(self.latents, self.outputs, link=link, log_term=log_term)
        torch.nn.init.normal_(decoder.precision_affine.weight, std=0.01)
        return decoder

    def gradients(
        self, objective: Callable[[], Tensor], compiled: bool, decoder: torch.nn.Module, *latents: Tensor
    ) -> Step:
        value = torch.compile(objective, dynamic=False) if compiled else objective
        return lambda: torch.autograd.grad(value(), [*latents, *decoder.parameters()])

    def closed_form(self, decoder: sg.LinearDecoder, compiled: bool, family: str = "normal") -> Step:
        latents = (self.loc, self.log_scale) if family == "normal" else (self.logits,)

        def objective() -> Tensor:
            return decoder.expected_log_prob(self.x, getattr(self, family)()).mean()

        return self.gradients(objective, compiled, decoder, *latents)

    def reparameterized(self, decoder: sg.LinearDecoder, compiled: bool) -> Step:
        def objective() -> Tensor:
            return decoder(self.normal().rsample()).log_prob(self.x).mean()

        return self.gradients(objective, compiled, decoder, self.loc, self.log_scale)

    def products(self, counts: Sequence[int], compiled: bool) -> Step:
        """Return the matrix products alone: for each order of moments, so many with its statistic."""
        statistics = [torch.rand(self.batch, self.latents, requires_grad=True) for _ in counts]
        weights = [[torch.rand(self.outputs, self.latents, requires_grad=True) for _ in range(n)] for n in counts]
        cotangent = torch.rand(self.batch, self.outputs)

        def objective() -> list[Tensor]:
            return [linear(s, w) for s, ws in zip(statistics, weights, strict=True) for w in ws]

        results = torch.compile(objective, dynamic=False) if compiled else objective
        inputs = [*statistics, *itertools.chain(*weights)]
        return lambda: torch.autograd.grad(results(), inputs, [cotangent] * sum(counts))


def ratios(size: tuple[int, int, int], seconds: float) -> None:
    print(f"\n(batch, latents, outputs) = {size}")
    problem, fixed = Problem(*size), sg.LinearGaussian(*size[1:])
    forms = {
        "linear link, Gaussian latents": (problem.decoder("linear"), "normal", FIVE),
        "exponential link, Gaussian latents": (problem.decoder("exp"), "normal", FIVE),
        "linear link, Bernoulli latents, Taylor": (problem.decoder("linear", "taylor"), "bernoulli", TEN),
        "linear link, Bernoulli latents, Edgeworth": (problem.decoder("linear"), "bernoulli", TEN),
    }
    for mode, compiled in (("compiled", True), ("eager", False)):
        for name, (decoder, family, counts) in forms.items():
            torch.compiler.reset()
            form, base = problem.closed_form(decoder, compiled, family), problem.products(counts, compiled)
            compare(f"{name}, {mode}", form, f"{sum(counts)} matrix products", base, LIMITS[mode], seconds)
        form, base = problem.closed_form(fixed, compiled), problem.reparameterized(fixed, compiled)
        compare(f"fixed variance, {mode}", form, "reparameterized sample", base, LIMITS["fixed"], seconds)


def compare(name: str, form: Step, base_name: str, base: Step, limit: float, seconds: float) -> None:
    time_of = medians({"form": form, "base": base}, seconds)
    ratio = time_of["form"] / time_of["base"]
    print(f"  {name:52} {time_of['form']:7.2f} ms = {ratio:4.2f} x {base_name} (limit {limit})", flush=True)


def scaling(seconds: float) -> None:
    base = (128, 100, 1024)
    print(f"\nCost of doubling one dimension of (batch, latents, outputs) = {base}; linear cost is at most 2")
    sizes = {"base": base} | {
        name: tuple(2 * n if i == axis else n for i, n in enumerate(base))
        for axis, name in enumerate(("batch", "latents", "outputs"))
    }
    for link in ("linear", "exp"):
        steps = {}
        for name, size in sizes.items():
            problem = Problem(*size)
            steps[name] = problem.closed_form(problem.decoder(link), compiled=False)
        time_of = medians(steps, seconds)
        row = ", ".join(f"{name} {time_of[name] / time_of['base']:.2f}" for name in sizes if name != "base")
        print(f"  {link + ' link':16} {row}")


def memory() -> None:
    """Peak extra memory of the chunked exponential link, and what the whole (outputs, batch, latents) array takes."""
    import resource

    size = (256, 200, 3072)
    problem = Problem(*size)
    step = problem.closed_form(problem.decoder("exp"), compiled=False, family="bernoulli")
    start = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step()
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
    whole = 4 * size[0] * size[1] * size[2] / 2**30
    print(f"\nExponential link, Bernoulli latents, {size}: peak extra memory {peak:.2f} GiB (limit 1),")
    print(f"  in {time.perf_counter() - start:.1f} s; one whole array of that size takes {whole:.2f} GiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to repeat each comparison")
    seconds = parser.parse_args().seconds
    memory()  # first: a peak can only be read off before anything larger has run
    keep_freed_memory()
    for size in SIZES:
        ratios(size, seconds)
    scaling(2 * seconds)


if __name__ == "__main__":
    main()
