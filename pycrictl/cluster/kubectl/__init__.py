"""Access to a cluster from a workstation by kubectl, which alone reads kubeconfigs."""
