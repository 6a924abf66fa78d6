"""Linear decoders fitted to the whole of the data, with a free Gaussian latent for every example: no encoder."""

from silentgrad.factors.fit import FactorFit, Inference, fit_factors, infer_factors

__all__ = ["FactorFit", "Inference", "fit_factors", "infer_factors"]
