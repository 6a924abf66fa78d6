"""The protocol by which papers on estimators of discrete latents compare them, with the exact gradient beside them."""
