"""Settings: every option of a run, and the plan that they come to."""

from silentgrad.lab.settings.fields import ConfigError, Count, Range, Seed
from silentgrad.lab.settings.options import (
    GROUPS,
    SILENT,
    TEMPERATURE,
    DataConfig,
    Decay,
    EstimatorName,
    ModelConfig,
    Optimizer,
    Settings,
    TrainConfig,
    has_temperature,
)
from silentgrad.lab.settings.plan import (
    Plan,
    estimator_class,
    family_named,
    require_decoders,
    resolve,
    resolve_model,
    suitable_estimators,
)
