"""The paper's quantitative claims, each beside what runs here say of it.

A claim is a comparison of two methods in one figure. It holds or fails *here*, in the setting of its row, where an
interval of 95 % over pairs of seeds lies on one side of zero; it is untested as long as there are no runs. None of
these settings is the paper's own.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from silentgrad.lab.experiments import guide, paper
from silentgrad.lab.experiments.cells import TITLES, Request
from silentgrad.lab.experiments.paper_tables import FIELDS
from silentgrad.lab.experiments.results import Results, compared
from silentgrad.lab.tables import Column, Content, Table

COLUMNS = [
    Column("claim of the paper"),
    Column("figures there"),
    Column("setting here"),
    Column("verdict"),
    Column("effect here", 4),
    Column("seeds", 0),
]
UNTESTED = "untested"
LINEAR = "64 latents, MLP encoder, every rate tuned (table linear)"
REDUCED = "scale cpu (table {table})"
# Claims that no table of runs here decides, with their figures and the reason.
NOT_COMPARED = [
    ("Silent Gradients have no estimator variance", "0", "silentgrad reproduce variance", "exact by construction"),
    *[
        (f"the estimator's part of the variance, {paper.METHODS[method]}, {paper.BLOCKS[latent].lower()}",
         ", ".join(f"{part:.2f} %" for part in parts), "silentgrad reproduce variance", UNTESTED)
        for (latent, method), parts in paper.VARIANCE.items() if method != "silent"
    ],
    (f"Silent Gradients reach {paper.REACHED} BPD in half of the epochs", "45 against 90", "table fixed", UNTESTED),
    ("the bias by the log term is below the deviation of Gumbel-Softmax and of REINFORCE",
     "212.9, 6,100, 593.1", "silentgrad bias", UNTESTED),
]  # fmt: skip


class Claim(NamedTuple):
    """A claim that two methods differ in a figure."""

    words: str  # the claim
    figures: str  # the paper's
    setting: str  # where it is tested here
    table: str  # whose runs test it
    metric: str  # the figure
    better: int  # 1 if the claim is that the figure rises, -1 that it falls
    runs: Mapping[str, object]  # what the runs of both have in common
    ours: str  # method that is claimed to be better
    theirs: str


def claims() -> Iterator[Claim]:
    """Yield all claims that runs can decide: those on linear decoders, then those of each table."""
    sampled = [(latent, method) for latent, method in paper.FIXED if method != "silent"]
    for learned, (latent, method) in product((False, True), sampled):
        words = f"with a linear decoder it beats {paper.METHODS[method]} ({paper.BLOCKS[latent].lower()})"
        figures = "" if learned else _of_fixed(latent, method, "bpd")
        setting = f"MNIST, variance {'learned' if learned else 'fixed'}, {LINEAR}"
        runs = {"dataset": "mnist", "variant": f"linear-{'linear' if learned else 'fixed'}", "latent": latent}
        yield Claim(words, figures, setting, "linear", "test", -1, runs, "exact", method)
    for (latent, method), metric in product(sampled, ("bpd", "mse")):
        words = f"{metric.upper()} below that of {paper.METHODS[method]}, fixed variance"
        figures, setting = _of_fixed(latent, method, metric), f"MNIST, {REDUCED.format(table='fixed')}"
        yield Claim(words, figures, setting, "fixed", FIELDS[metric], -1, {"latent": latent}, "silent", method)
    for dataset, lengths in guide.LENGTHS.items():
        latents = dict.fromkeys(cell.latent for cell in guide.guide_cells(Request("cpu", 1, [dataset])))
        for latent, epochs in product(latents, lengths):
            runs = {"dataset": dataset, "latent": latent, "variant": f"guide-{epochs}"}
            setting = f"{TITLES[dataset]}, {paper.BLOCKS[latent].lower()}, {epochs} epochs, tuned (table guide)"
            yield Claim("a guide improves a network", "", setting, "guide", "test", -1, runs, "paper", "none")
    for metric, (dataset, title) in product(("bpd", "kld", "mse"), paper.DATASETS.items()):
        yield from _of_guides(metric, dataset, title)


def _of_fixed(latent: str, method: str, metric: str) -> str:
    return " against ".join(f"{getattr(paper.FIXED[latent, own], metric):.3f}" for own in ("silent", method))


def _of_guides(metric: str, dataset: str, title: str) -> Iterator[Claim]:
    place, field = list(paper.DATASETS).index(dataset), FIELDS[metric]
    for latent, method in paper.LEARNED[metric]:
        other = paper.alone(method)
        if other == "none":
            other = "reinforce"  # which the standalone method is said to beat
        if not method.endswith(paper.GUIDED) or (latent, other) not in paper.LEARNED[metric]:
            continue
        if method.startswith("none") and (metric != "bpd" or dataset == "cifar10"):
            continue
        with_sg, without = (paper.LEARNED[metric][latent, own][place].mean for own in (method, other))
        better = 1 if metric == "kld" else -1
        name = paper.METHODS[paper.alone(method)]
        what = f"{name} + SG has a {'higher' if better > 0 else 'lower'} {metric.upper()} than {paper.METHODS[other]}"
        contrary = "" if better * (with_sg - without) > 0 else " (contrary to the claim)"
        figures, setting = f"{with_sg:g} against {without:g}{contrary}", REDUCED.format(table=metric)
        runs = {"dataset": dataset, "latent": latent}
        yield Claim(f"{title}: {what}", figures, setting, "bpd", field, better, runs, method, other)


def claims_table(results_of: Callable[[str], Results]) -> Table:
    """Return all claims with what finished runs say.

    Args:
        results_of: Function from a table's name to its runs.
    """
    rows: list[list[Content]] = []
    for claim in claims():
        rows.append([claim.words, claim.figures, claim.setting, *_judged(claim, results_of(claim.table))])
    rows += [[*claim, None, None] for claim in NOT_COMPARED]
    return Table("Claims of the paper", COLUMNS, rows, name="claims")


def _judged(claim: Claim, results: Results) -> list[Content]:
    """Return the verdict on a claim, the change that tells it and the number of seeds."""
    ours, theirs = (results.rows(**claim.runs, method=method) for method in (claim.ours, claim.theirs))
    if not ours or not theirs:
        return [UNTESTED, None, None]
    seeds = float(len({row.seed for row in ours} & {row.seed for row in theirs}))
    change = compared(ours, theirs, claim.metric)
    if change is None:
        return ["no verdict: a run failed", None, seeds]
    verdict = replace(change, mean=-claim.better * change.mean).verdict
    return [{"helps": "holds here", "hurts": "fails here"}.get(verdict, "undecided"), change, seeds]
