"""Linear decoders fitted to the whole of the data, with a free Gaussian latent for every example: no encoder."""

from silentgrad.factors.fit import FactorFit, FitProgress, Inference, fit_factors, infer_factors

__all__ = ["FactorFit", "FitProgress", "Inference", "fit_factors", "infer_factors"]
