"""Latents q(z|x): what a closed form has to know about them."""
