"""Training on Lightning's Trainer."""

from silentgrad.training.build import build_model
from silentgrad.training.config import DataConfig, ModelConfig, Settings, TrainConfig
from silentgrad.training.loop import DivergedError, TrainingPlan
from silentgrad.training.run import load_run, load_weights, read_config, train_model
from silentgrad.training.saving import RunError

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
