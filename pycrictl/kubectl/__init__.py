"""A cluster as seen from a workstation, by kubectl, which alone reads kubeconfigs."""
