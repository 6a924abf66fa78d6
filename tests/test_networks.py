"""Networks: the layers of the paper's tables, the shapes they make, and the latents and precisions built on them."""

import math

import pytest
import torch
from torch import Tensor, nn

import silentgrad as sg
from refusals import refused
from silentgrad.lab.networks import NETWORKS, Encoder, NonlinearGaussian, mlp_body, mlp_network

CONV, WITH_STRIDES = NETWORKS["conv"], NETWORKS["strided"]
CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
# The four tables of the paper's appendix: layer, kernel, stride, padding, activation.
CONVOLVED, STRIDED, TRANSPOSED = "Conv2d 3x3 1 1 ReLU", "Conv2d 4x4 2 1 ReLU", "ConvTranspose2d 4x4 2 1 ReLU"
ENCODER_MNIST = [CONVOLVED, CONVOLVED, "Conv2d 3x3 1 1", "Flatten", "Linear"]
DECODER_MNIST = ["Linear", "Reshape", *[CONVOLVED] * 4, "Conv2d 1x1 1 0"]
ENCODER_CIFAR = [*[STRIDED, "BatchNorm2d"] * 3, "Conv2d 4x4 1 0 ReLU", "BatchNorm2d", "Flatten", "Linear"]
DECODER_CIFAR = [
    "Linear", "Reshape", "ConvTranspose2d 4x4 1 0 ReLU", "BatchNorm2d", *[TRANSPOSED, "BatchNorm2d"] * 2,
    "ConvTranspose2d 4x4 2 1",
]  # fmt: skip


def row(layer: nn.Module) -> str:
    name = {"Unflatten": "Reshape"}.get(type(layer).__name__, type(layer).__name__)
    if not isinstance(layer, CONVOLUTIONS):
        return name
    (stride,), (padding,) = {*layer.stride}, {*layer.padding}
    assert (*layer.dilation, layer.groups) == (1, 1, 1)
    return f"{name} {'x'.join(map(str, layer.kernel_size))} {stride} {padding}"


def table(network: nn.Module) -> list[str]:
    """A network's layers in the paper's notation, where an activation belongs to the layer before it."""
    rows: list[str] = []
    for layer in network:
        if isinstance(layer, nn.ReLU):
            rows[-1] += " ReLU"
        else:
            rows.append(row(layer))
    return rows


def test_the_layers_are_those_of_the_papers_tables() -> None:
    assert table(CONV.body((1, 28, 28), 20)) == ENCODER_MNIST
    assert table(CONV.decoder(20, (1, 28, 28))) == DECODER_MNIST
    assert table(WITH_STRIDES.body((3, 32, 32), 20, 4)) == ENCODER_CIFAR
    assert table(WITH_STRIDES.decoder(20, (3, 32, 32), channels=4)) == DECODER_CIFAR


SHAPES = [(1, 28, 28), (1, 8, 8), (3, 32, 32), (3, 32, 64)]
SIZES = {"hidden": (16,), "channels": 4}
FITTING = [(kind, torch.Size(shape)) for kind in NETWORKS for shape in SHAPES if kind != "strided" or shape[0] == 3]


@pytest.mark.parametrize(("kind", "shape"), FITTING)
def test_networks_give_the_shapes_of_their_data_and_every_layer_learns(kind: str, shape: torch.Size) -> None:
    sizes = {name: SIZES[name] for name in NETWORKS[kind].sizes}
    body, network = NETWORKS[kind].body(shape, 6, **sizes), NETWORKS[kind].decoder(5, shape, 2, **sizes)
    assert body(torch.rand(2, *shape)).shape == (2, 6)
    colors, height, width = shape
    assert network(torch.randn(2, 5)).shape == (2, 2 * colors, height, width)
    likelihood = NonlinearGaussian(network, shape)(torch.randn(2, 5))
    assert (likelihood.batch_shape, likelihood.event_shape) == ((2,), shape)
    log_prob = likelihood.log_prob(torch.rand(2, *shape))
    assert log_prob.shape == (2,)
    log_prob.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())
    if kind == "conv":  # whose kernels are stored channels last
        kernels = [p for p in (*body.parameters(), *network.parameters()) if p.dim() == 4]
        assert all(kernel.is_contiguous(memory_format=torch.channels_last) for kernel in kernels)


@pytest.mark.parametrize("hidden", [(), (16,), (16, 12, 8)])
def test_fully_connected_networks_have_the_hidden_layers_asked_for(hidden: tuple[int, ...]) -> None:
    body, network = mlp_body((1, 8, 8), 6, hidden), mlp_network(5, (1, 8, 8), hidden=hidden)
    for module, inputs, outputs, order in ((body, 64, 6, 1), (network, 5, 128, -1)):
        linears = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
        widths = [(layer.in_features, layer.out_features) for layer in linears]
        assert widths == list(zip((inputs, *hidden[::order]), (*hidden[::order], outputs), strict=True))


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 24, 32), (3, 32, 24), (3, 36, 32), (1, 8, 8)])
def test_strided_networks_refuse_sizes_they_cannot_make(shape: tuple[int, ...]) -> None:
    told = f"images of 32 x 32 or larger.*got {shape[1]} x {shape[2]}"
    refused(sg.ShapeError, f"strided encoder takes {told}", lambda: WITH_STRIDES.body(shape, 6))
    refused(sg.ShapeError, f"strided decoder makes {told}", lambda: WITH_STRIDES.decoder(5, shape))


class Given(nn.Module):
    """A body that says what it is told."""

    def __init__(self, numbers: Tensor) -> None:
        super().__init__()
        self.numbers = numbers

    def forward(self, x: Tensor) -> Tensor:
        return self.numbers


def test_an_encoder_builds_the_latent_it_names() -> None:
    numbers = torch.tensor([[0.5, -1.0, 1e4, -1e4]])
    q = Encoder(Given(numbers), sg.families.Gaussian(2))(torch.rand(1))
    torch.testing.assert_close(q.base_dist.loc, torch.tensor([[0.5, -1.0]]))
    torch.testing.assert_close(q.base_dist.scale, torch.tensor([[12.0, -12.0]]).exp())  # it stays a positive number
    q = Encoder(Given(numbers), sg.families.Bernoulli(4))(torch.rand(1))
    torch.testing.assert_close(q.base_dist.logits, numbers)
    told, wrong = r"gaussian latents of shape \(3,\) take 6 numbers an example, got", sg.families.Gaussian(3)
    refused(sg.ShapeError, told, lambda: Encoder(Given(numbers), wrong)(torch.rand(1)))


def log_precision(levels: int, said: float, dtype: torch.dtype = torch.float64) -> float:
    decoder = NonlinearGaussian(Given(torch.tensor([[[[0.25]], [[said]]]], dtype=dtype)), (1, 1, 1), levels)
    likelihood = decoder(torch.zeros(1, 2))
    assert likelihood.mean.item() == 0.25
    return -2 * math.log(likelihood.base_dist.scale.item())


@pytest.mark.parametrize("levels", [2, 17, 256])
def test_the_precision_never_exceeds_that_of_the_dequantization_noise(levels: int) -> None:
    most = math.log(12 * levels**2)
    for said in (-50.0, -1.0, 0.0, 1.0, 5.0, 10.0, 50.0, 1e4):
        assert log_precision(levels, said) <= most + 1e-12
        assert log_precision(levels, said, torch.float32) <= most + 1e-5


def test_below_the_limit_the_precision_follows_the_network_from_a_standard_deviation_of_a_third() -> None:
    assert log_precision(17, 0.0) == pytest.approx(math.log(9), abs=3e-3)
    assert log_precision(256, 0.0) == pytest.approx(math.log(9), abs=2e-5)
    precisions = [log_precision(256, g) for g in (-20.0, -3.0, 0.0, 2.0, 5.0, 9.0, 12.0, 20.0)]
    assert precisions == sorted(precisions)
    assert precisions[1] - precisions[0] == pytest.approx(17.0, abs=1e-6)
    assert math.log(12 * 256**2) - precisions[-1] < 1e-3
