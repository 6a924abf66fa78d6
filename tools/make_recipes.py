"""Writes the recipes of every cell of the paper's tables, at the paper's scale and at one for two processor cores.

    python tools/make_recipes.py

What the paper leaves open is chosen here: channels 32 (MNIST) and 64 (strided), latent sizes of the learned-variance
models, the Gumbel temperature, REINFORCE's decay. The figures under `expects` are the paper's, or measured ones; a
recipe nobody has run says that.
"""

import json
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "src" / "silentgrad" / "recipes"
MEASURED = ROOT / "tools" / "measured.json"  # recipe -> {"expects": ..., "time": ...}, from runs

PAPER_FIXED = {"silent": 6.718, "reparameterized": 6.722}
PAPER_FIXED_BERNOULLI = {"silent": 6.900, "gumbel-softmax": 6.990, "reinforce": 7.208}
PAPER_BPD = {
    "mnist": {"none-sg": (2.36, 2.74), "reparameterized": 1.95, "reparameterized-sg": 1.83, "gumbel-softmax": 2.50,
              "gumbel-softmax-sg": 2.37, "reinforce": 2.99, "reinforce-sg": 2.93},
    "imagenet32": {"none-sg": (5.99, 6.46), "reparameterized": 5.81, "reparameterized-sg": 5.70, "gumbel-softmax": 6.31,
                   "gumbel-softmax-sg": 6.20, "reinforce": 6.88, "reinforce-sg": 6.78},
    "cifar10": {"none-sg": (5.78, 6.72), "reparameterized": 5.71, "reparameterized-sg": 5.53, "gumbel-softmax": 6.21,
                "gumbel-softmax-sg": 6.20, "reinforce": 6.74, "reinforce-sg": 6.67},
}  # fmt: skip
BATCH = {"mnist": 64, "imagenet32": 128, "cifar10": 256}
EPOCHS = {"mnist": 200, "imagenet32": 100, "cifar10": 2000}
LATENTS = {"mnist": 200, "imagenet32": 1024, "cifar10": 1024}
CPU_EPOCHS = {"mnist": 20, "imagenet32": 20, "cifar10": 20}


def fixed(latent: str, method: str, scale: str) -> dict:
    estimator = "exact" if method == "silent" else method
    model = {"latent": latent, "latent_dim": 200, "linear": "fixed", "variance": 0.01, "nonlinear": False,
             "estimator": estimator}  # fmt: skip
    if scale == "paper":
        model |= {"network": "conv", "channels": 32}
        return {"data": {"name": "mnist", "batch_size": 64}, "model": model, "train": {"epochs": 500, "lr": 5e-4}}
    if latent == "bernoulli":
        model |= {"variance_start": 0.3, "variance_factor": 0.7}
    epochs = 25 if latent == "gaussian" else 20
    model |= {"network": "mlp", "hidden": [512]}
    return {"data": {"name": "mnist", "batch_size": 64}, "model": model, "train": {"epochs": epochs, "lr": 5e-4}}


def learned(dataset: str, latent: str, method: str, scale: str) -> dict:
    guided = method.endswith("-sg")
    estimator = method.removesuffix("-sg")
    model = {"latent": latent, "latent_dim": LATENTS[dataset], "linear": "exp" if guided else "none", "nonlinear": True,
             "estimator": estimator}  # fmt: skip
    epochs = 300 if dataset == "mnist" and "reinforce" in method else EPOCHS[dataset]
    train = {"epochs": epochs, "lr": 1e-4}
    if scale == "paper":
        model |= {"network": "conv" if dataset == "mnist" else "strided", "channels": 32 if dataset == "mnist" else 64}
        if guided:
            model |= {"linear": "linear", "log_term": "taylor", "annealing_rate": 0.01}
        if estimator == "none":
            model |= {"cutoff": 100 if epochs >= 200 else 50}
    else:
        train = {"epochs": CPU_EPOCHS[dataset], "lr": 5e-4, "clip": 1.0}
        model |= {"network": "mlp", "hidden": [256], "latent_dim": 64}
        if guided:
            # Bernoulli latents: the exponential link would take ten times as long
            model |= {"linear": "exp" if latent == "gaussian" else "linear", "start": "ppca", "annealing_rate": 0.1}
            train |= {"lr_precision": 5e-3 if latent == "gaussian" else 1e-2}
        if estimator == "none":
            model |= {"cutoff": int(0.7 * CPU_EPOCHS[dataset])}
    return {"data": {"name": dataset, "batch_size": BATCH[dataset]}, "model": model, "train": train}


def write(name: str, what: str, expects: str, settings: dict) -> None:
    measured = json.loads(MEASURED.read_text()).get(name, {})
    header = {
        "what": what,
        "command": f"silentgrad train --recipe {name}",
        "expects": measured.get("expects", expects),
        "time": measured.get("time", "not measured"),
    }
    text = "".join(f"# {key}: {value}\n" for key, value in header.items())
    (FOLDER / f"{name}.yaml").write_text(text + yaml.safe_dump(settings, sort_keys=False, default_flow_style=None))


def main() -> None:
    for old in FOLDER.glob("*.yaml"):
        old.unlink()
    for scale in ("paper", "cpu"):
        unknown = "not measured"
        for latent, figures in (("gaussian", PAPER_FIXED), ("bernoulli", PAPER_FIXED_BERNOULLI)):
            for method, bpd in figures.items():
                expects = f"test BPD {bpd} (the paper)" if scale == "paper" else unknown
                what = f"MNIST, fixed variance 0.01, 200 {latent} latents, linear decoder, {method}"
                write(f"mnist-fixed-{latent}-{method}-{scale}", what, expects, fixed(latent, method, scale))
        for dataset, figures in PAPER_BPD.items():
            for method, bpd in figures.items():
                for position, latent in enumerate(("gaussian", "bernoulli")):
                    discrete = method.startswith(("gumbel", "reinforce"))
                    if method != "none-sg" and discrete != (latent == "bernoulli"):
                        continue
                    figure = bpd[position] if isinstance(bpd, tuple) else bpd
                    expects = f"test BPD {figure} (the paper)" if scale == "paper" else unknown
                    what = f"{dataset}, learned variance, {latent} latents, {method.replace('-sg', ' + SG')}"
                    write(
                        f"{dataset}-{latent}-{method}-{scale}", what, expects, learned(dataset, latent, method, scale)
                    )


if __name__ == "__main__":
    main()
