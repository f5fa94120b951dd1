"""A throwaway node: a private containerd, a registry and a slow, failing network between them."""
