"""Settings: every option of a run, and the plan that they come to."""

from silentgrad.lab.settings.fields import COUNT, SEED, ConfigError, Count, Range, Seed, require
from silentgrad.lab.settings.options import (
    GROUPS,
    SILENT,
    DataConfig,
    Decay,
    Decoders,
    EstimatorName,
    ModelConfig,
    Settings,
    TrainConfig,
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
