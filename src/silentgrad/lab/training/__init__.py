"""Training on Lightning's Trainer."""

from silentgrad.lab.training.build import build_model
from silentgrad.lab.training.config import DataConfig, ModelConfig, Settings, TrainConfig
from silentgrad.lab.training.loop import DivergedError, TrainingPlan
from silentgrad.lab.training.run import load_run, load_weights, read_config, train_model
from silentgrad.lab.training.saving import RunError

__all__ = [
    "DataConfig",
    "DivergedError",
    "ModelConfig",
    "RunError",
    "Settings",
    "TrainConfig",
    "TrainingPlan",
    "build_model",
    "load_run",
    "load_weights",
    "read_config",
    "train_model",
]
