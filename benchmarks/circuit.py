"""The cost of a circuit beyond its leaves: forward plus backward, every ratio within one run; and its peak memory.

    python benchmarks/circuit.py                  # about five minutes on one core

The circuit has Gaussian leaves whose mean and log-precision are linear in z, gates linear in z, and a quad-tree. Its
leaves alone are the same leaves, summed over all outputs and components. The two take turns, medians are compared. The
default circuit, whose leaves have a constant precision, takes two products instead of five for its leaves; its time
stands beside that of the other. A step of leaves for whole levels with a context is compared with one without. Then the
batch, the outputs and the
latents are doubled one at a time; and a process of its own measures its peak memory at 3072 outputs and 16 leaves.
"""

import argparse
import resource
import subprocess
import sys
from collections.abc import Callable

import torch
from closed_form import Step, keep_freed_memory, medians
from torch import Tensor
from torch import distributions as td

import silentgrad as sg

COMPONENTS, SIZE = 6, (128, 64, (28, 28))
LIMITS = {"eager": 2.5, "compiled": 1.6}
CONTEXT_LIMIT = 2.2
LARGE, GIBIBYTES = (128, 64, (3, 32, 32)), 4.0


class Problem:
    """A circuit of one size with its inputs."""

    def __init__(
        self, batch: int, latents: int, event_shape: tuple[int, ...], components: int, default_leaves: bool = False
    ) -> None:
        torch.manual_seed(0)
        leaves = None
        if not default_leaves:
            leaves = sg.LinearPrecisionGaussian(latents, (*event_shape, components), link="exp")
        self.circuit = sg.Circuit(latents, event_shape, components, leaves=leaves)
        self.x = torch.rand(batch, *event_shape)
        self.loc = torch.randn(batch, latents, requires_grad=True)
        self.log_scale = (torch.randn(batch, latents) / 10 - 1).requires_grad_()

    def whole(self) -> Tensor:
        return self.circuit.expected_log_prob(self.x, self.latent()).mean()

    def leaves_alone(self) -> Tensor:
        return self.circuit.leaves.expected_log_probs(self.x, self.latent()).sum((-1, -2)).mean()

    def latent(self) -> td.Normal:
        return td.Normal(self.loc, self.log_scale.exp(), validate_args=False)

    def step(self, objective: Callable[[], Tensor], compiled: bool) -> Step:
        value = objective
        if compiled:
            value = torch.compile(objective, dynamic=False)
        parameters = [self.loc, self.log_scale, *self.circuit.parameters()]
        return lambda: torch.autograd.grad(value(), parameters, allow_unused=True)


def ratio(mode: str, seconds: float) -> float:
    """Print a row and returns the time of the circuit in units of that of its leaves."""
    problem, default = Problem(*SIZE, COMPONENTS), Problem(*SIZE, COMPONENTS, default_leaves=True)
    compiled = mode == "compiled"
    steps = {
        "circuit": problem.step(problem.whole, compiled),
        "leaves": problem.step(problem.leaves_alone, compiled),
        "default": default.step(default.whole, compiled),
    }
    found = medians(steps, seconds)
    result = found["circuit"] / found["leaves"]
    times = f"circuit {found['circuit']:.1f} ms, leaves {found['leaves']:.1f} ms"
    print(f"{mode:8}  {times}: {result:.2f} (limit {LIMITS[mode]}); default circuit {found['default']:.1f} ms")
    return result


def of_levels(context: bool) -> Problem:
    """A circuit of whole levels by the bound."""
    batch, latents, shape = SIZE
    problem = Problem(*SIZE, COMPONENTS, default_leaves=True)
    seen = sg.CausalContext(shape) if context else None
    leaves = sg.DiscretizedLogistic(latents, (*shape, COMPONENTS), expectation="bound", context=seen)
    problem.circuit = sg.Circuit(latents, shape, COMPONENTS, leaves=leaves)
    problem.x = torch.randint(256, (batch, *shape)).float()
    return problem


def in_context(mode: str, seconds: float) -> float:
    """Prints a row and returns the time of a step with a context in units of one without."""
    problems = {"without": of_levels(False), "with": of_levels(True)}
    steps = {name: problem.step(problem.whole, mode == "compiled") for name, problem in problems.items()}
    found = medians(steps, seconds)
    result = found["with"] / found["without"]
    times = f"levels with a context {found['with']:.1f} ms, without {found['without']:.1f} ms"
    print(f"{mode:8}  {times}: {result:.2f} (limit {CONTEXT_LIMIT})")
    return result


def growth(seconds: float) -> None:
    """Print how much longer a step takes when one size is doubled."""
    batch, latents, (height, width) = SIZE
    problems = {
        "as it is": Problem(*SIZE, COMPONENTS),
        "batch": Problem(2 * batch, latents, (height, width), COMPONENTS),
        "latents": Problem(batch, 2 * latents, (height, width), COMPONENTS),
        "outputs": Problem(batch, latents, (height, 2 * width), COMPONENTS),
    }
    steps = {name: problem.step(problem.whole, compiled=False) for name, problem in problems.items()}
    found = medians(steps, seconds)
    for name in ("batch", "latents", "outputs"):
        print(f"twice the {name:7} takes {found[name] / found['as it is']:.2f} times as long")


def memory() -> None:
    """Print this process's peak before and after a step at the large size, in GiB."""
    problem = Problem(*LARGE, components=16)
    problem.step(problem.whole, compiled=False)()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory of a process at {LARGE}, 16 leaves: {peak:.2f} GiB (limit {GIBIBYTES})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of every comparison")
    parser.add_argument("--memory", action="store_true", help="measure the peak memory only")
    given = parser.parse_args()
    if given.memory:
        memory()
        return
    keep_freed_memory()
    subprocess.run([sys.executable, __file__, "--memory"], check=True)
    growth(given.seconds)
    exceeded = [mode for mode, limit in LIMITS.items() if ratio(mode, given.seconds) > limit]
    exceeded += [mode for mode in LIMITS if in_context(mode, given.seconds) > CONTEXT_LIMIT]
    sys.exit(len(exceeded))


if __name__ == "__main__":
    main()
