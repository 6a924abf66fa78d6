"""Training: one loop on Lightning's Fabric."""

from silentgrad.lab.settings import DataConfig, ModelConfig, Settings, TrainConfig
from silentgrad.lab.training.checkpoints import RunError
from silentgrad.lab.training.loading import load_run, load_weights, read_config
from silentgrad.lab.training.loop import DivergedError, Loop
from silentgrad.lab.training.run import train_model
