"""Special functions and Gaussian integrals."""
