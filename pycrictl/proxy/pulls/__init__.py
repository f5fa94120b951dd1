"""Image pulls that pass through the proxy: their limit, their progress (KEP-5334), their status."""
