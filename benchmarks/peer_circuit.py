"""A circuit without latents by libcirkit, on the images, the core and the minutes of a silent circuit.

    pip install libcirkit==0.3.1 torch==2.13.0        # in an environment of its own, beside silentgrad[lab]
    python benchmarks/peer_circuit.py --data mnist --minutes 12

A quad-tree with 256 probabilities in each leaf and CP layers, AdamW whose rate falls along a cosine over the seconds of
the processor. Those of the training alone are counted; the last weights are judged on the test images.
"""

import argparse
import math
import time

import torch
from cirkit.backend.torch import semiring
from cirkit.pipeline import compile as compiled
from cirkit.templates.data_modalities import image_data
from cirkit.templates.utils import Parameterization

from silentgrad.lab.data import Levels, load

BATCH, RATE = 128, 1e-2
# Version 0.3.1 cuts every logarithm off at -708: the 784 pixels of an untrained circuit come to less, and so to a false
# figure of 1.3036 bits that no gradient changes.
semiring.LOG_CLAMP_MIN = torch.finfo(torch.float32).min


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--units", type=int, default=16, help="of every layer")
    parser.add_argument("--graph", default="quad-tree-2", help="quad-tree-2, quad-graph, ...")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    images = load(given.data)
    assert isinstance(images, Levels)
    train, test = (images.rows(split).stored.long().flatten(1) for split in ("train", "test"))
    circuit = compiled(
        image_data(
            tuple(images.event_shape),
            region_graph=given.graph,
            input_layer="categorical",
            num_input_units=given.units,
            sum_product_layer="cp",
            num_sum_units=given.units,
            sum_weight_param=Parameterization(activation="softmax", initialization="normal"),
        )
    )
    bits = train.shape[1] * math.log(2)
    optimizer = torch.optim.AdamW(circuit.parameters(), lr=RATE, betas=(0.9, 0.95))
    began, limit, steps = time.process_time(), 60 * given.minutes, 0
    while (spent := time.process_time() - began) < limit:
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 + math.cos(math.pi * spent / limit)) / 2
        loss = -circuit(train[torch.randint(len(train), (BATCH,))]).mean() / bits
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        if steps % 50 == 1:
            print(f"step {steps}, {spent:.0f} s, training BPD {loss.item():.4f}", flush=True)
    with torch.no_grad():
        nats = torch.cat([circuit(rows).flatten() for rows in test.split(250)])
    parameters = sum(weights.numel() for weights in circuit.parameters())
    print(f"{given.data}: test BPD {-nats.double().mean().item() / bits:.4f}, {steps} steps, {parameters:,} parameters")


if __name__ == "__main__":
    main()
